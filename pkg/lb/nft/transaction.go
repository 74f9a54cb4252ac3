package nft

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
)

// state is what the kernel has, as far as differences are looked for.
type state struct {
	table bool
	// chains have the digests of their rules.
	chains   map[string][]string
	sets     map[string]bool
	counters map[string]bool
	slots    map[string][]uint32
	targets  map[uint32]string
}

func newState() *state {
	return &state{
		chains: map[string][]string{}, sets: map[string]bool{}, counters: map[string]bool{},
		slots: map[string][]uint32{}, targets: map[uint32]string{},
	}
}

// stateOf is the state after a program was committed.
func stateOf(p *Program) *state {
	s := newState()
	s.table = true
	for name, c := range p.chains {
		s.chains[name] = c.digests()
	}
	for name := range p.sets {
		s.sets[name] = true
	}
	s.counters = maps.Clone(p.counters)
	for name, m := range p.slots {
		s.slots[name] = m.marks
	}
	s.targets = maps.Clone(p.targets)
	return s
}

// The steps of a transaction. The kernel takes all of them or none.
type (
	addTable   struct{}
	addCounter struct{ name string }
	delCounter struct{ name string }
	addSet     struct{ set nftables.Set }
	delSet     struct{ name string }
	addChain   struct {
		name string
		hook *hook
	}
	flushChain  struct{ name string }
	delChain    struct{ name string }
	addRules    struct{ chain *chain }
	addElements struct {
		set      nftables.Set
		elements []nftables.SetElement
	}
	delElements struct {
		set      nftables.Set
		elements []nftables.SetElement
	}
	// setSlots gives the slots of a map new marks; old are those that they have now, 0 for none.
	setSlots struct {
		set        nftables.Set
		slots      []int
		old, marks []uint32
	}
)

// step is one of the above.
type step interface{ on(k *batch) error }

// change is what leads from a state to a program: two transactions, each of which may be empty, and the state after them.
type change struct {
	// prepare adds what no packet meets yet. The kernel makes a set of ranges ready only at the end of a transaction, when the rules that come with it
	// count already; so what is looked up must have been there before the rules are.
	prepare []step
	// turn makes all that packets meet true at once.
	turn  []step
	after *state
}

// difference finds what leads from a state to a program. The order satisfies the kernel: what is referred to comes before what refers to it,
// and goes after it.
//
// What the program does not have goes only when it is old. A packet that is on its way through the chains at the moment of the transaction follows
// the rules of before, but finds in sets what counts now: their elements must not be gone yet.
func difference(s *state, p *Program, old func(thing string) bool) change {
	left := leftovers(s, p)
	gone := left.only(old)
	c := change{after: stateOf(p).with(left.only(func(thing string) bool { return !old(thing) }))}
	if !s.table {
		c.prepare = append(c.prepare, addTable{})
	}
	c.prepare = append(c.prepare, additions(s, p)...)
	del, add := targetSteps(s, p, gone)
	if len(del) == 0 {
		c.prepare = append(c.prepare, add...)
	} else { // a mark that stands for another target is replaced
		c.turn = append(c.turn, append(del, add...)...)
	}
	fresh, filled := slotSteps(s, p)
	c.prepare = append(c.prepare, fresh...)
	c.turn = append(c.turn, filled...)
	fresh, filled = ruleSteps(s, p)
	c.prepare = append(c.prepare, fresh...)
	c.turn = append(c.turn, append(filled, removals(gone)...)...)
	return c
}

// ruleSteps fill chains that are new, which nothing leads to yet, and those whose rules are others. One that is filled anew in one transaction
// is never empty for a packet.
func ruleSteps(s *state, p *Program) (fresh, filled []step) {
	for _, name := range sortedKeys(p.chains) {
		c := p.chains[name]
		has, exists := s.chains[name]
		switch {
		case len(c.rules) == 0 && len(has) == 0 || exists && slices.Equal(has, c.digests()):
		case !exists && c.hook == nil:
			fresh = append(fresh, addRules{c})
		default:
			if len(has) > 0 {
				filled = append(filled, flushChain{name})
			}
			if len(c.rules) > 0 {
				filled = append(filled, addRules{c})
			}
		}
	}
	return fresh, filled
}

// leftovers are what a state has and a program has not.
func leftovers(s *state, p *Program) *state {
	l := newState()
	for name, digests := range s.chains {
		if p.chains[name] == nil {
			l.chains[name] = digests
		}
	}
	for name := range s.sets {
		if p.sets[name] == nil {
			l.sets[name] = true
		}
	}
	for name, marks := range s.slots {
		if _, ok := p.slots[name]; !ok {
			l.slots[name] = marks
		}
	}
	for mark, name := range s.targets {
		if _, ok := p.targets[mark]; !ok {
			l.targets[mark] = name
		}
	}
	for name := range s.counters {
		if !p.counters[name] {
			l.counters[name] = true
		}
	}
	return l
}

// only is the part of a state whose things satisfy a condition.
func (s *state) only(keep func(thing string) bool) *state {
	out := newState()
	copyIf(out.chains, s.chains, keep, "chain")
	copyIf(out.sets, s.sets, keep, "set")
	copyIf(out.slots, s.slots, keep, "slots")
	copyIf(out.targets, s.targets, keep, "target")
	copyIf(out.counters, s.counters, keep, "counter")
	return out
}

func copyIf[K comparable, V any](to, from map[K]V, keep func(string) bool, kind string) {
	for k, v := range from {
		if keep(fmt.Sprint(kind, " ", k)) {
			to[k] = v
		}
	}
}

// with adds what another state has.
func (s *state) with(o *state) *state {
	maps.Copy(s.chains, o.chains)
	maps.Copy(s.sets, o.sets)
	maps.Copy(s.slots, o.slots)
	maps.Copy(s.targets, o.targets)
	maps.Copy(s.counters, o.counters)
	return s
}

// additions are counters, sets, chains, and only then elements, which go to chains.
func additions(s *state, p *Program) []step {
	var steps, elements []step
	for _, name := range sortedKeys(p.counters) {
		if !s.counters[name] {
			steps = append(steps, addCounter{name})
		}
	}
	for _, name := range sortedKeys(p.sets) {
		if new := p.sets[name]; !s.sets[name] {
			steps = append(steps, addSet{new.Set})
			if len(new.elements) > 0 {
				elements = append(elements, addElements{new.Set, new.elements})
			}
		}
	}
	for _, name := range sortedKeys(p.slots) {
		if s.slots[name] == nil {
			steps = append(steps, addSet{slotSet(name, len(p.slots[name].marks))})
		}
	}
	for _, name := range sortedKeys(p.chains) {
		if _, ok := s.chains[name]; !ok {
			steps = append(steps, addChain{name, p.chains[name].hook})
		}
	}
	return append(steps, elements...)
}

// slotSteps fill maps that are new, and touch only slots that change hands in the others.
func slotSteps(s *state, p *Program) (fresh, filled []step) {
	for _, name := range sortedKeys(p.slots) {
		marks, had := p.slots[name].marks, s.slots[name]
		if len(had) == len(marks) && (len(marks) == 0 || &had[0] == &marks[0]) {
			continue
		}
		change := setSlots{set: slotSet(name, len(marks))}
		for slot, mark := range marks {
			var old uint32
			if slot < len(had) {
				old = had[slot]
			}
			if old != mark {
				change.slots, change.old, change.marks = append(change.slots, slot), append(change.old, old), append(change.marks, mark)
			}
		}
		switch {
		case len(change.slots) == 0:
		case had == nil:
			fresh = append(fresh, change)
		default:
			filled = append(filled, change)
		}
	}
	return fresh, filled
}

// targetSteps keep the counters of targets that stay.
func targetSteps(s *state, p *Program, gone *state) (del, add []step) {
	var out, in []nftables.SetElement
	for _, mark := range sortedKeys(s.targets) {
		now, stays := p.targets[mark]
		if _, goes := gone.targets[mark]; goes || stays && now != s.targets[mark] {
			out = append(out, nftables.SetElement{Key: binaryutil.NativeEndian.PutUint32(mark)})
		}
	}
	for _, mark := range sortedKeys(p.targets) {
		if p.targets[mark] != s.targets[mark] {
			in = append(in, nftables.SetElement{Key: binaryutil.NativeEndian.PutUint32(mark), Comment: p.targets[mark]})
		}
	}
	set := p.sets[setTargets].Set
	if len(out) > 0 {
		del = append(del, delElements{set, out})
	}
	if len(in) > 0 {
		add = append(add, addElements{set, in})
	}
	return del, add
}

// removals take rules first, as they refer to sets, then sets, whose elements refer to chains.
func removals(gone *state) []step {
	var flushes, sets, chains, counters []step
	for _, name := range sortedKeys(gone.chains) {
		if len(gone.chains[name]) > 0 {
			flushes = append(flushes, flushChain{name})
		}
		chains = append(chains, delChain{name})
	}
	for _, name := range append(sortedKeys(gone.sets), sortedKeys(gone.slots)...) {
		sets = append(sets, delSet{name})
	}
	for _, name := range sortedKeys(gone.counters) {
		counters = append(counters, delCounter{name})
	}
	return slices.Concat(flushes, sets, chains, counters)
}

func sortedKeys[K interface{ ~string | ~uint32 }, V any](m map[K]V) []K {
	return slices.Sorted(maps.Keys(m))
}

// slotSet is a map of slots to marks, both numbers in the order of the machine.
func slotSet(name string, size int) nftables.Set {
	return nftables.Set{
		Name: name, IsMap: true, Size: uint32(size), KeyType: nftables.TypeInteger, DataType: nftables.TypeMark,
		KeyByteOrder: binaryutil.NativeEndian,
	}
}

// slotsSize is the number of slots that the name of a map says, and whether it is one.
func slotsSize(set string) (int, bool) {
	parts := strings.SplitN(set, ".", 3)
	if len(parts) < 3 || !strings.HasPrefix(parts[0], "slots") && !strings.HasPrefix(parts[0], "before") {
		return 0, false
	}
	size, err := strconv.Atoi(parts[1])
	return size, err == nil && size > 0
}

// targetName is what the kernel keeps beside a mark.
func targetName(stream string, identifier uint32) string {
	return fmt.Sprintf("%s/%d", stream, identifier)
}

// parseTarget reads a target's name; a stream can contain no slash.
func parseTarget(name string) (stream string, identifier uint32, ok bool) {
	stream, number, found := strings.Cut(name, "/")
	n, err := strconv.ParseUint(number, 10, 32)
	return stream, uint32(n), found && err == nil
}
