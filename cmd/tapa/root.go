package main

import (
	"context"
	"io"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/nordix/meridio-nsp/pkg/cli"
)

// run is the whole program.
func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	return execute(ctx, args, stdout, stderr)
}

func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return cli.Execute(ctx, newRoot(), args, stdout, stderr) //nolint:contextcheck // cobra hands the context to the command
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "tapa",
		Short: "The sidecar of a target of Meridio",
		Long: "tapa keeps the streams open that somebody wants: the pools of which its pod is a member, as the NSP says, and the\n" +
			"application, which asks at --tap-socket as at a TAPA of Meridio 1.x. A stream is open as long as one of them wants it.\n" +
			"It has a TAPA of Meridio 1.x do the work, whose own socket is --ambassador-socket, or, with --connector=interface, does it\n" +
			"itself, on an interface that the pod has already: VIPs, routes and registration.\n\n" +
			"What only the pools want is closed when the sidecar is told to end. Who wants what is kept in --state-file, so that a\n" +
			"restart of the sidecar changes nothing.\n\n" +
			"Every flag --foo-bar is also read from the environment variable NSP_FOO_BAR.",
		Example: "  tapa --pod-name web-0 --pod-namespace red --server nsp-service.red:7778 --tls-ca-file /tls/ca.crt\n" +
			"  tapa --connector interface --interface net1 --gateway 172.16.0.1 --gateway fd00:1::1 --pod-name web-0 --pod-namespace red\n" +
			"  tapa --connector interface --interface eth1 --gateway 172.16.0.1 --external-target red/vm-1 \\\n" +
			"    --server nsp.example.org:7778 --spiffe-endpoint-socket unix:///run/spire/agent.sock\n" +
			"  tapa status",
	}
	beSidecar(root)
	cli.Program(root, cli.Version)
	root.AddCommand(newStatus(), newHealth())
	return root
}

// newHealth is the probe under a name of its own.
func newHealth() *cobra.Command {
	probe := cli.NewProbeOf("a sidecar", defaultHealthSocket)
	probe.Example = "  tapa probe --service Readiness\n  tapa probe --service Streams"
	probe.Long = "Services: Startup, Readiness and Liveness are about the sidecar alone; NSP and Connector are its connections; Streams is healthy\n" +
		"while all streams that somebody wants are open, Stream/TRENCH/CONDUIT/STREAM while that one is."
	return probe
}
