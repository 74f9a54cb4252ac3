package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nordix/meridio-nsp/pkg/auth"
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
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cfg.Validate(); err != nil {
				return usageError{err}
			}
			log, err := newLogger(cmd.ErrOrStderr(), level)
			if err != nil {
				return err
			}
			return nsp.RunNamespace(cmd.Context(), cfg, log)
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.Namespace, "namespace", "", "namespace whose streams are served (required)")
	f.IntVar(&cfg.Port, "port", 7778, "port of the gRPC services")
	f.StringVar(&cfg.MetricsAddress, "metrics-address", ":9090", "address of the Prometheus metrics; empty for none")
	f.StringVar(&cfg.HealthSocket, "health-socket", "/tmp/health.sock", "unix socket that answers health probes; empty for none")
	f.StringVar(&cfg.Datasource, "datasource", "/run/nsp/data/registry.db", "file of the registry")
	f.DurationVar(&cfg.EntryTimeout, "entry-timeout", time.Minute, "how long a registration lives without a refresh")
	f.StringVar(&cfg.Transport, "transport", nsp.Plaintext, "one of "+strings.Join(nsp.Transports, ", "))
	f.StringVar(&cfg.TLSCertFile, "tls-cert-file", "", "certificate chain of the server, PEM; read again when it changes")
	f.StringVar(&cfg.TLSKeyFile, "tls-key-file", "", "private key of the server, PEM; read again when it changes")
	f.StringVar(&cfg.TLSClientCA, "tls-client-ca-file", "", "CA that clients must have a certificate of, PEM; empty asks for none")
	f.StringVar(&cfg.Authorisation, "authorisation", string(auth.PeerAddress), fmt.Sprintf("who is believed, one of %v", auth.Modes))
	f.StringVar(&cfg.Assignment, "assignment", string(pool.ByMembership),
		"which members hold a stream where the Service does not say: membership or ready")
	f.BoolVar(&cfg.ReadinessPush, "readiness-push", true,
		"tell load balancers of readiness at once; off, a target counts as long as its TAPA has it registered, as in Meridio 1.x")
	f.StringVar(&cfg.Kubeconfig, "kubeconfig", "", "kubeconfig, for running outside a cluster")
	f.DurationVar(&cfg.ShutdownTimeout, "shutdown-timeout", 10*time.Second, "how long calls may take to end at shutdown")
	f.StringVar(&level, "log-level", "info", "debug, info, warn or error")
	complete(cmd, "transport", nsp.Transports...)
	complete(cmd, "authorisation", string(auth.PeerAddress), string(auth.None))
	complete(cmd, "assignment", string(pool.ByMembership), string(pool.ByReadiness))
	complete(cmd, "log-level", "debug", "info", "warn", "error")
	return cmd
}

// complete offers the values of a flag to the shell.
func complete(cmd *cobra.Command, flag string, values ...string) {
	err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	if err != nil {
		panic(err) // the flag does not exist
	}
}

func noArgs(cmd *cobra.Command, args []string) error {
	if err := cobra.NoArgs(cmd, args); err != nil {
		return usageError{err}
	}
	return nil
}
