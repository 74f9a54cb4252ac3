package iface

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nordix/meridio-nsp/pkg/stream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// journal has what happened, in order, from all fakes.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) add(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, fmt.Sprintf(format, args...))
}

func (j *journal) take() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	lines := j.lines
	j.lines = nil
	return lines
}

// fakeKernel is a layout. net1 is 1, lo is 2.
type fakeKernel struct {
	*journal
	mu    sync.Mutex
	has   layout
	net1  []netip.Prefix
	fails map[kind]int // so many removals fail
	dead  bool
}

var errDead = errors.New("killed")

func (k *fakeKernel) link(name string) (int, error) {
	return map[string]int{"net1": 1, "lo": 2}[name], nil
}

func (k *fakeKernel) addresses(link int) ([]netip.Prefix, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if link == 1 {
		return k.net1, nil
	}
	return nil, nil
}

func (k *fakeKernel) read(int) (layout, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.dead {
		return nil, errDead
	}
	return maps.Clone(k.has), nil
}

func (k *fakeKernel) apply(s step) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s.remove && k.fails[s.item.kind] > 0 {
		k.fails[s.item.kind]--
		return errors.New("it does not go")
	}
	if s.remove {
		delete(k.has, s.item)
		k.add("del %s", s.item)
		return nil
	}
	if s.item.kind == route {
		maps.DeleteFunc(k.has, func(i item, _ bool) bool { return i.place() == s.item.place() })
	}
	k.has[s.item] = true
	k.add("add %s", s.item)
	return nil
}

func (k *fakeKernel) close() {}

// vips are those on the link.
func (k *fakeKernel) vips() map[string]bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := map[string]bool{}
	for i := range k.has {
		if i.kind == address || i.kind == anycast {
			out[i.prefix.String()] = true
		}
	}
	return out
}

func (k *fakeKernel) size() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.has)
}

// entry is one registration.
type entry struct {
	id                uint32
	enabled, reserved bool
}

// fakeRegistry is what the registry of the NSP means, for one stream and one target beside others.
type fakeRegistry struct {
	*journal
	mu      sync.Mutex
	entries map[stream.Key]map[string]*entry
	limit   uint32
	stalled bool // calls are not answered
	away    bool // calls fail
	changed chan struct{}
	// longest is the time between two calls of enable, and leases those that a context had left.
	enables []time.Time
	budgets []time.Duration
}

func (r *fakeRegistry) enter(ctx context.Context, call string, k stream.Key) error {
	r.mu.Lock()
	stalled, away := r.stalled, r.away
	r.mu.Unlock()
	if stalled {
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	}
	if away {
		return status.Error(codes.Unavailable, "nobody there")
	}
	r.add("%s %s", call, k.Name)
	return nil
}

func name(addrs []netip.Prefix) string { return fmt.Sprint(texts(addrs)) }

func (r *fakeRegistry) of(k stream.Key) map[string]*entry {
	if r.entries[k] == nil {
		r.entries[k] = map[string]*entry{}
	}
	return r.entries[k]
}

func (r *fakeRegistry) held(k stream.Key, id uint32, but string) bool {
	for who, e := range r.of(k) {
		if who != but && e.id == id && (e.enabled || e.reserved) {
			return true
		}
	}
	return false
}

func (r *fakeRegistry) reserve(ctx context.Context, k stream.Key, addrs []netip.Prefix, wait bool) (uint32, error) {
	for {
		if err := r.enter(ctx, "reserve", k); err != nil {
			return 0, err
		}
		r.mu.Lock()
		e, changed := r.of(k)[name(addrs)], r.changed
		if e != nil && (e.enabled || e.reserved) && e.id <= r.limit {
			defer r.mu.Unlock()
			return e.id, nil
		}
		for id := uint32(1); id <= r.limit; id++ {
			if !r.held(k, id, name(addrs)) {
				defer r.mu.Unlock()
				r.of(k)[name(addrs)] = &entry{id: id, reserved: true}
				return id, nil
			}
		}
		r.mu.Unlock()
		if !wait {
			return 0, status.Error(codes.ResourceExhausted, "all are taken")
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, fmt.Errorf("reserving: %w", ctx.Err())
		}
	}
}

func (r *fakeRegistry) enable(ctx context.Context, k stream.Key, addrs []netip.Prefix, id uint32) error {
	deadline, _ := ctx.Deadline()
	if err := r.enter(ctx, "enable", k); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.enables, r.budgets = append(r.enables, time.Now()), append(r.budgets, time.Until(deadline))
	e := r.of(k)[name(addrs)]
	if e == nil {
		r.of(k)[name(addrs)] = &entry{id: id}
		return nil
	}
	e.reserved = e.reserved && e.id == id
	e.id, e.enabled = id, !r.held(k, id, name(addrs))
	return nil
}

func (r *fakeRegistry) enabled(ctx context.Context, k stream.Key, addrs []netip.Prefix) (uint32, error) {
	if err := r.enter(ctx, "look", k); err != nil {
		return 0, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.of(k)[name(addrs)]; e != nil && e.enabled {
		return e.id, nil
	}
	return 0, nil
}

func (r *fakeRegistry) unregister(ctx context.Context, k stream.Key, addrs []netip.Prefix, _ uint32) error {
	if err := r.enter(ctx, "unregister", k); err != nil {
		return err
	}
	r.drop(k, name(addrs))
	return nil
}

func (r *fakeRegistry) close() {}

// drop removes an entry, as if its lease had ended.
func (r *fakeRegistry) drop(k stream.Key, who string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.of(k), who)
	close(r.changed)
	r.changed = make(chan struct{})
}

// put has another target hold an identifier.
func (r *fakeRegistry) put(k stream.Key, who string, id uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.of(k)[who] = &entry{id: id, enabled: true}
}

func (r *fakeRegistry) set(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
}

// has is the entry of who; the zero one where there is none.
func (r *fakeRegistry) has(k stream.Key, who []netip.Prefix) entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.of(k)[name(who)]; e != nil {
		return *e
	}
	return entry{}
}

// fakeTrench tells what the test says.
type fakeTrench struct {
	mu      sync.Mutex
	now     map[string]*settings
	changed chan struct{}
}

func (f *fakeTrench) watch(ctx context.Context, trench string, tell func(*settings)) error {
	for {
		f.mu.Lock()
		s, changed := f.now[trench], f.changed
		f.mu.Unlock()
		if s == nil {
			return status.Error(codes.Unavailable, "no such trench process")
		}
		tell(s)
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (f *fakeTrench) set(trench string, s *settings) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now[trench] = s
	close(f.changed)
	f.changed = make(chan struct{})
}

// world is a pod with a connector, in a bubble of time.
type world struct {
	*testing.T
	*journal
	*Connector
	cfg      Config
	kernel   *fakeKernel
	registry *fakeRegistry
	trench   *fakeTrench
	stop     func()
}

var (
	one  = stream.Key{Namespace: "red", Trench: "a", Conduit: "c", Name: "one"}
	two  = stream.Key{Namespace: "red", Trench: "a", Conduit: "c", Name: "two"}
	self = prefixList("172.16.0.5/24", "fd00:1::5/64")
)

func prefixList(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, t := range texts {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

func config(t *testing.T) Config {
	return Config{
		Namespace: "red", Interface: "net1", StateFile: filepath.Join(t.TempDir(), "interface.json"),
		Gateways: []netip.Addr{netip.MustParseAddr("172.16.0.1"), netip.MustParseAddr("fd00:1::1")},
		Log:      slog.New(slog.DiscardHandler),
	}.withDefaults()
}

func trenchOf(vips ...string) *settings {
	return &settings{VIPs: prefixList(vips...), Limits: map[string]uint32{"c/one": 10, "c/two": 10}}
}

// bubble runs a test in a bubble of time, with a connector that runs.
func bubble(t *testing.T, test func(*testing.T, *world)) {
	t.Helper()
	cfg := config(t)
	synctest.Test(t, func(t *testing.T) {
		j := &journal{}
		w := &world{
			T: t, journal: j, cfg: cfg,
			kernel:   &fakeKernel{journal: j, has: layout{}, net1: self, fails: map[kind]int{}},
			registry: &fakeRegistry{journal: j, entries: map[stream.Key]map[string]*entry{}, limit: 10, changed: make(chan struct{})},
			trench:   &fakeTrench{now: map[string]*settings{"a": trenchOf("20.0.0.1/32", "2000::1/128")}, changed: make(chan struct{})},
		}
		w.start()
		defer func() { w.stop() }()
		test(t, w)
	})
}

func (w *world) start() {
	w.Helper()
	c, err := newConnector(w.cfg, w.kernel, w.registry, w.trench)
	require.NoError(w, err)
	w.Connector = c
	ctx, cancel := context.WithCancel(w.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = c.Run(ctx) }() // one that is killed fails
	w.stop = sync.OnceFunc(func() { cancel(); <-ended })
}

// kill ends the connector without a trace of its last deeds.
func (w *world) kill() {
	w.Helper()
	saved, err := os.ReadFile(w.cfg.StateFile)
	require.NoError(w, err)
	kernel, registry := w.kernel, w.registry
	w.registry.set(func() { w.registry.away = true })
	w.kernel.mu.Lock()
	w.kernel.dead = true
	w.kernel.mu.Unlock()
	w.stop()
	require.NoError(w, os.WriteFile(w.cfg.StateFile, saved, 0o600))
	registry.set(func() { registry.away = false })
	kernel.mu.Lock()
	kernel.dead = false
	kernel.mu.Unlock()
	w.take()
}

// after lets time pass until all is quiet.
func (w *world) after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (w *world) open(keys ...stream.Key) {
	w.Helper()
	for _, k := range keys {
		require.NoError(w, w.Open(w.Context(), k))
	}
	w.after(10 * time.Second)
}

func (w *world) is(k stream.Key) string {
	w.mu()
	defer w.Connector.mu.Unlock()
	if s := w.sessions[k]; s != nil {
		return s.status.String()
	}
	return ""
}

func (w *world) mu() { w.Connector.mu.Lock() }
