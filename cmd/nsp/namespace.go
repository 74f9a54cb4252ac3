package main

import (
	"context"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/nordix/meridio-nsp/pkg/cli"
	"github.com/nordix/meridio-nsp/pkg/nsp"
	"github.com/nordix/meridio-nsp/pkg/pool"
)

func newNamespace() *cobra.Command {
	var cfg nsp.NamespaceConfig
	var level string
	cmd := &cobra.Command{
		Use:   "namespace",
		Short: "Run the namespace-wide process",
		Long: "Watch the Services and EndpointSlices that bear\n" +
			"  " + pool.LabelMarker + ": " + pool.MarkerValue + "\n" +
			"and serve TargetPool, TargetFeed and the target registry of the namespace.\n\n" +
			"Every flag --foo-bar is also read from the environment variable NSP_FOO_BAR.",
		Example: "  nsp namespace --namespace red --transport tls --tls-cert-file /tls/tls.crt --tls-key-file /tls/tls.key",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cfg.Validate(); err != nil {
				return cli.Usage(err)
			}
			return runProcess(cmd.Context(), cmd.ErrOrStderr(), level, func(ctx context.Context, log *slog.Logger) error {
				return nsp.RunNamespace(ctx, cfg, log)
			})
		},
	}
	addProcess(cmd, &cfg.ProcessConfig, &level)
	addAuth(cmd, &cfg.AuthConfig, "mtls for spiffe, token for tls, peer-address for plaintext")
	f := cmd.Flags()
	f.StringVar(&cfg.ClusterName, "cluster-name", "",
		"name of this cluster, unique among those whose targets meet; with it, targets say what they are part of as cluster/namespace/Service")
	f.StringVar(&cfg.Assignment, "assignment", string(pool.ByMembership),
		"which members hold a stream where the Service does not say: membership or ready")
	f.BoolVar(&cfg.ReadinessPush, "readiness-push", true,
		"tell load balancers of readiness at once; off, a target counts as long as its TAPA has it registered, as in Meridio 1.x")
	f.StringSliceVar(&cfg.TargetNamespaces, "target-namespaces", nil,
		"other namespaces whose Services are watched; * stands for those that TargetGrants and Trench annotations name")
	f.StringSliceVar(&cfg.TrenchProcessAccounts, "trench-process-accounts", nil,
		"ServiceAccounts that may relay the registry of a trench, as namespace/name, proven by token or SVID")
	complete(cmd, "assignment", string(pool.ByMembership), string(pool.ByReadiness))
	return cmd
}

// complete offers the values of a flag to the shell.
func complete(cmd *cobra.Command, flag string, values ...string) {
	err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	if err != nil {
		panic(err) // the flag does not exist
	}
}
