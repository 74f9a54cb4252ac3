package listener

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A dead socket is removed; a live one, a file, and what another user has locked away are named.
func TestUnix(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path("dead")})
	require.NoError(t, err)
	dead.SetUnlinkOnClose(false)
	require.NoError(t, dead.Close())
	l, err := Unix(t.Context(), path("dead"))
	require.NoError(t, err)
	_, err = Unix(t.Context(), path("dead"))
	require.ErrorContains(t, err, "another process listens")
	require.NoError(t, l.Close())
	l, err = Unix(t.Context(), path("dead"))
	require.NoError(t, err)
	require.NoError(t, l.Close())

	require.NoError(t, os.WriteFile(path("file"), []byte("precious"), 0o600))
	_, err = Unix(t.Context(), path("file"))
	require.ErrorContains(t, err, "is no socket")
	_, err = Unix(t.Context(), path("none/sock"))
	require.ErrorIs(t, err, syscall.ENOENT)

	if os.Getuid() == 0 {
		require.NoError(t, os.Chown(path("file"), 12345, -1))
		_, err = Unix(t.Context(), path("file"))
		require.ErrorContains(t, err, "owned by user 12345")
	}
}

// Both serve until the context ends, whatever is open then, and say when they cannot.
func TestServe(t *testing.T) {
	h := health.NewServer()
	for name, serve := range map[string]func(context.Context, net.Listener) error{
		"gRPC": func(ctx context.Context, l net.Listener) error {
			s := grpc.NewServer()
			grpc_health_v1.RegisterHealthServer(s, h)
			return ServeGRPC(ctx, s, l)
		},
		"HTTP": func(ctx context.Context, l net.Listener) error {
			return ServeHTTP(ctx, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(http.StatusOK)
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
			}), l)
		},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- serve(ctx, l) }()
			broken := open(t, name, l.Addr().String())
			cancel()
			require.NoError(t, <-ended)
			require.Error(t, broken())
			require.Error(t, serve(t.Context(), l), "it is closed")
		})
	}
}

// open asks for something that goes on, and returns what waits for its end.
func open(t *testing.T, name, address string) (broken func() error) {
	t.Helper()
	if name == "HTTP" {
		transport := &http.Transport{}
		t.Cleanup(transport.CloseIdleConnections)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address, http.NoBody)
		require.NoError(t, err)
		resp, err := (&http.Client{Transport: transport}).Do(req) //nolint:bodyclose // by what is returned
		require.NoError(t, err)
		return func() error {
			defer resp.Body.Close()
			_, err := io.ReadAll(resp.Body)
			return err
		}
	}
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	watch, err := grpc_health_v1.NewHealthClient(conn).Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	require.NoError(t, err)
	_, err = watch.Recv()
	require.NoError(t, err)
	return func() error { _, err := watch.Recv(); return err }
}
