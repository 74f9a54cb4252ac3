package main

import (
	"bytes"
	"io"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/pkg/cli"
	"github.com/nordix/meridio-nsp/test/spiffe"
)

// workloadAPI runs an agent, sets SPIFFE_ENDPOINT_SOCKET to it, and returns an identity that it gave.
func workloadAPI(t *testing.T) *auth.SPIFFE {
	ca, err := spiffe.NewAuthority("example.org")
	require.NoError(t, err)
	id, err := ca.SVID("/ns/red/sa/nsp", time.Hour)
	require.NoError(t, err)
	agent := spiffe.NewAgent(filepath.Join(t.TempDir(), "agent.sock"))
	require.NoError(t, agent.Issue(id, ca.Bundle()))
	require.NoError(t, agent.Start(t.Context()))
	t.Cleanup(func() {
		if err := agent.Stop(); err != nil {
			t.Errorf("stopping the agent: %v", err)
		}
	})
	t.Setenv("SPIFFE_ENDPOINT_SOCKET", agent.Socket())
	source, err := auth.OpenSPIFFE(t.Context(), auth.SPIFFEConfig{Socket: agent.Socket(), Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(source.Close)
	return source
}

// In the pod of an NSP the commands reach it as its clients do.
func TestCommandsSpeakSPIFFE(t *testing.T) {
	creds := grpc.Creds(workloadAPI(t).Server(nil))
	addr := serve(t, example(), creds)
	r := command(t, "pools", "--server", addr)
	require.Equal(t, exitOK, r.code, r.stderr)
	require.Contains(t, r.stdout, "web")

	r = command(t, "pools", "--server", addr, "--spiffe-endpoint-socket", "")
	require.Equal(t, exitFailed, r.code)
	require.Contains(t, r.stderr, "does the server speak TLS?")
	r = command(t, "pools", "--server", serve(t, example()))
	require.Equal(t, exitFailed, r.code)
	require.Contains(t, r.stderr, "set --spiffe-endpoint-socket= to nothing")
	r = command(t, "pools", "--server", addr, "--spiffe-endpoint-socket", "/nowhere/agent.sock", "--timeout", "200ms")
	require.Equal(t, exitFailed, r.code)
	require.Contains(t, r.stderr, "no SVID from the workload API at /nowhere/agent.sock")
}

func TestProbeSpeaksSPIFFE(t *testing.T) {
	s := grpc.NewServer(grpc.Creds(workloadAPI(t).Server(nil)))
	grpc_health_v1.RegisterHealthServer(s, health.NewServer())
	addr := serveOn(t, s, "tcp", "127.0.0.1:0")
	var stderr bytes.Buffer
	code := execute(t.Context(), []string{"/bin/" + cli.ProbeName, "-addr=" + addr, "-service=", "-connect-timeout=10s", "-rpc-timeout=10s", "-spiffe"},
		io.Discard, &stderr)
	require.Equal(t, exitOK, code, stderr.String())
}
