package nsp

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/test/spiffe"
)

// startAgent runs an agent that has an SVID for whoever asks.
func startAgent(t *testing.T, ca *spiffe.Authority) *spiffe.Agent {
	a := spiffe.NewAgent(filepath.Join(t.TempDir(), "agent.sock"))
	require.NoError(t, a.Start(t.Context()))
	t.Cleanup(func() {
		if err := a.Stop(); err != nil {
			t.Errorf("stopping the agent: %v", err)
		}
	})
	rotate(t, ca, a)
	return a
}

func rotate(t *testing.T, ca *spiffe.Authority, a *spiffe.Agent) {
	s, err := ca.SVID("/ns/red/sa/nsp", time.Hour)
	require.NoError(t, err)
	require.NoError(t, a.Issue(s, ca.Bundle()))
}

func unused(t *testing.T) (port int) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// A whole process takes its transport from the workload API, because that is there.
func TestNamespaceProcessSpeaksSPIFFE(t *testing.T) {
	ca, err := spiffe.NewAuthority("example.org")
	require.NoError(t, err)
	agent := startAgent(t, ca)
	c := good()
	c.Transport, c.SPIFFESocket, c.Kubeconfig = "", agent.Socket(), cluster(t)
	c.Port, c.MetricsAddress = unused(t), net.JoinHostPort("127.0.0.1", strconv.Itoa(unused(t)))
	c.HealthSocket, c.Datasource = filepath.Join(t.TempDir(), "health.sock"), filepath.Join(t.TempDir(), "registry.db")
	require.NoError(t, c.Validate())
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	var logged bytes.Buffer // read after the end
	go func() {
		ended <- RunNamespace(ctx, c, slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelDebug})))
	}()
	defer func() {
		stop()
		require.NoError(t, <-ended)
		require.Contains(t, logged.String(), "transport=spiffe")
		require.Contains(t, logged.String(), "spiffe_id=spiffe://example.org/ns/red/sa/nsp", "who did something wrong is named")
	}()

	source, err := auth.OpenSPIFFE(ctx, auth.SPIFFEConfig{Socket: agent.Path(), Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	defer source.Close()
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(c.Port))
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(source.Client()))
	require.NoError(t, err)
	defer conn.Close()
	within, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	health, err := grpc_health_v1.NewHealthClient(conn).Check(within,
		&grpc_health_v1.HealthCheckRequest{Service: "Readiness"}, grpc.WaitForReady(true))
	require.NoError(t, err)
	require.Equal(t, grpc_health_v1.HealthCheckResponse_SERVING, health.GetStatus())

	legacy := nspv1.NewTargetRegistryClient(conn)
	frontends := &nspv1.Target{Type: nspv1.Target_FRONTEND, Status: nspv1.Target_ANY}
	watch, err := legacy.Watch(within, frontends)
	require.NoError(t, err)
	_, err = watch.Recv()
	require.NoError(t, err)
	rotate(t, ca, agent)
	_, err = legacy.Register(within, &nspv1.Target{Ips: []string{"fe-1"}, Type: nspv1.Target_FRONTEND})
	require.NoError(t, err)
	list, err := watch.Recv()
	require.NoError(t, err)
	require.Len(t, list.GetTargets(), 1, "the watch survives the rotation")
	_, err = legacy.Register(within, &nspv1.Target{})
	require.Equal(t, codes.InvalidArgument, status.Code(err), "%v", err)

	plain, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer plain.Close()
	_, err = nspv1.NewTargetRegistryClient(plain).Register(within, frontends)
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	counted(t, within, "http://"+c.MetricsAddress+"/metrics", "nsp_handshakes_refused_total 1", "nsp_svid_expiry_timestamp_seconds ")
}

// counted waits until the metrics have the words.
func counted(t *testing.T, ctx context.Context, url string, words ...string) { //nolint:revive // the test comes first
	for _, w := range words {
		require.Eventually(t, func() bool {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
			require.NoError(t, err)
			resp, err := http.DefaultClient.Do(req)
			require.NoError(t, err)
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			return err == nil && bytes.Contains(body, []byte(w))
		}, patience, 10*time.Millisecond, w)
	}
	http.DefaultClient.CloseIdleConnections()
}

// A process that is told to end while it waits for its first SVID does so, and says why it did not start.
func TestStartWithoutSVID(t *testing.T) {
	agent := spiffe.NewAgent(filepath.Join(t.TempDir(), "agent.sock"))
	c := good()
	c.Transport, c.SPIFFESocket, c.Kubeconfig = SPIFFE, agent.Socket(), cluster(t)
	c.Datasource = filepath.Join(t.TempDir(), "registry.db")
	ctx, stop := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer stop()
	err := RunNamespace(ctx, c, slog.New(slog.DiscardHandler))
	require.ErrorContains(t, err, "no SVID from the workload API at "+agent.Socket())
	require.NoFileExists(t, c.Datasource, "leases begin after that")
}
