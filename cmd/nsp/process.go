package main

import (
	"context"
	"io"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/nordix/meridio-nsp/pkg/cli"
	"github.com/nordix/meridio-nsp/pkg/nsp"
)

// addProcess adds the flags that all processes have; level is that of the log.
func addProcess(cmd *cobra.Command, cfg *nsp.ProcessConfig, level *string) {
	f := cmd.Flags()
	f.StringVar(&cfg.Namespace, "namespace", "", "namespace whose streams are served (required)")
	f.IntVar(&cfg.Port, "port", 7778, "port of the gRPC services")
	f.StringVar(&cfg.MetricsAddress, "metrics-address", ":9090", "address of the Prometheus metrics; empty for none")
	f.StringVar(&cfg.HealthSocket, "health-socket", "/tmp/health.sock", "unix socket that answers health probes; empty for none")
	f.StringVar(&cfg.Datasource, "datasource", defaultDatasource, "file of the registry")
	f.DurationVar(&cfg.EntryTimeout, "entry-timeout", time.Minute, "how long a registration lives without a refresh")
	addTransport(cmd, &cfg.TransportConfig)
	f.StringVar(&cfg.Kubeconfig, "kubeconfig", "", "kubeconfig, for running outside a cluster")
	f.DurationVar(&cfg.ShutdownTimeout, "shutdown-timeout", 10*time.Second, "how long calls may take to end at shutdown")
	f.StringVar(level, "log-level", "info", "debug, info, warn or error; the signal USR2 makes it debug, USR1 what it was")
	complete(cmd, "log-level", "debug", "info", "warn", "error")
}

// runProcess runs a process with a log that goes to w.
func runProcess(ctx context.Context, w io.Writer, level string, run func(context.Context, *slog.Logger) error) error {
	log, levels, err := cli.NewLogger(w, level)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	followed := levels.Follow(ctx, log)
	defer func() { stop(); <-followed }()
	return run(ctx, log)
}
