package sidecar

import (
	"context"
	"log/slog"
	"maps"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/stream"
	"github.com/nordix/meridio-nsp/pkg/tapa"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 20 * time.Second

// fakeNSP assigns what the test says, and can be restarted at its address.
type fakeNSP struct {
	targetpoolv1.UnimplementedTargetPoolServer
	*testing.T
	address string
	server  *grpc.Server
	done    chan struct{}

	mu       sync.Mutex
	list     []*targetpoolv1.Assignment
	revision uint64
	changed  chan struct{}
	reports  []*targetpoolv1.Report
	who      *targetpoolv1.Workload
}

func startNSP(t *testing.T) *fakeNSP {
	n := &fakeNSP{T: t, address: "127.0.0.1:0", changed: make(chan struct{})}
	n.start()
	t.Cleanup(n.stop)
	return n
}

func (n *fakeNSP) start() {
	n.Helper()
	l, err := net.Listen("tcp", n.address)
	require.NoError(n, err)
	n.address = l.Addr().String()
	n.server, n.done = grpc.NewServer(), make(chan struct{})
	targetpoolv1.RegisterTargetPoolServer(n.server, n)
	server, done := n.server, n.done
	go func() { defer close(done); _ = server.Serve(l) }()
}

func (n *fakeNSP) stop() { n.server.Stop(); <-n.done }

func (n *fakeNSP) assign(streams ...*targetpoolv1.Stream) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.list = nil
	for _, s := range streams {
		n.list = append(n.list, &targetpoolv1.Assignment{Stream: s})
	}
	n.revision++
	close(n.changed)
	n.changed = make(chan struct{})
}

// Watch implements targetpoolv1.TargetPoolServer.
func (n *fakeNSP) Watch(s grpc.BidiStreamingServer[targetpoolv1.TargetPoolWatchRequest, targetpoolv1.TargetPoolWatchResponse]) error {
	go func() {
		for {
			r, err := s.Recv()
			if err != nil {
				return
			}
			n.mu.Lock()
			if r.GetWorkload() != nil {
				n.who = r.GetWorkload()
			}
			n.reports = append(n.reports, r.GetReport())
			n.mu.Unlock()
		}
	}()
	for {
		n.mu.Lock()
		m := &targetpoolv1.TargetPoolWatchResponse{
			Version: &targetpoolv1.Version{Epoch: "e", Revision: n.revision}, Assignments: &targetpoolv1.Assignments{Items: n.list},
		}
		changed := n.changed
		n.mu.Unlock()
		if err := s.Send(m); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-s.Context().Done():
			return nil
		}
	}
}

// reported are the owners in the latest report.
func (n *fakeNSP) reported() map[string][]targetpoolv1.Owner {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := map[string][]targetpoolv1.Owner{}
	if len(n.reports) > 0 {
		for _, o := range n.reports[len(n.reports)-1].GetOwners() {
			out[o.GetStream().GetName()] = o.GetOwners()
		}
	}
	return out
}

// fakeConnector opens at once.
type fakeConnector struct {
	mu      sync.Mutex
	open    map[stream.Key]tapa.Status
	changed chan struct{}
	opens   int
	closes  int
}

func newConnector() *fakeConnector {
	return &fakeConnector{open: map[stream.Key]tapa.Status{}, changed: make(chan struct{})}
}

func (f *fakeConnector) set(change func()) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	close(f.changed)
	f.changed = make(chan struct{})
	return nil
}

// Open implements tapa.Connector.
func (f *fakeConnector) Open(_ context.Context, k stream.Key) error {
	return f.set(func() { f.open[k] = tapa.Open; f.opens++ })
}

// Close implements tapa.Connector.
func (f *fakeConnector) Close(_ context.Context, k stream.Key) error {
	return f.set(func() { delete(f.open, k); f.closes++ })
}

// Watch implements tapa.Connector.
func (f *fakeConnector) Watch(ctx context.Context, tell func(map[stream.Key]tapa.Status)) error {
	for {
		f.mu.Lock()
		list, changed := maps.Clone(f.open), f.changed
		f.mu.Unlock()
		tell(list)
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (f *fakeConnector) names() map[string]bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := map[string]bool{}
	for k := range f.open {
		out[k.Trench+"/"+k.Name] = true
	}
	return out
}

// running is a sidecar that runs.
type running struct {
	*testing.T
	*Sidecar
	stop func()
}

func configFor(t *testing.T, n *fakeNSP) Config {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	cfg := Config{
		PodName: "web-0", PodNamespace: "red", PodUID: "u1", NSPAddress: n.address, Credentials: insecure.NewCredentials(),
		TapSocket: file("tap"), Connector: "fake", StateFile: file("state"), HealthSocket: file("health"),
		AdminSocket: file("admin"), MetricsAddress: "127.0.0.1:0", HealthAddress: "127.0.0.1:0",
		ShutdownTimeout: 5 * time.Second, OperationTimeout: 5 * time.Second,
	}
	cfg.Complete()
	require.NoError(t, cfg.Validate())
	return cfg
}

func start(t *testing.T, cfg Config, c tapa.Connector) *running {
	t.Helper()
	state, err := OpenState(cfg.StateFile, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	s, err := New(cfg, state, c, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-done)
		state.Close()
	})
	t.Cleanup(stop)
	return &running{t, s, stop}
}

func eventually(t *testing.T, what func() bool) {
	t.Helper()
	require.Eventually(t, what, patience, time.Millisecond)
}

func streamOf(trench, name string) *targetpoolv1.Stream {
	return &targetpoolv1.Stream{Namespace: "red", Trench: trench, Conduit: "c", Name: name}
}
