package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/nordix/meridio-nsp/pkg/cli"
	"github.com/nordix/meridio-nsp/pkg/targetpool/client"
)

func newWatch(how reach) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "See what an NSP tells load balancers or sidecars, as it happens",
		Args:  cli.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newWatchFeed(how), newWatchAssignments(how))
	return cmd
}

// watching is one of the client's watches.
type watching interface {
	Run(ctx context.Context) error
	Status() client.Status
}

// watch runs a watch until ctx ends. What goes wrong before the first answer is an error; later interruptions are logged,
// and the client connects again.
func (c *connection) watch(cmd *cobra.Command, begin func(*client.Client) (watching, error)) error {
	done, err := c.open(cmd.Context())
	if err != nil {
		return err
	}
	defer done()
	creds, stop, err := c.credentials(cmd.Context())
	if err != nil {
		return err
	}
	defer stop()
	ctx, cancel := context.WithCancelCause(cmd.Context())
	defer cancel(nil)
	first := &firstFailure{Handler: slog.NewTextHandler(cmd.ErrOrStderr(), nil), fail: cancel}
	cl, err := client.New(client.Config{
		Address: c.server, Credentials: creds, Log: slog.New(first),
		HeartbeatTimeout: max(c.timeout, client.DefaultHeartbeatTimeout),
	})
	if err != nil {
		return cli.Usage(err)
	}
	w, err := begin(cl)
	if err != nil {
		return cli.Usage(err)
	}
	first.live = func() bool { return !w.Status().Since.IsZero() }
	waiting := time.AfterFunc(c.timeout, func() {
		if !first.live() {
			slog.New(first.Handler).Info("still waiting: the NSP has nothing to tell before it has read the cluster and the trench's configuration")
		}
	})
	defer waiting.Stop()
	if err := w.Run(ctx); err != nil {
		return err
	}
	if cmd.Context().Err() != nil {
		return nil
	}
	return c.explain(context.Cause(ctx))
}

// firstFailure is a log that ends the watch at the first failure before it was live: the client itself would try for ever.
type firstFailure struct {
	slog.Handler
	live func() bool
	fail context.CancelCauseFunc
}

// WithAttrs implements slog.Handler. What is watched stands on the command line and need not be in every line.
func (f *firstFailure) WithAttrs([]slog.Attr) slog.Handler { return f }

// Handle implements slog.Handler.
func (f *firstFailure) Handle(ctx context.Context, r slog.Record) error {
	if f.live() {
		return f.Handler.Handle(ctx, r)
	}
	r.Attrs(func(a slog.Attr) bool {
		if err, ok := a.Value.Any().(error); ok {
			f.fail(err)
		}
		return true
	})
	return nil
}
