package play

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
)

// cut is a registry whose watches bring one list and then nothing.
type cut struct {
	nspv1.UnimplementedTargetRegistryServer
}

func (*cut) Watch(_ *nspv1.Target, ss grpc.ServerStreamingServer[nspv1.TargetResponse]) error {
	if err := ss.Send(&nspv1.TargetResponse{}); err != nil {
		return err
	}
	<-ss.Context().Done()
	return nil
}

// TestLegacyLBWakesWhenItsWatchBreaks: who waits for the end of a watch hears of it, although no list follows.
func TestLegacyLBWakesWhenItsWatchBreaks(t *testing.T) {
	listener := bufconn.Listen(1 << 16)
	server := grpc.NewServer()
	nspv1.RegisterTargetRegistryServer(server, &cut{})
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	conn, err := grpc.NewClient("passthrough:///bufconn", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	require.NoError(t, err)
	defer conn.Close()

	lb := NewLegacyLB(conn, "trench-a", "conduit-a", "stream-a")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	ended := make(chan error, 1)
	running, stop := context.WithCancel(t.Context())
	go func() { ended <- lb.Run(running) }()
	require.NoError(t, lb.WaitFor(ctx, (*LegacyLB).Live))

	waiting := make(chan struct{})
	lost := make(chan error, 1)
	go func() {
		first := true
		lost <- lb.WaitFor(ctx, func(lb *LegacyLB) bool {
			if first {
				first = false
				close(waiting)
				return false
			}
			return !lb.Live()
		})
	}()
	<-waiting
	// The server ends its watch and is gone, so that no later list can be what wakes the waiter.
	server.Stop()
	require.NoError(t, <-lost)
	stop()
	require.NoError(t, <-ended)
}
