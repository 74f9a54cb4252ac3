package nsp

import (
	"context"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/test/spiffe"
)

// workloadOf runs an agent that has an SVID of the path and trusts all of the authorities.
func workloadOf(t *testing.T, path string, own *spiffe.Authority, friends ...*spiffe.Authority) *spiffe.Agent {
	a := spiffe.NewAgent(filepath.Join(t.TempDir(), "agent.sock"))
	require.NoError(t, a.Start(t.Context()))
	t.Cleanup(func() {
		if err := a.Stop(); err != nil {
			t.Errorf("stopping the agent: %v", err)
		}
	})
	s, err := own.SVID(path, time.Hour)
	require.NoError(t, err)
	bundles := []*x509bundle.Bundle{own.Bundle()}
	for _, f := range friends {
		bundles = append(bundles, f.Bundle())
	}
	require.NoError(t, a.Issue(s, bundles...))
	return a
}

// keepUp runs a process until the test ends.
func keepUp(t *testing.T, run func(context.Context) error) {
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() {
		if err := run(ctx); err != nil {
			t.Errorf("a process ended: %v", err)
		}
	})
	t.Cleanup(func() { stop(); running.Wait() })
}

// Under mtls the same account of another trust domain is somebody else, and a trench process of one is no trench process: those of a
// domain that the bundles verify are refused by name, those of any other at the handshake.
func TestOnlyTheOwnTrustDomainCounts(t *testing.T) {
	home, friend, foreign := newDomain(t, "example.org"), newDomain(t, "friend.org"), newDomain(t, "foreign.org")
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	c := good()
	c.Transport, c.SPIFFESocket, c.Kubeconfig = "", workloadOf(t, "/ns/red/sa/nsp", home, friend).Socket(), cluster(t)
	c.Port, c.MetricsAddress = unused(t), ""
	c.HealthSocket, c.Datasource = filepath.Join(t.TempDir(), "health.sock"), filepath.Join(t.TempDir(), "registry.db")
	c.TrenchProcessAccounts = []string{"red/trench"}
	require.NoError(t, c.Validate())
	keepUp(t, func(ctx context.Context) error { return RunNamespace(ctx, c, quiet) })
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(c.Port))

	ask := func(agent *spiffe.Agent, call func(context.Context, *grpc.ClientConn) error) error {
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(openSource(t, agent).Client()))
		require.NoError(t, err)
		defer conn.Close()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		return call(ctx, conn)
	}
	ready := func(ctx context.Context, conn *grpc.ClientConn) error {
		_, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: "Liveness"}, grpc.WaitForReady(true))
		return err
	}
	require.NoError(t, ask(workloadOf(t, "/ns/red/sa/web", home), ready))
	register := func(ctx context.Context, conn *grpc.ClientConn) error {
		_, err := nspv1.NewTargetRegistryClient(conn).Register(ctx, &nspv1.Target{
			Ips: []string{"172.16.0.1/24"}, Context: map[string]string{"identifier": "1"},
			Stream: &nspv1.Stream{Name: "x1", Conduit: &nspv1.Conduit{Name: "c", Trench: &nspv1.Trench{Name: "trench-a"}}},
		})
		return err
	}
	relay := func(ctx context.Context, conn *grpc.ClientConn) error {
		_, err := targetpoolv1.NewRelayClient(conn).Restore(ctx, &targetpoolv1.RelayRestoreRequest{Trench: "trench-a"})
		return err
	}
	for name, tt := range map[string]struct {
		call    func(context.Context, *grpc.ClientConn) error
		account string
	}{"a target": {register, "web"}, "a trench process": {relay, "trench"}} {
		path := "/ns/red/sa/" + tt.account
		err := ask(workloadOf(t, path, friend, home), tt.call)
		require.Equal(t, codes.PermissionDenied, status.Code(err), "%s of a friend: %v", name, err)
		require.ErrorContains(t, err, "trust domain", name)
		err = ask(workloadOf(t, path, foreign, home), tt.call)
		require.Equal(t, codes.Unavailable, status.Code(err), "%s of a stranger: %v", name, err)
	}
	err := ask(workloadOf(t, "/ns/red/sa/web", home), relay)
	require.ErrorContains(t, err, "--trench-process-accounts")
}

func newDomain(t *testing.T, name string) *spiffe.Authority {
	a, err := spiffe.NewAuthority(name)
	require.NoError(t, err)
	return a
}
