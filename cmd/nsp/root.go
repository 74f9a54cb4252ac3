package main

import (
	"context"
	"io"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/nordix/meridio-nsp/pkg/cli"
	"github.com/nordix/meridio-nsp/pkg/nsp"
)

// run is the whole program.
func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	return execute(ctx, args, stdout, stderr)
}

func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root, args := program(args) //nolint:contextcheck // cobra hands the context to the command
	return cli.Execute(ctx, root, args, stdout, stderr)
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "nsp",
		Short: "The Network Service Platform of Meridio",
		Long: "nsp keeps the registry of targets of Meridio, and turns labelled Kubernetes Services into streams:\n" +
			"sidecars learn which streams to hold, load balancers which targets take traffic.\n\n" +
			"Without a command it runs the process of one trench, as Meridio's operator starts it: see nsp trench --help.\n\n" +
			"Every flag --foo-bar is also read from the environment variable NSP_FOO_BAR, unless its help says otherwise.",
	}
	beTrench(root)
	cli.Program(root, nsp.Version)
	root.AddCommand(newNamespace(), newTrench(), newController(), newImport(), newExport())
	root.AddCommand(newPools(byAddress), newTargets(byAddress), newExplain(byAddress), newWatch(byAddress))
	return root
}
