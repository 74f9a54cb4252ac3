package engine

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/pkg/feed"
	"github.com/nordix/meridio-nsp/pkg/pool"
	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

const own = "nsp"

func key(trench, conduit, name string) stream.Key {
	return stream.Key{Namespace: own, Trench: trench, Conduit: conduit, Name: name}
}

var x1, x2 = key("t1", "c1", "x1"), key("t1", "c1", "x2")

// book is a registry in its simplest form: the rules of registrations without identifiers in conflict. What the engine wants
// remembered gets into the entries without any change being told, as the real registry does it.
type book struct {
	entries map[registry.Key]*registry.Entry
	nextID  uint64
}

func newBook() *book { return &book{entries: map[registry.Key]*registry.Entry{}, nextID: 1} }

func (b *book) all() []*registry.Entry {
	return slices.SortedFunc(maps.Values(b.entries), func(x, y *registry.Entry) int { return int(x.ID) - int(y.ID) })
}

func (b *book) remember(memory map[uint64]registry.Memory) {
	for k, e := range b.entries {
		if m, ok := memory[e.ID]; ok {
			changed := *e
			changed.Memory = m
			b.entries[k] = &changed
		}
	}
}

// asked is what a client asks for.
type asked struct {
	stream     stream.Key
	addrs      string // separated by blanks
	status     registry.Status
	identifier int
	caller     registry.Caller
	kind       registry.Type
}

func (a asked) key() registry.Key {
	return registry.Key{Scope: a.stream.Trench, Type: a.kind, Stream: a.stream, Addrs: a.addrs}
}

func (b *book) register(a asked) registry.Change {
	old := b.entries[a.key()]
	e := &registry.Entry{
		Key: a.key(), IPs: strings.Fields(a.addrs), Status: a.status, Identifier: uint32(a.identifier), Caller: a.caller,
		Context: map[string]string{"identifier": strconv.Itoa(a.identifier)},
	}
	for _, ip := range e.IPs {
		if p, err := netip.ParsePrefix(ip); err == nil && a.kind == registry.Default {
			e.Prefixes = append(e.Prefixes, p)
		}
	}
	if old == nil {
		e.ID, e.Status = b.nextID, registry.Disabled
		b.nextID++
	} else {
		e.ID, e.Memory = old.ID, old.Memory
		if old.Status == e.Status && old.Identifier == e.Identifier && old.Caller == e.Caller {
			return registry.Change{Old: old, New: old, Registered: true}
		}
	}
	b.entries[e.Key] = e
	return registry.Change{Old: old, New: e, Registered: true}
}

func (b *book) unregister(k registry.Key) (registry.Change, bool) {
	old, ok := b.entries[k]
	delete(b.entries, k)
	return registry.Change{Old: old}, ok
}

// nsp is an engine's state with what surrounds it, driven by hand.
type nsp struct {
	*testing.T
	s      *state
	out    outputs
	book   *book
	wanted []string
	// dropped are the trenches that were wanted and are no more.
	dropped []string
	pools   map[pool.Ref]*PoolStatus
}

func newNSP(t *testing.T, edits ...func(*Config)) *nsp {
	n := &nsp{T: t, book: newBook(), pools: map[pool.Ref]*PoolStatus{}}
	n.start(edits...)
	return n
}

// start makes a new state from what is stored, as a restart does.
func (n *nsp) start(edits ...func(*Config)) {
	cfg := &Config{
		Namespace: own, Namespaces: []string{own},
		WantConfig: func(trench string) { n.wanted = append(n.wanted, trench) },
		DropConfig: func(trench string) { n.dropped = append(n.dropped, trench) },
		Remember:   n.book.remember,
		Pools:      func(m map[pool.Ref]*PoolStatus) { maps.Copy(n.pools, m) },
	}
	for _, edit := range edits {
		edit(cfg)
	}
	n.s = newState(cfg)
	n.out = newOutputs(n.s)
	n.s.load(n.book.all())
	n.s.commit(&n.out)
}

func running(t *testing.T, edits ...func(*Config)) *nsp {
	n := newNSP(t, edits...)
	n.do(NamespaceSynced{Namespace: own}, TrenchConfigured{Trench: "t1"})
	return n
}

func (n *nsp) do(events ...Event) step {
	for _, ev := range events {
		n.s.apply(ev)
	}
	return n.s.commit(&n.out)
}

func (n *nsp) change(cs ...registry.Change) step {
	for _, c := range cs {
		n.s.changed(c)
	}
	return n.s.commit(&n.out)
}

// register registers as a TAPA does: DISABLED, then ENABLED.
func (n *nsp) register(a asked) {
	n.change(n.book.register(a))
	n.change(n.book.register(a))
}

func (n *nsp) refresh(a asked) step { return n.change(n.book.register(a)) }

func (n *nsp) unregister(a asked) {
	c, _ := n.book.unregister(a.key())
	n.change(c)
}

func (n *nsp) row(a asked) *Row {
	n.Helper()
	e := n.book.entries[a.key()]
	require.NotNil(n, e)
	r := n.s.records[e.Key].row
	require.NotNil(n, r)
	return r
}

// is asserts state and reason of a target.
func (n *nsp) is(a asked, state State, reason string) {
	n.Helper()
	r := n.row(a)
	require.Equal(n, [2]any{state, reason}, [2]any{r.State, r.Reason})
}

func (n *nsp) bound(a asked, by Binding, uid string) {
	n.Helper()
	r := n.row(a)
	require.Equal(n, [2]any{by, uid}, [2]any{r.Binding, r.PodUID})
}

func (n *nsp) list(f Filter) *feed.Watcher[Filter, *List] {
	w := n.s.watchList(&n.out, f)
	n.Cleanup(w.Close)
	return w
}

func (n *nsp) assignments(w Workload) *feed.Watcher[Workload, *Assigned] {
	r := n.out.assignments.Watch(w)
	n.Cleanup(r.Close)
	n.s.publishAssignment(&n.out, w)
	return r
}

// ids are those of the latest value of a list; ok is false where there is none newer.
func ids(w *feed.Watcher[Filter, *List]) (out []uint64, ok bool) {
	l, _, ok, _ := w.Next()
	if ok {
		out = []uint64{}
		for r := range l.Rows() {
			out = append(out, r.Entry.ID)
		}
	}
	return out, ok
}

func streamsOf(a *Assigned) (out []string) {
	for _, s := range a.Streams {
		out = append(out, s.Stream.Name)
	}
	return out
}

// A pod of the tests: u1 is at 10.0.0.1.
type pod struct {
	uid                         string
	ready, serving, terminating *bool
	addr                        string
}

func ready(uid string) pod    { return pod{uid: uid} }
func notReady(uid string) pod { return pod{uid: uid, ready: new(false)} }

func (p pod) at(addr string) pod { p.addr = addr; return p }

func (p pod) endpoint() pool.Endpoint {
	addr := p.addr
	if addr == "" {
		addr = "10.0.0." + strings.TrimPrefix(p.uid, "u")
	}
	return pool.Endpoint{
		Addresses: []string{addr}, Ready: p.ready, Serving: p.serving, Terminating: p.terminating,
		Target: &pool.TargetRef{Kind: "Pod", Name: "pod-" + p.uid, UID: p.uid},
	}
}

func service(name string, k stream.Key, annotations ...string) ServiceSet {
	s := pool.Service{
		Ref: pool.Ref{Namespace: own, Name: name}, UID: "uid-" + name, Type: "ClusterIP", HasSelector: true,
		Created: time.Unix(1000, 0), Annotations: map[string]string{},
		Labels: map[string]string{
			pool.LabelMarker: pool.MarkerValue, pool.LabelTrench: k.Trench, pool.LabelConduit: k.Conduit, pool.LabelStream: k.Name,
		},
	}
	for i := 0; i+1 < len(annotations); i += 2 {
		s.Annotations[annotations[i]] = annotations[i+1]
	}
	return ServiceSet{s}
}

func slice(name, service string, version int, pods ...pod) SliceSet {
	x := pool.Slice{
		Namespace: own, Name: name, Service: service, Version: uint64(version), AddressType: "IPv4",
		Changed: time.Unix(int64(version), 0),
	}
	for _, p := range pods {
		x.Endpoints = append(x.Endpoints, p.endpoint())
	}
	return SliceSet{x}
}

func serviceGone(name string) ServiceGone { return ServiceGone{pool.Ref{Namespace: own, Name: name}} }
func sliceGone(name string) SliceGone     { return SliceGone{own, name} }

// by is an unproven caller at the primary address of pod un.
func by(n int) registry.Caller {
	return registry.Caller{Peer: netip.MustParseAddr(fmt.Sprint("10.0.0.", n))}
}

// target is the registration of pod un for a stream with identifier n.
func target(k stream.Key, n int) asked {
	return asked{stream: k, addrs: fmt.Sprintf("172.16.0.%d/24", n), identifier: n, caller: by(n)}
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func claimOf(id uint64, w Workload, addrs ...string) reported {
	r := &Report{Proven: true}
	for _, a := range addrs {
		r.Addrs = append(r.Addrs, addr(a))
	}
	return reported{id: id, workload: w, report: r}
}

func ended(id uint64, w Workload) reported { return reported{id: id, workload: w} }

func (a asked) prefixAddrs() (out []netip.Addr) {
	for _, ip := range strings.Fields(a.addrs) {
		out = append(out, netip.MustParsePrefix(ip).Addr())
	}
	return out
}
