package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
)

// probeName is the name under which the binary is a health probe.
const probeName = "grpc_health_probe"

// newProbe asks a gRPC server for its health, with the flags that probes of Meridio's operator use.
func newProbe() *cobra.Command {
	var addr, service string
	var connectTimeout, rpcTimeout time.Duration
	cmd := &cobra.Command{
		Use:           probeName,
		Short:         "Ask a gRPC server for its health",
		Example:       "  " + probeName + " -addr=unix:///tmp/health.sock -service=Readiness",
		Args:          noArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if addr == "" {
				return usageError{errors.New("-addr is empty: write host:port or unix:///path")}
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), connectTimeout+rpcTimeout)
			defer cancel()
			return probe(ctx, addr, service)
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	f := cmd.Flags()
	f.StringVar(&addr, "addr", "", "address, host:port or unix:///path (required)")
	f.StringVar(&service, "service", "", "service to ask for; empty for the whole")
	f.DurationVar(&connectTimeout, "connect-timeout", time.Second, "time to connect")
	f.DurationVar(&rpcTimeout, "rpc-timeout", time.Second, "time to answer")
	return cmd
}

func probe(ctx context.Context, addr, service string) error {
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return usageError{fmt.Errorf("the address %q: %w", addr, err)}
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

// singleDashes lets -flag stand for --flag, as the original probe does.
func singleDashes(args []string) []string {
	out := []string{args[0]}
	for _, a := range args[1:] {
		if strings.HasPrefix(a, "-") && !strings.HasPrefix(a, "--") && a != "-h" {
			a = "-" + a
		}
		out = append(out, a)
	}
	return out
}
