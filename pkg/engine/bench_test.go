package engine

import (
	"fmt"
	"testing"

	"github.com/nordix/meridio-nsp/pkg/pool"
	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

const perSlice = 100

func benchPod(i int) (uid, addr string) {
	return fmt.Sprint("u", i), fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&0xff, i&0xff)
}

func benchSlice(j, version int, flip bool) SliceSet {
	x := slice(fmt.Sprint("y", j), "s", version).Slice
	for i := j * perSlice; i < (j+1)*perSlice; i++ {
		uid, addr := benchPod(i)
		p := ready(uid)
		if flip && i == j*perSlice {
			p = notReady(uid)
		}
		x.Endpoints = append(x.Endpoints, p.at(addr).endpoint())
	}
	return SliceSet{x}
}

func benchTarget(i int) asked {
	_, peer := benchPod(i)
	a := target(x1, 0)
	a.addrs, a.identifier, a.caller.Peer = fmt.Sprintf("172.%d.%d.%d/24", i>>16, i>>8&0xff, i&0xff), i+1, addr(peer)
	return a
}

// filled is an engine with n bound, active targets, which watchers of all kinds look at.
func filled(b *testing.B, n int) (*Engine, *book) {
	e := New(Config{
		Namespace: own, Namespaces: []string{own}, Remember: func(map[uint64]registry.Memory) {},
		Pools: func(map[pool.Ref]*PoolStatus) {},
	}, nil)
	e.state.commit(&e.out)
	book := newBook()
	sync := NamespaceSynced{Namespace: own, Services: []pool.Service{service("s", x1).Service}}
	for j := range n / perSlice {
		sync.Slices = append(sync.Slices, benchSlice(j, 1, false).Slice)
	}
	events := []Event{sync, TrenchConfigured{Trench: "t1", MaxTargets: map[stream.Key]uint32{x1: 1 << 20}}}
	in := input{events: events}
	for i := range n {
		a := benchTarget(i)
		in.changes = append(in.changes, book.register(a), book.register(a))
	}
	e.turn([]input{in})
	e.state.topic(&e.out, x1.Of())
	b.Cleanup(e.state.watchList(&e.out, enabled(x1)).Close)
	b.Cleanup(e.state.watchList(&e.out, anyOf(x1)).Close)
	for i := range n {
		uid, _ := benchPod(i)
		b.Cleanup(e.out.assignments.Watch(Workload{Namespace: own, Pod: "pod-" + uid}).Close)
	}
	e.turn([]input{{events: []Event{NamespaceUnavailable{Namespace: own}}}})
	if c := e.state.tally.pools[pool.Ref{Namespace: own, Name: "s"}]; c.Active != n {
		b.Fatalf("want %d active targets: %+v", n, c)
	}
	return e, book
}

// One of 10,000 targets in 100 slices turns ready or not ready: pools, rows, topic and lists.
func BenchmarkReadinessFlip(b *testing.B) {
	e, _ := filled(b, 10_000)
	flips := [2]SliceSet{benchSlice(7, 2, true), benchSlice(7, 3, false)}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		x := flips[i%2]
		x.Slice.Version = uint64(i + 10)
		e.turn([]input{{events: []Event{x}}})
		i++
	}
}

// 100 registrations of 10,000 are refreshed or change in one turn, or as many more come and go again.
func BenchmarkRegistered(b *testing.B) {
	const n, batch = 10_000, 100
	states := func(first int, sides ...registry.Status) func(*book) (inputs [2]input) {
		return func(book *book) (inputs [2]input) {
			for side, status := range sides {
				for i := range batch {
					a := benchTarget(first + i)
					a.status = status
					inputs[side].changes = append(inputs[side].changes, book.register(a))
				}
			}
			return inputs
		}
	}
	comeAndGo := func(book *book) [2]input {
		inputs := states(n, registry.Enabled)(book)
		for _, c := range inputs[0].changes {
			inputs[1].changes = append(inputs[1].changes, registry.Change{Old: c.New})
		}
		return inputs
	}
	for name, inputsOf := range map[string]func(*book) [2]input{
		"refresh": states(0, registry.Enabled, registry.Enabled), "change": states(0, registry.Enabled, registry.Disabled),
		"come and go": comeAndGo,
	} {
		b.Run(name, func(b *testing.B) {
			e, book := filled(b, n)
			inputs := inputsOf(book)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				e.turn(inputs[i%2 : i%2+1])
				i++
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/batch, "ns/registration")
		})
	}
}
