package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/nordix/meridio-nsp/pkg/cli"
	"github.com/nordix/meridio-nsp/pkg/external/controller"
	"github.com/nordix/meridio-nsp/pkg/nsp"
	"github.com/nordix/meridio-nsp/pkg/targetpool/client"
)

// controllerFlags are the flags that are not those of controller.Config.
type controllerFlags struct {
	kubeconfig, level string
	providers         map[string]string
	tls               client.TLSFiles
}

func newController() *cobra.Command {
	var cfg controller.Config
	var flags controllerFlags
	cmd := &cobra.Command{
		Use:   "controller",
		Short: "Run the controller of ExternalTargets, TargetPools and StreamPolicies",
		Long: "Find the addresses of ExternalTargets and write them to the EndpointSlices of the Services that select them;\n" +
			"make a Service for each TargetPool, and for each Stream object with the annotation " + controller.AnnotationSelector + ";\n" +
			"find the addresses that the sources of StreamPolicies stand for.\n\n" +
			"It is a process of its own because it may write what the namespace process must not.\n\n" +
			"Every flag --foo-bar is also read from the environment variable NSP_FOO_BAR.",
		Example: "  nsp controller --namespace red --target-namespaces apps,vms --provider azure=unix:///run/resolvers/azure.sock",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cfg.Namespace == "" {
				return cli.Usage(errors.New("--namespace is required: the controller's own namespace"))
			}
			if err := nsp.ValidateClusterName(cfg.ClusterName); err != nil {
				return cli.Usage(err)
			}
			return runProcess(cmd.Context(), cmd.ErrOrStderr(), flags.level, func(ctx context.Context, log *slog.Logger) error {
				cfg.Log = log
				return runController(ctx, cfg, flags)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.ClusterName, "cluster-name", "",
		"name of this cluster, as the namespace process has it: an ExternalTarget that gives it to another one is refused")
	f.StringVar(&cfg.Namespace, "namespace", "", "the controller's own namespace, where the lease of the leader is (required)")
	f.StringSliceVar(&cfg.TargetNamespaces, "target-namespaces", nil,
		"namespaces whose objects are looked at; * stands for all; empty for the controller's own")
	f.BoolVar(&cfg.LeaderElection, "leader-election", true, "let one of several processes work at a time")
	f.StringVar(&cfg.MetricsAddress, "metrics-address", ":9090", "address of the Prometheus metrics; empty for none")
	f.StringVar(&cfg.HealthAddress, "health-address", ":8081", "address of /healthz and /readyz; empty for none")
	f.StringToStringVar(&flags.providers, "provider", nil,
		"a provider as NAME=ADDRESS: unix:///path, or host:port with the TLS files below; may be given several times")
	f.StringVar(&flags.tls.CA, "provider-ca-file", "", "CA that providers' certificates are of, PEM; read again when it changes")
	f.StringVar(&flags.tls.Cert, "provider-cert-file", "", "certificate that is shown to providers, PEM; read again when it changes")
	f.StringVar(&flags.tls.Key, "provider-key-file", "", "its private key, PEM")
	f.StringVar(&flags.kubeconfig, "kubeconfig", "", "kubeconfig, for running outside a cluster")
	f.StringVar(&flags.level, "log-level", "info", "debug, info, warn or error; the signal USR2 makes it debug, USR1 what it was")
	complete(cmd, "log-level", "debug", "info", "warn", "error")
	return cmd
}

func runController(ctx context.Context, cfg controller.Config, flags controllerFlags) error {
	var err error
	if cfg.REST, err = nsp.RESTConfig(flags.kubeconfig); err != nil {
		return err
	}
	switch {
	case slices.Contains(cfg.TargetNamespaces, "*"):
		cfg.TargetNamespaces = nil
	case len(cfg.TargetNamespaces) == 0:
		cfg.TargetNamespaces = []string{cfg.Namespace}
	}
	connections, closeAll, err := dialProviders(flags)
	if err != nil {
		return err
	}
	defer closeAll()
	cfg.Providers = connections
	return controller.Run(ctx, cfg)
}

// pingEvery is a little longer than the least that a gRPC server tolerates by default.
const pingEvery = 5*time.Minute + 10*time.Second

// dialProviders makes connections that connect when they are used, again and again.
func dialProviders(flags controllerFlags) (map[string]grpc.ClientConnInterface, func(), error) {
	connections := make(map[string]grpc.ClientConnInterface)
	var opened []*grpc.ClientConn
	closeAll := func() {
		for _, c := range opened {
			c.Close()
		}
	}
	for _, name := range slices.Sorted(maps.Keys(flags.providers)) {
		address := flags.providers[name]
		creds, err := providerCredentials(address, flags.tls)
		if err != nil {
			closeAll()
			return nil, nil, fmt.Errorf("provider %s: %w", name, err)
		}
		retries := backoff.DefaultConfig
		retries.MaxDelay = 10 * time.Second
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(creds), grpc.WithConnectParams(grpc.ConnectParams{Backoff: retries}),
			grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingEvery, Timeout: 10 * time.Second}))
		if err != nil {
			closeAll()
			return nil, nil, fmt.Errorf("provider %s: %w", name, err)
		}
		opened = append(opened, conn)
		connections[name] = conn
	}
	return connections, closeAll, nil
}

// providerCredentials trusts the file system with unix sockets, and nothing else without TLS.
func providerCredentials(address string, files client.TLSFiles) (credentials.TransportCredentials, error) {
	if strings.HasPrefix(address, "unix:") {
		return insecure.NewCredentials(), nil
	}
	if files.CA == "" || files.Cert == "" || files.Key == "" {
		return nil, fmt.Errorf("address %q needs mTLS: set --provider-ca-file, --provider-cert-file and --provider-key-file, or use unix:///path", address)
	}
	return files.Credentials()
}
