package main

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/nordix/meridio-nsp/pkg/cli"
	"github.com/nordix/meridio-nsp/pkg/tapa/sidecar"
	"github.com/nordix/meridio-nsp/pkg/targetpool/client"
)

// The paths that a manifest need not name. They are in two volumes: one that the application shares, and one of the sidecar.
const (
	defaultTapSocket        = "/var/lib/meridio/ambassador.sock"
	defaultAmbassadorSocket = "/var/lib/meridio/tapa.sock"
	defaultStateFile        = "/var/lib/tapa/state.json"
	defaultHealthSocket     = "/tmp/health.sock"
	defaultAdminSocket      = "/tmp/admin.sock"
)

// beSidecar gives a command the flags and the doings of the sidecar.
func beSidecar(cmd *cobra.Command) {
	var cfg sidecar.Config
	var level string
	f := cmd.Flags()
	f.StringVar(&cfg.PodName, "pod-name", "", "name of the pod, metadata.name of the downward API")
	f.StringVar(&cfg.PodNamespace, "pod-namespace", "", "namespace of the pod, metadata.namespace")
	f.StringVar(&cfg.PodUID, "pod-uid", "", "UID of the pod, metadata.uid: a pod that comes later under the name is another one")
	f.StringVar(&cfg.PodIP, "pod-ip", "", "address of the pod, status.podIP; used where there is no --pod-name")
	f.StringVar(&cfg.ExternalTarget, "external-target", "",
		"on a machine that is no pod: the ExternalTarget that it is, as namespace/name; the client certificate must prove its spec.identity")
	f.StringVar(&cfg.NSPNamespace, "namespace", "", "namespace of the trench and its NSP; empty is that of the pod or ExternalTarget")
	f.StringVar(&cfg.NSPAddress, "server", "", "address of the namespace-wide NSP; empty is, in a pod, nsp-service.NAMESPACE:7778")
	f.StringVar(&cfg.TapSocket, "tap-socket", defaultTapSocket, "unix socket that the application uses")
	f.StringVar(&cfg.StateFile, "state-file", defaultStateFile, "file that keeps who wants which stream; on a volume that outlives the container")
	f.StringVar(&cfg.HealthSocket, "health-socket", defaultHealthSocket, "unix socket that answers health probes; empty for none")
	f.StringVar(&cfg.HealthAddress, "health-address", "", "address that answers health probes of the kubelet, as :7780; empty for none")
	f.StringVar(&cfg.AdminSocket, "admin-socket", defaultAdminSocket, "unix socket that 'tapa status' asks; empty for none")
	f.StringVar(&cfg.MetricsAddress, "metrics-address", "", "address of the Prometheus metrics, as :9091; empty for none")
	f.DurationVar(&cfg.ShutdownTimeout, "shutdown-timeout", 20*time.Second,
		"how long closing the pools' streams may take at the end; less than terminationGracePeriodSeconds")
	f.DurationVar(&cfg.OperationTimeout, "operation-timeout", 20*time.Second, "how long one attempt to open or close a stream may take")
	f.StringVar(&level, "log-level", "info", "debug, info, warn or error; the signal USR2 makes it debug, USR1 what it was")
	cli.Complete(cmd, "log-level", "debug", "info", "warn", "error")
	transport, connector := cli.AddClientTransport(cmd), addConnector(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg.Complete()
		cfg.Connector = connector.String()
		if err := errors.Join(cfg.Validate(), connector.validate(&cfg), transport.Validate(), validateMachine(&cfg, transport)); err != nil {
			return cli.Usage(err)
		}
		return runSidecar(cmd, cfg, connector, transport, level)
	}
}

// validateMachine says what a machine that is no pod needs beside.
func validateMachine(cfg *sidecar.Config, t *cli.ClientTransport) error {
	switch {
	case cfg.ExternalTarget == "":
		return nil
	case !t.ShowsCertificate():
		return errors.New("--external-target needs a client certificate: set --spiffe-endpoint-socket, or --tls-cert-file and --tls-key-file")
	case t.ShowsToken():
		return errors.New("--external-target and --token-file exclude each other: a token is of a pod")
	}
	return nil
}

func runSidecar(cmd *cobra.Command, cfg sidecar.Config, c *connector, t *cli.ClientTransport, level string) error {
	log, levels, err := cli.NewLogger(cmd.ErrOrStderr(), level)
	if err != nil {
		return err
	}
	following, unfollow := context.WithCancel(cmd.Context())
	followed := levels.Follow(following, log)
	defer func() { unfollow(); <-followed }()
	var end func()
	cfg.Credentials, cfg.PerRPC, end, err = t.Open(cmd.Context(), log)
	if err != nil {
		return err
	}
	defer end()
	state, err := sidecar.OpenState(cfg.StateFile, log)
	if err != nil {
		return err
	}
	defer state.Close()
	if cfg.ExternalTarget != "" {
		cfg.PerRPC = client.NewSession()
	}
	connector, stop, err := c.open(cmd.Context(), &cfg, log)
	if err != nil {
		return err
	}
	s, err := sidecar.New(cfg, state, connector, log)
	if err == nil {
		err = s.Run(cmd.Context())
	}
	return errors.Join(err, stop())
}
