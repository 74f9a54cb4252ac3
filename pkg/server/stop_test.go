package server

import (
	"context"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
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

// Who has begun and says no more does not hold up the end: a call without its message, a connection without a greeting.
func TestStopWaitsForNobodyWhoIsSilent(t *testing.T) {
	n := start(t, setup{})
	call, err := n.dial().NewStream(n.ctx(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, nspv1.TargetRegistry_Register_FullMethodName)
	require.NoError(t, err)
	watch, err := n.dial().NewStream(n.ctx(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, targetpoolv1.TargetPool_Watch_FullMethodName)
	require.NoError(t, err)
	silent, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", n.addr)
	require.NoError(t, err)
	defer silent.Close()
	require.Eventually(t, func() bool { return n.arriving() == 2 }, patience, time.Millisecond)
	n.register(n.dial(), registration(x1, 1, "172.16.0.1/24"))
	require.Equal(t, 2, n.arriving())

	require.NoError(t, n.stop())
	require.Equal(t, codes.Canceled, status.Code(call.RecvMsg(&emptypb.Empty{})))
	require.Equal(t, codes.Unavailable, status.Code(watch.RecvMsg(&emptypb.Empty{})))
	_, _ = io.Copy(io.Discard, silent) // it is closed
	require.Zero(t, n.arriving())
}

// arriving are those who have begun and not said what they want.
func (n *nsp) arriving() int {
	n.server.arrivals.mu.Lock()
	defer n.server.arrivals.mu.Unlock()
	return len(n.server.arrivals.end)
}

// A call whose message does not come ends by itself, be it a watch or not, and one that its caller gives up is not remembered.
func TestCallWithoutItsMessage(t *testing.T) {
	t.Parallel() // it takes askWithin
	n := start(t, setup{})
	ask := func(ctx context.Context, method string) grpc.ClientStream {
		s, err := n.dial().NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
		require.NoError(t, err)
		return s
	}
	open := func(ctx context.Context) grpc.ClientStream {
		return ask(ctx, nspv1.TargetRegistry_Register_FullMethodName)
	}
	watch := ask(n.ctx(), nspv1.TargetRegistry_Watch_FullMethodName)
	ctx, giveUp := context.WithCancel(n.ctx())
	open(ctx)
	require.Eventually(t, func() bool { return n.arriving() == 1 }, patience, time.Millisecond)
	giveUp()
	require.Eventually(t, func() bool { return n.arriving() == 0 }, patience, time.Millisecond)
	require.Equal(t, codes.Canceled, status.Code(open(n.ctx()).RecvMsg(&emptypb.Empty{})))
	require.Equal(t, codes.DeadlineExceeded, status.Code(watch.RecvMsg(&emptypb.Empty{})))
	require.Zero(t, n.arriving())
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
