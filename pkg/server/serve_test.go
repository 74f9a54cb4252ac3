package server

import (
	"log/slog"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
)

// A listener that fails ends the server as the end of its context does: nobody is left watching one that is not there.
func TestListenerFails(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := New(Config{Observer: newObserver(), Log: slog.New(slog.DiscardHandler)})
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(t.Context(), l) }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	watch, err := grpc_health_v1.NewHealthClient(conn).Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	require.NoError(t, err)
	_, err = watch.Recv()
	require.NoError(t, err)
	require.NoError(t, l.Close())
	require.ErrorIs(t, <-ended, net.ErrClosed)
	for err == nil {
		_, err = watch.Recv()
	}
}
