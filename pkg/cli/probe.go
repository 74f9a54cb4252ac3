package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/nordix/meridio-nsp/pkg/auth"
)

// ProbeName is the name under which the binary is a health probe.
const ProbeName = "grpc_health_probe"

// NewProbe asks a gRPC server for its health, with the flags that probes of Meridio's operator use.
func NewProbe() *cobra.Command {
	var addr, service string
	var connectTimeout, rpcTimeout time.Duration
	var spiffe bool
	cmd := &cobra.Command{
		Use:           ProbeName,
		Short:         "Ask a gRPC server for its health",
		Example:       "  " + ProbeName + " -addr=unix:///tmp/health.sock -service=Readiness",
		Args:          NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if addr == "" {
				return UsageError{errors.New("-addr is empty: write host:port or unix:///path")}
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), connectTimeout+rpcTimeout)
			defer cancel()
			creds, stop, err := probeCredentials(ctx, spiffe, connectTimeout)
			if err != nil {
				return err
			}
			defer stop()
			return probe(ctx, addr, service, creds)
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return UsageError{err} })
	f := cmd.Flags()
	f.StringVar(&addr, "addr", "", "address, host:port or unix:///path (required)")
	f.StringVar(&service, "service", "", "service to ask for; empty for the whole")
	f.DurationVar(&connectTimeout, "connect-timeout", time.Second, "time to connect")
	f.DurationVar(&rpcTimeout, "rpc-timeout", time.Second, "time to answer")
	f.BoolVar(&spiffe, "spiffe", false, "connect by mTLS, with an SVID of the workload API at "+workloadapi.SocketEnv)
	return cmd
}

// NewProbeOf is the probe as a command of a program, which asks it at its health socket unless told otherwise.
func NewProbeOf(who, socket string) *cobra.Command {
	cmd := NewProbe()
	cmd.Use, cmd.Short = "probe", "Ask "+who+" for its health, as a probe of the kubelet does"
	addr := cmd.Flags().Lookup("addr")
	addr.DefValue, addr.Usage = "unix://"+socket, "address, host:port or unix:///path"
	_ = addr.Value.Set(addr.DefValue) // a string takes all
	return cmd
}

// probeCredentials are plaintext, or what the workload API gives within the time that it takes to connect.
func probeCredentials(ctx context.Context, spiffe bool, timeout time.Duration) (credentials.TransportCredentials, func(), error) {
	if !spiffe {
		return insecure.NewCredentials(), func() {}, nil
	}
	source, err := auth.OpenSPIFFE(ctx, auth.SPIFFEConfig{
		Socket: os.Getenv(workloadapi.SocketEnv), Timeout: timeout, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, nil, err
	}
	return source.Client(), source.Close, nil
}

func probe(ctx context.Context, addr, service string, creds credentials.TransportCredentials) error {
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(creds))
	if err != nil {
		return UsageError{fmt.Errorf("the address %q: %w", addr, err)}
	}
	defer conn.Close()
	resp, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: service}, grpc.WaitForReady(true))
	if err != nil {
		return fmt.Errorf("asking %s for the health of %q: %w", addr, service, err)
	}
	if s := resp.GetStatus(); s != grpc_health_v1.HealthCheckResponse_SERVING {
		return fmt.Errorf("the service %q is %s", service, s)
	}
	return nil
}

// SingleDashes lets -flag stand for --flag, as the original probe does.
func SingleDashes(args []string) []string {
	out := []string{args[0]}
	for _, a := range args[1:] {
		if strings.HasPrefix(a, "-") && !strings.HasPrefix(a, "--") && a != "-h" {
			a = "-" + a
		}
		out = append(out, a)
	}
	return out
}
