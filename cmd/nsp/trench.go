package main

import (
	"context"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/nordix/meridio-nsp/pkg/cli"
	"github.com/nordix/meridio-nsp/pkg/nsp"
)

func newTrench() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "trench",
		Short: "Run the process of one trench, which is also what nsp does without a command",
		Long: "Serve the configuration and the target registry of one trench, as the NSP of Meridio 1.x does.\n\n" +
			"Every flag --foo-bar is also read from the environment variable NSP_FOO_BAR, so that the process runs in the\n" +
			"StatefulSet that Meridio's operator makes. Where --datasource is a registry of Meridio 1.x it is taken over.\n\n" +
			"With --namespace-nsp the registry is that of the namespace process, so that old load balancers have readiness\n" +
			"too. The file at --datasource is then a mirror, which is served while the namespace process is away. The registry\n" +
			"goes along when the flag is set or taken away.",
		Example: "  nsp trench --namespace red --config-map-name meridio-configuration-trench-a",
		Args:    cli.NoArgs,
	}
	beTrench(cmd)
	return cmd
}

// beTrench gives a command the flags and the doings of a trench process.
func beTrench(cmd *cobra.Command) {
	var cfg nsp.TrenchConfig
	var level string
	addProcess(cmd, &cfg.ProcessConfig, &level)
	addAuth(cmd, &cfg.AuthConfig, "legacy where clients show certificates, else peer-address")
	f := cmd.Flags()
	f.StringVar(&cfg.ConfigMapName, "config-map-name", nsp.DefaultConfigMap,
		"ConfigMap with the configuration of the trench; Meridio's operator calls it meridio-configuration-<trench>")
	f.StringVar(&cfg.NamespaceNSP, "namespace-nsp", "",
		"address of the namespace process, as nsp-service.red:7778: it has the registry, and this process relays; empty stands alone")
	f.StringVar(&cfg.LinkCA, "namespace-nsp-ca-file", "",
		"CA that the namespace process must have a certificate of, PEM, with --transport=tls; read again; empty takes the system's")
	f.StringVar(&cfg.LinkCert, "namespace-nsp-cert-file", "", "certificate to show to the namespace process, PEM, with --transport=tls; read again")
	f.StringVar(&cfg.LinkKey, "namespace-nsp-key-file", "", "private key of that certificate, PEM; read again")
	f.StringVar(&cfg.LinkID, "namespace-nsp-id", "", "who the namespace process must be with --transport=spiffe: a SPIFFE ID, or a "+
		"ServiceAccount as namespace/name; empty takes anybody whom the trust bundles verify")
	f.StringVar(&cfg.LinkToken, "namespace-nsp-token-file", "",
		"token of this process's ServiceAccount to show to the namespace process; read again at every call")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := cfg.Validate(); err != nil {
			return cli.Usage(err)
		}
		return runProcess(cmd.Context(), cmd.ErrOrStderr(), level, func(ctx context.Context, log *slog.Logger) error {
			return nsp.RunTrench(ctx, cfg, log)
		})
	}
}
