package server

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/pool"
	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/registry/memory"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

const own, epoch = "red", "this-run"

// patience bounds what should take milliseconds, on a machine that is busy with other things too.
const patience = 4 * time.Minute

var x1, x2 = key("x1"), key("x2")

func key(name string) stream.Key {
	return stream.Key{Namespace: own, Trench: "trench-a", Conduit: "conduit-a", Name: name}
}

// setup is what differs between tests.
type setup struct {
	entries   []*registry.Entry
	unsynced  bool
	heartbeat time.Duration
	mode      auth.Mode
	// edit changes the configuration of the server; optional.
	edit func(*Config)
	// opened is Config.Opened.
	opened chan struct{}
	// store sees every batch before it is written.
	store func(registry.Batch) error
}

// nsp is a real server on loopback over a real engine and registry.
type nsp struct {
	*testing.T
	engine   *engine.Engine
	registry *registry.Registry
	server   *Server
	// configuration is what nsp.v1.ConfigurationManager tells; nothing at first.
	configuration *Configuration
	seen          *observer
	log           *buffer
	addr          string
	wanted        []string
	// queued counts those who wait for an identifier.
	queued atomic.Int64
	// stop ends the server alone, once, and returns what Serve returned.
	stop func() error
}

// late breaks the circle of registry and engine.
type late struct{ *engine.Engine }

func start(t *testing.T, s setup) *nsp {
	store := memory.New()
	require.NoError(t, store.Write(t.Context(), registry.Batch{Put: s.entries}))
	store.Fail = s.store
	n := &nsp{T: t, seen: newObserver(), log: &buffer{}, configuration: NewConfiguration()}
	sink := &late{}
	n.registry = registry.New(registry.Config{
		Store: store, Sink: sink, Namespace: own, Timeout: time.Hour, Observe: func(r registry.Round) { n.queued.Store(int64(r.Queued)) },
	})
	saved, err := n.registry.Load(t.Context())
	require.NoError(t, err)
	n.engine = engine.New(engine.Config{
		Namespace: own, Namespaces: []string{own}, WantConfig: n.want, Remember: n.registry.Remember,
		Limits: n.registry.SetLimits, Prefer: n.registry.Prefer,
	}, saved.Entries)
	sink.Engine = n.engine
	for _, trench := range n.wanted {
		n.configure(trench)
	}
	cfg := Config{
		Engine: n.engine, Targets: n.engine, Registry: n.registry, Relay: n.registry, Configuration: n.configuration, Opened: s.opened,
		Reservations: n.registry,
		Namespace:    own, Epoch: epoch, Auth: s.mode, Heartbeat: s.heartbeat,
		Grace: patience, Observer: n.seen, Log: slog.New(slog.NewTextHandler(n.log, nil)),
	}
	if s.mode == "" {
		cfg.Auth = auth.PeerAddress
	}
	if s.edit != nil {
		s.edit(&cfg)
	}
	n.server = New(cfg)
	if !s.unsynced {
		n.engine.Post(engine.NamespaceSynced{Namespace: own})
	}
	n.run()
	return n
}

// want is called by the engine, also while that is being made of what was stored.
func (n *nsp) want(trench string) {
	if n.engine == nil {
		n.wanted = append(n.wanted, trench)
	} else {
		n.configure(trench)
	}
}

// configure answers for the configuration: every trench has room for many targets.
func (n *nsp) configure(trench string) {
	most := map[stream.Key]uint32{}
	for _, name := range []string{"x1", "x2"} {
		most[stream.Key{Namespace: own, Trench: trench, Conduit: "conduit-a", Name: name}] = 100_000
	}
	n.engine.Post(engine.TrenchConfigured{Trench: trench, MaxTargets: most})
}

func (n *nsp) run() {
	l, err := (&net.ListenConfig{}).Listen(n.Context(), "tcp", "127.0.0.1:0")
	require.NoError(n, err)
	n.addr = l.Addr().String()
	stopEngine := background(n.engine.Run)
	stopRegistry := background(n.registry.Run)
	n.stop = sync.OnceValue(background(func(ctx context.Context) error { return n.server.Serve(ctx, pods{l}) }))
	n.Cleanup(func() {
		for _, stop := range []func() error{n.stop, stopRegistry, stopEngine} {
			if err := stop(); err != nil {
				n.Errorf("stopping: %v", err)
			}
		}
	})
}

// background runs something until the returned function is called, which waits for the end.
func background(run func(context.Context) error) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	return func() error {
		cancel()
		return <-ended
	}
}

// pods is a listener on loopback that makes a caller at 127.0.0.N look as if it came from the pod address 10.0.0.N. 127.0.0.1
// stays what it is.
type pods struct{ net.Listener }

func (p pods) Accept() (net.Conn, error) {
	c, err := p.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return podConn{c}, nil
}

type podConn struct{ net.Conn }

func (c podConn) RemoteAddr() net.Addr {
	from := *c.Conn.RemoteAddr().(*net.TCPAddr)
	if !from.IP.Equal(net.IPv4(127, 0, 0, 1)) {
		from.IP = net.IPv4(10, 0, 0, from.IP.To4()[3])
	}
	return &from
}

// dial makes a connection; by default from 127.0.0.1.
func (n *nsp) dial(opts ...grpc.DialOption) *grpc.ClientConn {
	n.Helper()
	conn, err := grpc.NewClient(n.addr, append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	require.NoError(n, err)
	n.Cleanup(func() { _ = conn.Close() })
	return conn
}

// from makes the connection come from the pod address 10.0.0.i.
func from(i int) grpc.DialOption {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(i))}}
	return grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
		return d.DialContext(ctx, "tcp", addr)
	})
}

// ctx ends before the test's own time limit.
func (n *nsp) ctx() context.Context {
	ctx, cancel := context.WithTimeout(n.Context(), patience)
	n.Cleanup(cancel)
	return ctx
}

// settle waits until the engine has taken in all that was posted.
func (n *nsp) settle() {
	n.Helper()
	_, err := n.engine.Pools(n.ctx(), "")
	require.NoError(n, err)
}

// service is a pool of the stream, in which pod i is at 10.0.0.i.
func service(k stream.Key) engine.ServiceSet {
	return engine.ServiceSet{Service: pool.Service{
		Ref: pool.Ref{Namespace: own, Name: k.Name}, UID: "uid-" + k.Name, Type: "ClusterIP", HasSelector: true,
		Created: time.Unix(1000, 0),
		Labels: map[string]string{
			pool.LabelMarker: pool.MarkerValue, pool.LabelTrench: k.Trench, pool.LabelConduit: k.Conduit, pool.LabelStream: k.Name,
		},
	}}
}

// member is a pod in a slice.
type member struct {
	i     int
	addr  string
	ready bool
}

func ready(i int) member    { return member{i: i, ready: true} }
func notReady(i int) member { return member{i: i} }

func podAddr(i int) string { return fmt.Sprintf("10.0.%d.%d", i>>8, i&255) }

func slice(k stream.Key, version int, members ...member) engine.SliceSet {
	s := pool.Slice{
		Namespace: own, Name: "slice-" + k.Name, Service: k.Name, Version: uint64(version), AddressType: "IPv4", Changed: time.Now(),
	}
	for _, m := range members {
		if m.addr == "" {
			m.addr = podAddr(m.i)
		}
		s.Endpoints = append(s.Endpoints, pool.Endpoint{
			Addresses: []string{m.addr}, Ready: new(m.ready),
			Target: &pool.TargetRef{Kind: "Pod", Name: fmt.Sprint("pod-", m.i), UID: fmt.Sprint("uid-", m.i)},
		})
	}
	return engine.SliceSet{Slice: s}
}

// observer records what the server does.
type observer struct {
	mu     sync.Mutex
	sent   map[string][]int
	open   map[string]int
	called map[string]int
}

func newObserver() *observer {
	return &observer{sent: map[string][]int{}, open: map[string]int{}, called: map[string]int{}}
}

func (o *observer) Watching(method string) func() {
	o.add(method, 1)
	return func() { o.add(method, -1) }
}

func (o *observer) add(method string, n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.open[method] += n
}

func (o *observer) Sent(method string, bytes int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sent[method] = append(o.sent[method], bytes)
}

func (o *observer) Called(method, code string, _ time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.called[method+" "+code]++
}

// sizes are those of all messages of a method so far.
func (o *observer) sizes(method string) []int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.sent[method])
}

// watching is the number of open watches.
func (o *observer) watching() (total int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, n := range o.open {
		total += n
	}
	return total
}

// buffer is a log that several goroutines write to.
type buffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

// find is the first line that holds all of the words.
func (b *buffer) find(words ...string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	for line := range strings.Lines(b.buf.String()) {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			return line
		}
	}
	return ""
}
