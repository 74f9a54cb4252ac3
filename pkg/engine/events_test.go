package engine

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/nordix/meridio-nsp/pkg/pool"
	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/sources"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// choose is a number below n; what it draws from is a rapid.T or the bytes of a fuzz input.
type choose func(n int) int

func one[T any](c choose, from ...T) T { return from[c(len(from))] }

// player plays the same events to the engine's state and to the world, and compares.
type player struct {
	*world
	pick choose
	s    *state
	out  outputs
	last map[uint64]*Row
	// want are the trenches whose configuration was asked for.
	want map[string]int
	// preferred is what the registry was told last of each that waits.
	preferred map[registry.Key]bool
	claimID   uint64
	receivers []receiver
}

func newPlayer(pick choose) *player {
	p := &player{world: newWorld(newBook()), pick: pick, last: map[uint64]*Row{}}
	p.start()
	return p
}

func (p *player) start() {
	p.want, p.preferred = map[string]int{}, map[registry.Key]bool{}
	cfg := &Config{
		Prefer: func(m map[registry.Key]bool) { maps.Copy(p.preferred, m) },

		Namespace: own, Namespaces: []string{own, "app"}, Grants: p.grants(), AccessPending: true,
		WantConfig: func(trench string) { p.want[trench]++ }, Remember: p.book.remember,
	}
	p.s = newState(cfg)
	p.out = newOutputs(p.s)
	p.s.load(p.book.all())
	p.s.apply(p.access())
	p.receivers = nil
	for range 6 {
		p.receivers = append(p.receivers, p.newReceiver())
	}
}

func (p *player) namespace() string { return one(p.pick, own, own, own, "app", "zoo") }

func (p *player) stream() stream.Key {
	return key(one(p.pick, "t1", "t1", "t2"), one(p.pick, "c1", "c1", "c2"), one(p.pick, "x1", "x2"))
}

// show posts an event of a namespace that is being watched; of others the cluster says nothing.
func (p *player) show(ns string, ev Event) {
	if p.namespaces[ns] == synced {
		p.s.apply(ev)
	}
}

func (p *player) setService() {
	k := p.stream()
	s := service(fmt.Sprint("s", p.pick(4)), k).Service
	s.Namespace, s.Created, s.UID = p.namespace(), time.Unix(int64(p.pick(3)), 0), one(p.pick, "a", "b")
	s.Labels[pool.LabelNamespace] = own
	if p.pick(4) == 0 {
		s.Annotations[pool.AnnotationAssignment] = "ready"
	}
	if p.pick(4) == 0 {
		s.Annotations[pool.AnnotationDraining] = "keep"
	}
	p.services[s.Ref] = s
	p.show(s.Namespace, ServiceSet{s})
}

func (p *player) deleteService() {
	ref := pool.Ref{Namespace: p.namespace(), Name: fmt.Sprint("s", p.pick(4))}
	delete(p.services, ref)
	p.show(ref.Namespace, ServiceGone{ref})
}

func (p *player) pod() pod {
	return pod{
		uid: fmt.Sprint("u", p.pick(5)), addr: fmt.Sprint("10.0.0.", p.pick(5)),
		ready: p.condition(), serving: p.condition(), terminating: one(p.pick, nil, nil, p.condition()),
	}
}

func (p *player) condition() *bool { return one(p.pick, nil, new(true), new(false)) }

func (p *player) setSlice() {
	x := slice(fmt.Sprint("y", p.pick(4)), fmt.Sprint("s", p.pick(4)), p.pick(50)).Slice
	x.Namespace = p.namespace()
	for range p.pick(4) {
		e := p.pod().endpoint()
		switch p.pick(12) {
		case 0:
			e.Target = nil
		case 1:
			e.Target.Name = "pod-u1" // a successor of the same name
		}
		x.Endpoints = append(x.Endpoints, e)
	}
	p.put(x)
}

func (p *player) put(x pool.Slice) {
	p.slices[pool.Ref{Namespace: x.Namespace, Name: x.Name}] = x
	p.show(x.Namespace, SliceSet{x})
}

// flip is what happens most: one endpoint gets other conditions.
func (p *player) flip() {
	x, ok := p.slices[pool.Ref{Namespace: p.namespace(), Name: fmt.Sprint("y", p.pick(4))}]
	if !ok || len(x.Endpoints) == 0 {
		return
	}
	x.Endpoints = slices.Clone(x.Endpoints)
	e := &x.Endpoints[p.pick(len(x.Endpoints))]
	e.Ready, e.Serving, e.Terminating = p.condition(), p.condition(), p.condition()
	x.Version++
	x.Changed = time.Unix(int64(p.pick(100)), 0)
	p.put(x)
}

func (p *player) deleteSlice() {
	ref := pool.Ref{Namespace: p.namespace(), Name: fmt.Sprint("y", p.pick(4))}
	delete(p.slices, ref)
	p.show(ref.Namespace, SliceGone{ref.Namespace, ref.Name})
}

func (p *player) setPermit() {
	k := one(p.pick, "app", "zoo") + one(p.pick, "x1", "x2")
	p.permits[k] = !p.permits[k]
	p.s.apply(GrantsChanged{p.grants()})
}

// setAccess gives a stream another policy, or takes it away.
func (p *player) setAccess() {
	k := p.stream()
	if delete(p.allowed, k); p.pick(3) > 0 {
		p.allowed[k] = one(p.pick, "", "10.0.0.0/8", "10.0.0.0/9", "2001:db8::/32")
	}
	p.s.apply(p.access())
}

func (p *player) access() AccessChanged {
	ev := AccessChanged{Sources: map[stream.Key]*sources.Set{}}
	for k, prefix := range p.allowed {
		ev.Sources[k] = sourcesOf(prefix)
	}
	return ev
}

func (p *player) asked() asked {
	a := asked{
		stream: p.stream(), addrs: one(p.pick, "172.16.0.1/24", "172.16.0.2/24", "172.16.0.1/24 172.16.0.2/24", "172.16.0.3/24"),
		identifier: one(p.pick, 1, 2, 3, 0, 100, 101), status: one(p.pick, registry.Enabled, registry.Enabled, registry.Disabled),
		caller: by(p.pick(5)),
	}
	switch p.pick(8) {
	case 0:
		a.caller.PodUID = fmt.Sprint("u", p.pick(5))
	case 1:
		a.caller = registry.Caller{}
	case 2:
		a.kind, a.stream = registry.Frontend, stream.Key{}
	}
	return a
}

func (p *player) register() { p.registerAs(p.asked()) }

func (p *player) registerAs(a asked) {
	c := p.book.register(a)
	p.world.registered(c)
	p.s.changed(c)
}

// refresh repeats what some entry asked for, as every TAPA does all the time, or enables it.
func (p *player) refresh() {
	all := p.book.all()
	if len(all) == 0 {
		return
	}
	e := all[p.pick(len(all))]
	p.registerAs(asked{
		stream: e.Stream, addrs: e.Addrs, kind: e.Type, caller: e.Caller, identifier: int(e.Identifier),
		status: one(p.pick, e.Status, e.Status, registry.Enabled),
	})
}

func (p *player) unregister() {
	all := p.book.all()
	if len(all) == 0 {
		return
	}
	c, _ := p.book.unregister(all[p.pick(len(all))].Key)
	p.s.changed(c)
	if p.pick(3) == 0 {
		p.registerAs(asked{stream: c.Old.Stream, addrs: c.Old.Addrs, kind: c.Old.Type, caller: c.Old.Caller, identifier: 1})
	}
}

func (p *player) workload() Workload {
	n := p.pick(5)
	switch p.pick(3) {
	case 0:
		return Workload{Addr: addr(fmt.Sprint("10.0.0.", n))}
	case 1:
		return Workload{Namespace: p.namespace(), Pod: fmt.Sprint("pod-u", n), PodUID: fmt.Sprint("u", n)}
	}
	return Workload{Namespace: p.namespace(), Pod: fmt.Sprint("pod-u", n)}
}

// report is of a new sidecar, or of one that has reported before.
func (p *player) report() {
	r := &Report{Proven: true, HasOwners: p.pick(2) == 0}
	for range p.pick(3) {
		r.Addrs = append(r.Addrs, addr(fmt.Sprint("172.16.0.", 1+p.pick(3))))
	}
	for range p.pick(3) {
		r.Application = append(r.Application, p.stream())
	}
	id, c := p.someClaim()
	if c == nil || c.ended || p.pick(2) == 0 {
		p.claimID++
		w := p.workload()
		id, c = p.claimID, &mClaim{workload: w, uid: w.PodUID}
		p.claims[id] = c
	}
	c.report = r
	p.s.apply(reported{id: id, workload: c.workload, report: r})
}

func (p *player) someClaim() (uint64, *mClaim) {
	ids := slices.Sorted(maps.Keys(p.claims))
	if len(ids) == 0 {
		return 0, nil
	}
	id := ids[p.pick(len(ids))]
	return id, p.claims[id]
}

func (p *player) endClaim() {
	if id, c := p.someClaim(); c != nil {
		c.ended = true
		p.s.apply(ended(id, c.workload))
	}
}

// lineUp has somebody wait for an identifier, maybe again.
func (p *player) lineUp() {
	a := p.asked()
	if a.kind != registry.Default {
		return
	}
	e := newBook().register(a).New
	e.ID, e.Identifier = 0, 0
	p.waiting[e.Key] = &mWaiter{entry: e}
	delete(p.preferred, e.Key)
	p.s.changed(registry.Change{New: e, Waiting: true})
}

func (p *player) leaveLine() {
	for _, k := range slices.SortedFunc(maps.Keys(p.waiting), func(a, b registry.Key) int { return strings.Compare(a.Addrs, b.Addrs) }) {
		if p.pick(3) == 0 {
			e := p.waiting[k].entry
			delete(p.waiting, k)
			p.s.changed(registry.Change{Old: e, Waiting: true})
		}
	}
}

func (p *player) openWatch() {
	w := p.workload()
	p.watches[w]++
	p.s.apply(watching{w, +1})
}

func (p *player) closeWatch() {
	w := p.workload()
	if p.watches[w] > 0 {
		p.watches[w]--
		p.s.apply(watching{w, -1})
	}
}

func (p *player) configure() {
	trench := one(p.pick, "t1", "t2")
	most := map[stream.Key]uint32{}
	if p.pick(2) == 0 {
		most[key(trench, "c1", "x1")] = uint32(p.pick(4))
	}
	p.configs[trench] = most
	p.s.apply(TrenchConfigured{Trench: trench, MaxTargets: most})
}

func (p *player) sync() {
	ns := p.namespace()
	p.namespaces[ns] = synced
	ev := NamespaceSynced{Namespace: ns}
	for ref, s := range p.services {
		if ref.Namespace == ns {
			ev.Services = append(ev.Services, s)
		}
	}
	for ref, x := range p.slices {
		if ref.Namespace == ns {
			ev.Slices = append(ev.Slices, x)
		}
	}
	p.s.apply(ev)
}

func (p *player) unavailable() { p.cannotRead(p.namespace()) }

func (p *player) cannotRead(ns string) {
	if p.namespaces[ns] == syncing {
		p.namespaces[ns] = unavailable
	}
	p.s.apply(NamespaceUnavailable{Namespace: ns})
}

func (p *player) dropNamespace() {
	ns := one(p.pick, "app", "zoo")
	delete(p.namespaces, ns)
	p.s.apply(NamespaceDropped{ns})
}

// restart comes after a commit, as what was not committed was not acknowledged. Often the API server is away then.
func (p *player) restart(t require.TestingT) {
	if p.pick(3) != 0 {
		return
	}
	p.check(t)
	p.world.restart()
	p.start()
	p.configure()
	if p.pick(2) == 0 {
		p.cannotRead(own)
		p.cannotRead("app")
	}
}

// step plays one event; the frequent ones have several numbers.
func (p *player) step(t require.TestingT) {
	all := [...]func(){
		p.setService, p.setService, p.deleteService, p.setSlice, p.setSlice, p.setSlice, p.flip, p.flip, p.flip, p.flip,
		p.deleteSlice, p.setPermit, p.setAccess, p.register, p.register, p.register, p.refresh, p.refresh, p.refresh, p.refresh,
		p.unregister, p.report, p.report, p.report, p.endClaim, p.configure, p.configure, p.sync, p.sync, p.sync,
		p.unavailable, p.dropNamespace, p.lineUp, p.lineUp, p.leaveLine, p.openWatch, p.openWatch, p.closeWatch, func() { p.restart(t) },
	}
	all[p.pick(len(all))]()
}

func play(t require.TestingT, pick choose, more func() bool) {
	p := newPlayer(pick)
	for more() {
		p.step(t)
		if pick(3) == 0 {
			p.check(t)
		}
	}
	p.check(t)
	for _, r := range p.receivers {
		r.read(t, p)
	}
}

// Whatever the order of events, rows and lists say what the objects say. // D1 D3 D5 D6 P2 P16 P23
func TestEngineFollowsModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		left := rapid.IntRange(1, 120).Draw(t, "events")
		play(t, func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "pick") }, func() bool { left--; return left >= 0 })
	})
}

func FuzzEvents(f *testing.F) {
	f.Add([]byte("a Service, a slice, a registration, and what becomes of them"))
	for seed := range byte(8) {
		random, data := rand.NewChaCha8([32]byte{seed}), make([]byte, 1000)
		_, _ = random.Read(data)
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 4096 {
			return
		}
		play(t, func(n int) int {
			if len(data) == 0 {
				return 0
			}
			b := data[0]
			data = data[1:]
			return int(b) % n
		}, func() bool { return len(data) > 0 })
	})
}
