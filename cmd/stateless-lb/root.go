package main

import (
	"context"
	"io"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/nordix/meridio-nsp/pkg/cli"
	"github.com/nordix/meridio-nsp/pkg/lb/nft"
)

// run is the whole program.
func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	return cli.Execute(ctx, newRoot(), args, stdout, stderr)
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "stateless-lb",
		Short: "A stateless load balancer for Meridio, in the kernel",
		Long: "stateless-lb forwards the traffic of a conduit's flows to the targets that are ready. nftables picks the target of each packet by\n" +
			"a Maglev table, routes bring it there; nothing passes user space and no connection is tracked. It needs CAP_NET_ADMIN, and a\n" +
			"kernel that forwards: net.ipv4.ip_forward and net.ipv6.conf.all.forwarding are 1, net.ipv4.conf.*.rp_filter is 0.\n\n" +
			"When it ends the kernel goes on forwarding, and when it starts it takes over what is there: see --remove-at-end.\n\n" +
			"Every flag --foo-bar is also read from the environment variable NSP_FOO_BAR.",
		Example: "  stateless-lb --trench trench-a --conduit load-balancer --namespace red\n" +
			"  stateless-lb trace --src 10.0.0.2 --sport 40000 --dst 20.0.0.1 --dport 80 --proto tcp",
	}
	beBalancer(root)
	cli.Program(root, cli.Version)
	root.AddCommand(newTrace(), newRemove(), newProbe())
	return root
}

// addPlane adds the flags that say where the data plane is.
func addPlane(cmd *cobra.Command, cfg *nft.Config) {
	f := cmd.Flags()
	f.StringVar(&cfg.Table, "table", nft.DefaultTable, "nftables table, of family inet, that belongs to this load balancer alone")
	f.Uint32Var(&cfg.MarkBase, "mark-base", nft.DefaultMarkBase, "first of 65536 numbers that mark packets and name routing tables")
	f.IntVar(&cfg.RulePriority, "rule-priority", nft.DefaultRulePriority, "first of 8194 priorities that the rules from marks to routing tables can have")
}

// newProbe is the health probe under a name of its own.
func newProbe() *cobra.Command {
	probe := cli.NewProbeOf("a load balancer", defaultHealthSocket)
	probe.Example = "  stateless-lb probe --service Readiness"
	probe.Long = "Services: Startup and Liveness are about the process. Readiness holds from the moment that the kernel has what the NSP said,\n" +
		"and through any loss of the control plane. NSPCli is the connection to the NSP; Stream and Flow say whether there are any."
	return probe
}

func newRemove() *cobra.Command {
	var cfg nft.Config
	cmd := &cobra.Command{
		Use:     "remove",
		Short:   "Take all out of the kernel that a load balancer has left there",
		Example: "  stateless-lb remove",
		Args:    cli.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			plane, err := nft.New(cfg)
			if err != nil {
				return err
			}
			defer plane.Close()
			return plane.Remove()
		},
	}
	addPlane(cmd, &cfg)
	return cmd
}
