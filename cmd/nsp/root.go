package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/spiffe/go-spiffe/v2/workloadapi"

	"github.com/nordix/meridio-nsp/pkg/nsp"
)

// exit codes, as people and scripts expect them.
const (
	exitOK = iota
	exitFailed
	exitUsage
)

// usageError is a command line that makes no sense.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// run is the whole program. The name it is called by may pick another one, as the probes of Meridio's operator do.
func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	return execute(ctx, args, stdout, stderr)
}

func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot() //nolint:contextcheck // cobra hands the context to the command
	if filepath.Base(args[0]) == probeName {
		root = newProbe() //nolint:contextcheck // as above
		args = singleDashes(args)
	}
	root.SetArgs(args[1:])
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintln(stderr, "Error:", strings.TrimSuffix(line, "\n"))
	}
	if _, ok := errors.AsType[usageError](err); ok {
		fmt.Fprintf(stderr, "Run '%s --help' for all there is.\n", cmd.CommandPath())
		return exitUsage
	}
	return exitFailed
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "nsp",
		Short: "The Network Service Platform of Meridio",
		Long: "nsp keeps the registry of targets of Meridio, and turns labelled Kubernetes Services into streams:\n" +
			"sidecars learn which streams to hold, load balancers which targets take traffic.\n\n" +
			"Without a command it runs the process of one trench, as Meridio's operator starts it: see nsp trench --help.",
		Version:           nsp.Version,
		SilenceErrors:     true,
		SilenceUsage:      true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return fromEnvironment(cmd.Flags()) },
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("unknown command %q", args[0])}
			}
			return nil
		},
	}
	beTrench(root)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(newNamespace(), newTrench(), newPools(), newTargets(), newWatch(), newImport(), newExport(), newVersion())
	return root
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArgs,
		Run:   func(cmd *cobra.Command, _ []string) { fmt.Fprintln(cmd.OutOrStdout(), nsp.Version) },
	}
}

// fromEnvironment sets every flag --foo-bar that is not on the command line from NSP_FOO_BAR. Other variables that begin
// with NSP_ are ignored: a Service called nsp-service makes Kubernetes inject some.
func fromEnvironment(flags *pflag.FlagSet) error {
	var errs []error
	flags.VisitAll(func(f *pflag.Flag) {
		name := variableOf(f.Name)
		value, ok := os.LookupEnv(name)
		if !ok || f.Changed || f.Name == "help" || f.Name == "version" {
			return
		}
		if err := flags.Set(f.Name, value); err != nil {
			errs = append(errs, unfit(name, value, f.Name, err))
		}
	})
	if err := errors.Join(errs...); err != nil {
		return usageError{err}
	}
	return nil
}

// variableOf is the environment variable of a flag.
func variableOf(flag string) string {
	if flag == spiffeFlag {
		return workloadapi.SocketEnv
	}
	return "NSP_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// unfit says why a variable is refused. Kubernetes gives every pod a variable NSP_PORT where there is a Service called nsp, and
// that is the one case where nobody has set it.
func unfit(name, value, flag string, err error) error {
	if strings.HasPrefix(value, "tcp://") {
		return fmt.Errorf("the environment variable %s=%q comes from a Kubernetes Service and does not fit --%s: "+
			"set enableServiceLinks: false in the pod, or set --%s", name, value, flag, flag)
	}
	return fmt.Errorf("the environment variable %s=%q does not fit --%s: %w", name, value, flag, err)
}
