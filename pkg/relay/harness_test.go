package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/pool"
	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/registry/memory"
	"github.com/nordix/meridio-nsp/pkg/server"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

const own, trench = "red", "trench-a"

// patience bounds what should take milliseconds, on a machine that is busy with other things too.
const patience = time.Minute

var x1 = key("x1")

func key(name string) stream.Key {
	return stream.Key{Namespace: own, Trench: trench, Conduit: "conduit-a", Name: name}
}

func target(id int) registry.Target {
	return registry.Target{
		Scope: trench, Stream: x1, IPs: []string{fmt.Sprintf("172.16.0.%d/24", id)},
		Context: map[string]string{"identifier": strconv.Itoa(id)},
	}
}

func as(t registry.Target, s registry.Status) registry.Target {
	t.Status = s
	return t
}

// frontend registers as a frontend of Meridio 1.x does.
func frontend(host string) registry.Target {
	return registry.Target{Type: registry.Frontend, IPs: []string{host}, Context: map[string]string{"identifier": host}}
}

func from(id int) registry.Caller {
	return registry.Caller{Peer: netip.AddrFrom4([4]byte{10, 0, 0, byte(id)})}
}

// background runs something; what it returns stops it and waits.
func background(run func(context.Context) error) func() error {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	return sync.OnceValue(func() error { cancel(); return <-done })
}

type nobody struct{}

func (nobody) Watching(string) func()               { return func() {} }
func (nobody) Sent(string, int)                     {}
func (nobody) Called(string, string, time.Duration) {}

// late breaks the circle of registry and engine.
type late struct{ *engine.Engine }

// nsp is a namespace process: real engine, registry and server on a network in memory. It can be killed, restarted and cut off.
type nsp struct {
	*testing.T
	timeout time.Duration
	// heartbeat is that of the server.
	heartbeat time.Duration
	store     *memory.Store
	runs      int
	// rebuilding is set where the next run has lost its registrations.
	rebuilding bool
	// world is posted to each new engine.
	world    []engine.Event
	engine   *engine.Engine
	registry *registry.Registry
	kill     func()

	mu       sync.Mutex
	listener *bufconn.Listener
	cut      bool
	hanging  chan struct{}
	conns    []net.Conn
}

func newNSP(t *testing.T) *nsp {
	n := &nsp{T: t, store: memory.New(), timeout: time.Hour, world: []engine.Event{
		engine.NamespaceSynced{Namespace: own}, engine.TrenchConfigured{Trench: trench},
	}}
	n.Cleanup(n.stop)
	return n
}

func (n *nsp) start() *nsp {
	n.runs++
	sink := &late{}
	n.registry = registry.New(registry.Config{Store: n.store, Sink: sink, Namespace: own, Timeout: n.timeout})
	saved, err := n.registry.Load(n.Context())
	require.NoError(n, err)
	n.engine = engine.New(engine.Config{
		Namespace: own, Namespaces: []string{own}, Remember: n.registry.Remember, Rebuilding: n.rebuilding,
	}, saved.Entries)
	sink.Engine = n.engine
	n.engine.Post(n.world...)
	srv := server.New(server.Config{
		Engine: n.engine, Targets: n.engine, Registry: n.registry, Relay: n.registry, Namespace: own,
		Epoch: fmt.Sprint("run ", n.runs), Auth: auth.None, Heartbeat: n.heartbeat, Observer: nobody{},
		Log: slog.New(slog.DiscardHandler),
	})
	l := bufconn.Listen(1 << 16)
	n.mu.Lock()
	n.listener = l
	n.mu.Unlock()
	stops := []func() error{
		background(n.engine.Run), background(n.registry.Run),
		background(func(ctx context.Context) error { return srv.Serve(ctx, l) }),
	}
	n.kill = sync.OnceFunc(func() {
		n.mu.Lock()
		n.listener = nil
		n.mu.Unlock()
		for _, stop := range slices.Backward(stops) {
			_ = stop()
		}
	})
	return n
}

func (n *nsp) stop() {
	if n.kill != nil {
		n.kill()
	}
}

// post makes events known to this run and to later ones.
func (n *nsp) post(events ...engine.Event) {
	n.world = append(n.world, events...)
	n.engine.Post(events...)
}

// partition cuts the network, or mends it.
func (n *nsp) partition(cut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut = cut
	if cut {
		for _, c := range n.conns {
			_ = c.Close()
		}
		n.conns = nil
	}
}

func (n *nsp) dial(ctx context.Context, _ string) (net.Conn, error) {
	n.mu.Lock()
	l, cut := n.listener, n.cut
	n.mu.Unlock()
	if l == nil || cut {
		return nil, errors.New("connection refused")
	}
	c, err := l.DialContext(ctx)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cut {
		_ = c.Close()
		return nil, errors.New("connection refused")
	}
	n.conns = append(n.conns, c)
	return &stalling{Conn: c, nsp: n, closed: make(chan struct{})}, nil
}

// hang keeps what is sent from arriving, or lets it go on.
func (n *nsp) hang(yes bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if yes {
		n.hanging = make(chan struct{})
	} else {
		close(n.hanging)
		n.hanging = nil
	}
}

// stalling is a connection on which nothing arrives while the process hangs.
type stalling struct {
	net.Conn
	nsp    *nsp
	once   sync.Once
	closed chan struct{}
}

func (s *stalling) Close() error {
	s.once.Do(func() { close(s.closed) })
	return s.Conn.Close()
}

func (s *stalling) Read(b []byte) (int, error) {
	k, err := s.Conn.Read(b)
	s.nsp.mu.Lock()
	hanging := s.nsp.hanging
	s.nsp.mu.Unlock()
	if hanging != nil {
		select {
		case <-hanging:
		case <-s.closed:
		}
	}
	return k, err
}

// process is a relaying trench process.
type process struct {
	*testing.T
	*Relay
	nsp  *nsp
	stop func()
}

func (n *nsp) relay(store registry.Store, edits ...func(*Config)) *process {
	cfg := Config{
		Address: "passthrough:///nsp", Credentials: insecure.NewCredentials(), Namespace: own, Trench: trench, Store: store,
		Timeout: time.Hour, RetryMax: 20 * time.Millisecond,
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(n.dial)},
	}
	for _, edit := range edits {
		edit(&cfg)
	}
	p := &process{T: n.T, Relay: New(cfg), nsp: n}
	_, err := p.Load(n.Context())
	require.NoError(n, err)
	stop := background(p.Relay.Run)
	p.stop = sync.OnceFunc(func() { require.NoError(n, stop()) })
	n.Cleanup(p.stop)
	return p
}

// until waits for a condition of the relay.
func (p *process) until(what string, ok func() bool) {
	p.Helper()
	deadline := time.After(patience)
	for {
		p.mu.Lock()
		moved := p.moved
		p.mu.Unlock()
		if ok() {
			return
		}
		select {
		case <-moved:
		case <-time.After(10 * time.Millisecond):
		case <-deadline:
			require.FailNow(p, "waited too long", what)
		}
	}
}

func (p *process) live() *process {
	p.until("the namespace process is there", p.Live)
	return p
}

func (p *process) away() *process {
	p.until("the namespace process is away", func() bool { return !p.Live() })
	return p
}

// read is what a TAPA of Meridio 1.x does: the first message of a watch.
func (p *process) read(f engine.Filter) []string {
	p.Helper()
	w, err := p.List(p.Context(), f)
	require.NoError(p, err)
	defer w.Close()
	l, _, ok, _ := w.Next()
	require.True(p, ok, "the watch is answered at once")
	return shown(l)
}

// shown is a list in short: addresses, and ! where it is DISABLED.
func shown(l *engine.List) []string {
	out := []string{}
	for r := range l.Rows() {
		s := r.Entry.IPs[0]
		if r.Entry.Status != registry.Enabled {
			s += "!"
		}
		out = append(out, s)
	}
	return out
}

var (
	registered = engine.Filter{Status: registry.Any, Trench: trench, Conduit: "conduit-a", Stream: "x1"}
	active     = engine.Filter{Status: registry.Enabled, Trench: trench, Conduit: "conduit-a", Stream: "x1"}
	frontends  = engine.Filter{Type: registry.Frontend, Status: registry.Any}
)

// open is the open sequence of a TAPA.
func (p *process) open(ids ...int) {
	p.Helper()
	for _, id := range ids {
		require.NoError(p, p.Register(p.Context(), as(target(id), registry.Disabled), from(id)))
		require.NoError(p, p.Register(p.Context(), target(id), from(id)))
	}
}

// follow collects all lists of a watch until it is stopped.
func (p *process) follow(f engine.Filter) (stop func() [][]string) {
	w, err := p.List(p.Context(), f)
	require.NoError(p, err)
	var all [][]string
	end := background(func(ctx context.Context) error {
		for {
			l, _, ok, more := w.Next()
			if ok {
				all = append(all, shown(l))
			}
			select {
			case <-more:
			case <-ctx.Done():
				return nil
			}
		}
	})
	return sync.OnceValue(func() [][]string {
		_ = end()
		if l, _, ok, _ := w.Next(); ok {
			all = append(all, shown(l))
		}
		w.Close()
		return all
	})
}

// pods is a pool of x1 with the pods of these IDs, ready or not.
func pods(version int, is bool, ids ...int) []engine.Event {
	sl := pool.Slice{
		Namespace: own, Name: "slice", Service: "x1", Version: uint64(version), AddressType: "IPv4", Changed: time.Unix(2000, 0),
	}
	for _, i := range ids {
		sl.Endpoints = append(sl.Endpoints, pool.Endpoint{
			Addresses: []string{from(i).Peer.String()}, Ready: new(is),
			Target: &pool.TargetRef{Kind: "Pod", Name: fmt.Sprint("pod-", i), UID: fmt.Sprint("uid-", i)},
		})
	}
	return []engine.Event{
		engine.ServiceSet{Service: pool.Service{
			Ref: pool.Ref{Namespace: own, Name: "x1"}, UID: "uid-x1", Type: "ClusterIP", HasSelector: true, Created: time.Unix(1000, 0),
			Labels: map[string]string{
				pool.LabelMarker: pool.MarkerValue, pool.LabelTrench: trench, pool.LabelConduit: "conduit-a", pool.LabelStream: "x1",
			},
		}},
		engine.SliceSet{Slice: sl},
	}
}
