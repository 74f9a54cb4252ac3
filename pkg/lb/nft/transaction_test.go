package nft

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// pretend is a kernel that checks what the real one would refuse: names that are not there or there already, and what is in use.
type pretend struct {
	t        require.TestingT
	table    bool
	chains   map[string][]rule
	sets     map[string][]nftables.SetElement
	counters map[string]bool
	slots    map[string][]uint32
	targets  map[uint32]string
	touched  int
}

func (k *pretend) take(steps []step) {
	for _, s := range steps {
		k.step(s)
	}
	k.check()
}

func (k *pretend) step(s step) {
	switch s := s.(type) {
	case addTable:
		require.False(k.t, k.table)
		k.table = true
	case addCounter:
		require.False(k.t, k.counters[s.name])
		k.counters[s.name] = true
	case delCounter:
		require.True(k.t, k.counters[s.name])
		delete(k.counters, s.name)
	case addSet:
		require.NotContains(k.t, k.sets, s.set.Name)
		k.sets[s.set.Name] = nil
		if size, ok := slotsSize(s.set.Name); ok {
			k.slots[s.set.Name] = make([]uint32, size)
		}
	case delSet:
		require.Contains(k.t, k.sets, s.name)
		require.NotContains(k.t, k.usedSets(), s.name)
		delete(k.sets, s.name)
		delete(k.slots, s.name)
	case addChain:
		require.NotContains(k.t, k.chains, s.name)
		k.chains[s.name] = nil
	case flushChain:
		require.Contains(k.t, k.chains, s.name)
		k.chains[s.name] = nil
	case delChain:
		require.Contains(k.t, k.chains, s.name)
		require.Empty(k.t, k.chains[s.name])
		require.NotContains(k.t, k.usedChains(), s.name)
		delete(k.chains, s.name)
	case addRules:
		require.Contains(k.t, k.chains, s.chain.name)
		k.chains[s.chain.name] = append(k.chains[s.chain.name], s.chain.rules...)
	default:
		k.elements(s)
	}
}

func (k *pretend) elements(s step) {
	switch s := s.(type) {
	case addElements:
		require.Contains(k.t, k.sets, s.set.Name)
		for _, e := range s.elements {
			if s.set.Name == setTargets {
				mark := number(e.Key)
				require.NotContains(k.t, k.targets, mark)
				k.targets[mark] = e.Comment
			}
		}
		k.sets[s.set.Name] = append(k.sets[s.set.Name], s.elements...)
	case delElements:
		require.Equal(k.t, setTargets, s.set.Name)
		for _, e := range s.elements {
			require.Contains(k.t, k.targets, number(e.Key))
			delete(k.targets, number(e.Key))
		}
	case setSlots:
		for i, slot := range s.slots {
			require.Equal(k.t, s.old[i], k.slots[s.set.Name][slot])
			require.NotEqual(k.t, s.old[i], s.marks[i], "a slot that does not change hands is left alone")
			k.slots[s.set.Name][slot] = s.marks[i]
			k.touched++
		}
	default:
		require.Fail(k.t, fmt.Sprintf("a step of type %T", s))
	}
}

func number(b []byte) uint32 {
	return uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24
}

func (k *pretend) each(f func(expr.Any)) {
	for _, rules := range k.chains {
		for _, r := range rules {
			for _, e := range r.exprs {
				f(e)
			}
		}
	}
}

func (k *pretend) usedSets() map[string]bool {
	used := map[string]bool{}
	k.each(func(e expr.Any) {
		switch e := e.(type) {
		case *expr.Lookup:
			used[e.SetName] = true
		case *expr.Dynset:
			used[e.SetName] = true
		}
	})
	return used
}

func (k *pretend) usedChains() map[string]bool {
	used := map[string]bool{}
	k.each(func(e expr.Any) {
		if v, ok := e.(*expr.Verdict); ok && v.Chain != "" {
			used[v.Chain] = true
		}
	})
	for _, elements := range k.sets {
		for _, e := range elements {
			if e.VerdictData != nil && e.VerdictData.Chain != "" {
				used[e.VerdictData.Chain] = true
			}
		}
	}
	return used
}

// change brings the kernel to a program, and checks that what it has then is what was foretold.
func (k *pretend) change(p *Program, old func(string) bool) []step {
	c := difference(k.state(), p, old)
	met := k.met()
	k.take(c.prepare)
	require.Equal(k.t, met, k.met(), "packets notice nothing of the preparation")
	k.take(c.turn)
	require.Equal(k.t, c.after, k.state())
	return c.turn
}

// met is what packets meet: all that can be reached from chains that the kernel calls.
func (k *pretend) met() string {
	seen := map[string]bool{}
	var visit func(chain string)
	visit = func(chain string) {
		if seen[chain] {
			return
		}
		seen[chain] = true
		for _, r := range k.chains[chain] {
			for _, e := range r.exprs {
				switch e := e.(type) {
				case *expr.Verdict:
					visit(e.Chain)
				case *expr.Lookup:
					for _, element := range k.sets[e.SetName] {
						if element.VerdictData != nil {
							visit(element.VerdictData.Chain)
						}
					}
					if _, ok := k.slots[e.SetName]; ok || e.SetName != setTargets { // a mark that nothing leads to may come
						seen[fmt.Sprint(e.SetName, k.sets[e.SetName], k.slots[e.SetName])] = true
					}
				}
			}
		}
		seen[fmt.Sprint(chain, (&nftChain{rules: k.chains[chain]}).digests())] = true
	}
	for _, chain := range []string{chainPrerouting, chainOutput, chainNAT} {
		visit(chain)
	}
	delete(seen, "")
	return fmt.Sprint(slices.Sorted(maps.Keys(seen)))
}

type nftChain = chain

func always(string) bool { return true }
func never(string) bool  { return false }

// check is that nothing refers to what is not there.
func (k *pretend) check() {
	for name := range k.usedSets() {
		require.Contains(k.t, k.sets, name)
	}
	for name := range k.usedChains() {
		require.Contains(k.t, k.chains, name)
	}
	k.each(func(e expr.Any) {
		if o, ok := e.(*expr.Objref); ok {
			require.Contains(k.t, k.counters, o.Name)
		}
	})
}

// state is what reading the kernel would say.
func (k *pretend) state() *state {
	s := newState()
	s.table = k.table
	for name, rules := range k.chains {
		s.chains[name] = (&chain{rules: rules}).digests()
	}
	for name := range k.sets {
		if _, ok := k.slots[name]; !ok {
			s.sets[name] = true
		}
	}
	maps.Copy(s.counters, k.counters)
	for name, marks := range k.slots {
		s.slots[name] = append([]uint32{}, marks...)
	}
	maps.Copy(s.targets, k.targets)
	return s
}

// From any program to any other the kernel takes every step, and has the program then. Once more is nothing.
func TestDifferenceLeadsToTheProgram(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := &pretend{
			t: t, chains: map[string][]rule{}, sets: map[string][]nftables.SetElement{}, counters: map[string]bool{},
			slots: map[string][]uint32{}, targets: map[uint32]string{},
		}
		compiler := compiler{learn: time.Minute}
		was := map[string]bool{}
		for range rapid.IntRange(1, 4).Draw(t, "changes") {
			d := drawDesired(t)
			shares, marks := shareAll(d)
			program, _ := compiler.compile(d, shares, marks)
			// What the program does not have goes now, later, or partly: what has been there longer goes first.
			all := rapid.Bool().Draw(t, "old")
			k.change(program, func(thing string) bool { return all || was[thing] })
			was = map[string]bool{}
			k.change(program, func(thing string) bool { was[thing] = true; return false })
			if all {
				require.Equal(t, stateOf(program), k.state())
			}
			c := difference(k.state(), program, never)
			require.Empty(t, c.prepare)
			require.Empty(t, c.turn)
		}
	})
}

// A target that leaves touches its own slots and a few others, and nothing of other streams. (P16: the same identifier in two streams
// is two targets.)
func TestOnlyChangedSlotsAreTouched(t *testing.T) {
	d := &Desired{VIPs: allVIPs}
	for _, s := range []string{"s0", "s1"} {
		d.Streams = append(d.Streams, Stream{Name: s, Targets: targets(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)})
		d.Flows = append(d.Flows, Flow{Name: s, Stream: s, VIPs: allVIPs, DestinationPorts: ports(map[string]string{"s0": "80", "s1": "81"}[s])})
	}
	k := &pretend{
		t: t, chains: map[string][]rule{}, sets: map[string][]nftables.SetElement{}, counters: map[string]bool{},
		slots: map[string][]uint32{}, targets: map[uint32]string{},
	}
	c := compiler{learn: time.Minute}
	compile := func() *Program {
		shares, marks := shareAll(d)
		p, _ := c.compile(d, shares, marks)
		return p
	}
	k.change(compile(), always)
	k.touched = 0
	d.Streams[1].Targets = targets(1, 2, 3, 4, 5, 6, 8, 9, 10)
	steps := k.change(compile(), always)
	for _, s := range steps {
		if change, ok := s.(setSlots); ok {
			require.Contains(t, change.set.Name, "s1")
		}
	}
	require.Greater(t, k.touched, 2*1000)
	require.Less(t, k.touched, 2*1500)
}
