package engine

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/nordix/meridio-nsp/pkg/pool"
	"github.com/nordix/meridio-nsp/pkg/registry"
)

// final are the last events on each object, in no order. Claims are those that name their pod by UID: whom another one speaks
// of depends on who had the name when it came.
func (p *player) final() (first []Event, rest []any) {
	for _, ns := range slices.Sorted(maps.Keys(p.namespaces)) {
		switch p.namespaces[ns] {
		case synced:
			first = append(first, NamespaceSynced{Namespace: ns})
		case unavailable:
			rest = append(rest, NamespaceUnavailable{Namespace: ns})
		}
	}
	for _, ref := range slices.SortedFunc(maps.Keys(p.services), pool.Ref.Compare) {
		if p.namespaces[ref.Namespace] == synced {
			rest = append(rest, ServiceSet{p.services[ref]})
		}
	}
	for _, ref := range slices.SortedFunc(maps.Keys(p.slices), pool.Ref.Compare) {
		if p.namespaces[ref.Namespace] == synced {
			rest = append(rest, SliceSet{p.slices[ref]})
		}
	}
	for _, trench := range slices.Sorted(maps.Keys(p.configs)) {
		rest = append(rest, TrenchConfigured{Trench: trench, MaxTargets: p.configs[trench]})
	}
	for _, id := range slices.Sorted(maps.Keys(p.claims)) {
		if c := p.claims[id]; c.workload.PodUID != "" && !c.ended {
			rest = append(rest, reported{id: id, workload: c.workload, report: c.report})
		}
	}
	for _, e := range p.book.all() {
		fresh := *e
		fresh.Memory = registry.Memory{}
		rest = append(rest, registry.Change{New: &fresh, Registered: true})
	}
	return first, append(rest, GrantsChanged{p.grants()})
}

func inOrder(first []Event, rest []any, r *rand.Rand) map[uint64]*Row {
	s := newState(&Config{Namespace: own, Namespaces: []string{own, "app"}})
	out := newOutputs(s)
	for _, ev := range first {
		s.apply(ev)
	}
	for _, i := range r.Perm(len(rest)) {
		switch ev := rest[i].(type) {
		case registry.Change:
			s.changed(ev)
		case Event:
			s.apply(ev)
		}
		if r.IntN(3) == 0 {
			s.commit(&out)
		}
	}
	s.commit(&out)
	for _, r := range s.records { // everybody calls again, whoever bore his address meanwhile
		s.changed(registry.Change{Old: r.entry, New: r.entry, Registered: true})
	}
	s.commit(&out)
	rows := map[uint64]*Row{}
	for _, row := range out.lists.Targets(Filter{}) {
		rows[row.Entry.ID] = row
	}
	return rows
}

// Two orders of the same events end in the same rows, but for what is history by its meaning: that a pool once listed the
// target, and the binding that is remembered where nothing speaks for another one.
func TestOrderDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newPlayer(func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "pick") })
		for range rapid.IntRange(10, 80).Draw(t, "events") {
			p.step(t)
		}
		first, rest := p.final()
		seed := rapid.Uint64().Draw(t, "seed")
		a := inOrder(first, rest, rand.New(rand.NewPCG(seed, 1)))
		b := inOrder(first, rest, rand.New(rand.NewPCG(seed, 2)))
		require.ElementsMatch(t, slices.Collect(maps.Keys(a)), slices.Collect(maps.Keys(b)))
		for id, x := range a {
			y := b[id]
			require.Equal(t, proven(x), proven(y), "who row %d belongs to", id)
			if x.Listed == y.Listed && x.Binding == y.Binding && x.PodUID == y.PodUID && x.Pod == y.Pod {
				require.Equal(t, plain(x), plain(y), "row %d", id)
			}
		}
	})
}

func proven(r *Row) string {
	if r.Binding == BoundByMemory || r.Binding == Unbound {
		return ""
	}
	return string(r.Binding) + r.PodUID
}
