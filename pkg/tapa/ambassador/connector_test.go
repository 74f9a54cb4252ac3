package ambassador

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"

	ambassadorv1 "github.com/nordix/meridio-nsp/api/ambassador/v1"
	"github.com/nordix/meridio-nsp/pkg/stream"
	"github.com/nordix/meridio-nsp/pkg/tapa"
	"github.com/nordix/meridio-nsp/pkg/tapa/tap"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 10 * time.Second

var one = stream.Key{Namespace: "red", Trench: "a", Conduit: "c", Name: "one"}

// server is a TAPA whose closes happen when the test says so.
type server struct {
	ambassadorv1.UnimplementedTapServer
	mu      sync.Mutex
	list    map[stream.Key]ambassadorv1.StreamStatus_Status
	changed chan struct{}
	calls   []string
}

func (s *server) Open(_ context.Context, in *ambassadorv1.Stream) (*emptypb.Empty, error) {
	s.set(tap.Key(in, "red"), ambassadorv1.StreamStatus_OPEN, "open")
	return &emptypb.Empty{}, nil
}

func (s *server) Close(context.Context, *ambassadorv1.Stream) (*emptypb.Empty, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, "close")
	return &emptypb.Empty{}, nil
}

func (s *server) set(k stream.Key, status ambassadorv1.StreamStatus_Status, call ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, call...)
	s.list[k] = status
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *server) drop(k stream.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.list, k)
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *server) Watch(filter *ambassadorv1.Stream, out grpc.ServerStreamingServer[ambassadorv1.StreamResponse]) error {
	for {
		r := &ambassadorv1.StreamResponse{}
		s.mu.Lock()
		for k, status := range s.list {
			if filter.GetName() == "" || filter.GetName() == k.Name {
				r.StreamStatus = append(r.StreamStatus, &ambassadorv1.StreamStatus{Stream: tap.Stream(k), Status: status})
			}
		}
		changed := s.changed
		s.mu.Unlock()
		if err := out.Send(r); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-out.Context().Done():
			return nil
		}
	}
}

func (s *server) said() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

func serve(t *testing.T, socket string) (*server, func()) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	s := &server{list: map[stream.Key]ambassadorv1.StreamStatus_Status{}, changed: make(chan struct{})}
	g := grpc.NewServer()
	ambassadorv1.RegisterTapServer(g, s)
	done := make(chan struct{})
	go func() { defer close(done); _ = g.Serve(l) }()
	stop := func() { g.Stop(); <-done }
	t.Cleanup(stop)
	return s, stop
}

func connector(t *testing.T, socket string) *Connector {
	t.Helper()
	c, err := New(Config{Socket: socket, Namespace: "red", Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(c.Stop)
	return c
}

// Close returns when the stream is gone from the TAPA's list, not when the TAPA has answered.
func TestCloseWaits(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	s, _ := serve(t, socket)
	c := connector(t, socket)
	require.NoError(t, c.Open(t.Context(), one))
	closed := make(chan error, 1)
	go func() { closed <- c.Close(t.Context(), one) }()
	require.Eventually(t, func() bool { return slices.Equal(s.said(), []string{"open", "close"}) }, patience, time.Millisecond)
	s.set(one, ambassadorv1.StreamStatus_UNAVAILABLE)
	select {
	case err := <-closed:
		t.Fatalf("it is still listed: %v", err)
	case <-time.After(20 * time.Millisecond): // It can only be seen not to happen.
	}
	s.drop(one)
	require.NoError(t, <-closed)
	require.NoError(t, c.Close(t.Context(), one), "what is not open is closed")
}

// A stream that stays listed without being open is a ghost; one that stays open is not closed.
func TestCloseOfAGhost(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	s, _ := serve(t, socket)
	c := connector(t, socket)
	brief := func() context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	s.set(one, ambassadorv1.StreamStatus_OPEN)
	require.Error(t, c.Close(brief(), one))
	s.set(one, ambassadorv1.StreamStatus_UNAVAILABLE)
	require.NoError(t, c.Close(brief(), one))
}

// Watch tells every list, and ends with the TAPA; the next one finds the TAPA that came after it.
func TestWatch(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	s, stop := serve(t, socket)
	c := connector(t, socket)
	lists := make(chan map[stream.Key]tapa.Status, 10)
	watch := func() chan error {
		ended := make(chan error, 1)
		go func() { ended <- c.Watch(t.Context(), func(l map[stream.Key]tapa.Status) { lists <- l }) }()
		return ended
	}
	ended := watch()
	require.Empty(t, <-lists)
	s.set(one, ambassadorv1.StreamStatus_UNDEFINED)
	require.Equal(t, map[stream.Key]tapa.Status{one: tapa.Undefined}, <-lists)
	s.set(one, 17)
	require.Equal(t, map[stream.Key]tapa.Status{one: tapa.Unavailable}, <-lists)
	stop()
	require.Error(t, <-ended)
	serve(t, socket)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for ctx.Err() == nil {
			_ = c.Watch(ctx, func(l map[stream.Key]tapa.Status) { lists <- l })
		}
		close(lists)
	}()
	require.Empty(t, <-lists)
	cancel()
	for range lists {
	}
}

// What is the matter with the socket is said in words.
func TestUnreachable(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	require.NoError(t, os.WriteFile(plain, nil, 0o600))
	dead := filepath.Join(dir, "dead")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dead})
	require.NoError(t, err)
	l.SetUnlinkOnClose(false)
	require.NoError(t, l.Close())
	for path, says := range map[string]string{
		filepath.Join(dir, "missing"): "is not there",
		plain:                         "is no socket",
		dead:                          "nobody listens",
	} {
		t.Run(filepath.Base(path), func(t *testing.T) {
			c := connector(t, path)
			require.ErrorContains(t, c.Watch(t.Context(), nil), says)
			require.ErrorContains(t, c.Open(t.Context(), one), says)
			require.ErrorContains(t, c.Close(t.Context(), one), says)
		})
	}
}
