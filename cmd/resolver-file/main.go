// Command resolver-file is a provider of resolver.v1 whose resources stand in a file: for resources that a script knows, and as
// the example for authors of providers.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/nordix/meridio-nsp/pkg/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := cli.Execute(ctx, newRoot(), os.Args, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// config is the command line.
type config struct {
	file, listen string
	every        time.Duration
	// cert, key and clientCA are the files of mTLS.
	cert, key, clientCA string
}

func newRoot() *cobra.Command {
	var cfg config
	cmd := &cobra.Command{
		Use:   "resolver-file",
		Short: "Resolve locators from a file",
		Long: "Serve resolver.v1 with the resources of a YAML file, which is read again when it changes:\n\n" +
			"  resources:\n    rack-7/db:\n    - {address: 192.0.2.1}\n    - {address: 192.0.2.2, readiness: draining}\n\n" +
			"readiness is ready (default), not-ready or draining; identity may name who is behind the address.",
		Example:       "  resolver-file --file /etc/resolver/resources.yaml --listen unix:///run/resolvers/file.sock",
		Version:       cli.Version,
		Args:          cli.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cfg.validate(); err != nil {
				return cli.Usage(err)
			}
			return run(cmd.Context(), cfg, slog.New(slog.NewJSONHandler(cmd.ErrOrStderr(), nil)))
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.file, "file", "", "YAML file with the resources (required)")
	f.StringVar(&cfg.listen, "listen", "", "unix:///path, or host:port with the three files below (required)")
	f.DurationVar(&cfg.every, "every", time.Second, "how often to look whether the file has changed")
	f.StringVar(&cfg.cert, "tls-cert-file", "", "certificate chain of the server, PEM")
	f.StringVar(&cfg.key, "tls-key-file", "", "its private key, PEM")
	f.StringVar(&cfg.clientCA, "tls-client-ca-file", "", "CA that clients must have a certificate of, PEM")
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return cli.Usage(err) })
	return cmd
}

// validate says, in sentences, all that has to be changed.
func (c *config) validate() error {
	var errs []error
	if c.file == "" {
		errs = append(errs, errors.New("--file is empty: name the YAML file with the resources"))
	}
	if c.listen == "" {
		errs = append(errs, errors.New("--listen is empty: write unix:///path, or host:port with the three --tls-* files"))
	}
	if c.every <= 0 {
		errs = append(errs, fmt.Errorf("--every is %s: choose a duration above 0, as 1s", c.every))
	}
	return errors.Join(errs...)
}
