package server

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	"github.com/nordix/meridio-nsp/pkg/registry"
)

// At the end watches are told to connect again, and a Register that is under way is finished.
func TestGracefulStop(t *testing.T) {
	var hold atomic.Bool
	writing, release := make(chan struct{}), make(chan struct{})
	n := start(t, setup{store: func(registry.Batch) error {
		if hold.CompareAndSwap(true, false) {
			close(writing)
			<-release
		}
		return nil
	}})
	conn := n.dial()
	lb, lists, tapa := n.feed(conn, nil), n.legacy(conn, &nspv1.Target{}), n.assignments(conn, pod("web-0"), nil)
	n.committed(lb)
	require.Empty(t, n.next(lists))
	require.Empty(t, n.streams(tapa))

	hold.Store(true)
	registered, stopped := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := nspv1.NewTargetRegistryClient(conn).Register(n.ctx(), registration(x1, 1, "172.16.0.1/24"))
		registered <- err
	}()
	<-writing
	go func() { stopped <- n.stop() }()

	require.Equal(t, codes.Unavailable, status.Code(lb.commit()))
	_, err := lists.Recv()
	require.Equal(t, codes.Unavailable, status.Code(err))
	_, err = tapa.Recv()
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.ErrorContains(t, err, "connect again")
	close(release)
	require.NoError(t, <-registered)
	require.NoError(t, <-stopped)
}

func TestHealth(t *testing.T) {
	n := start(t, setup{})
	client := grpc_health_v1.NewHealthClient(n.dial(from(77)))
	for _, want := range []grpc_health_v1.HealthCheckResponse_ServingStatus{
		grpc_health_v1.HealthCheckResponse_NOT_SERVING, grpc_health_v1.HealthCheckResponse_SERVING,
	} {
		for _, service := range []string{"", "Startup", "Readiness", "Liveness"} {
			resp, err := client.Check(n.ctx(), &grpc_health_v1.HealthCheckRequest{Service: service})
			require.NoError(t, err)
			require.Equal(t, want, resp.GetStatus(), service)
		}
		n.server.Ready()
	}
	_, err := client.Check(n.ctx(), &grpc_health_v1.HealthCheckRequest{Service: "nobody"})
	require.Equal(t, codes.NotFound, status.Code(err))
}
