package relay

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/registry/memory"
)

// said is one row as the namespace process has it, in the simplest form.
type said struct {
	id         uint64
	status     registry.Status
	state      engine.State
	registered int // when it was last registered there
}

// world is a namespace process and a trench process as they should be, beside a mirror.
type world struct {
	mirror *mirror
	store  *memory.Store
	epoch  int
	rev    uint64
	nextID uint64
	clock  int
	// away is set while the two cannot speak.
	away bool
	// there is what the namespace process has, sent what it last sent, view what should be shown, by number of the target.
	there, sent, view map[int]said
	// gone is when a target was withdrawn here.
	gone map[int]int
}

func (w *world) row(n int, s said) *engine.Row {
	t := target(n)
	t.Status = s.status
	e, err := registry.EntryOf(t, registry.Caller{}, own)
	if err != nil {
		panic(err)
	}
	e.ID = s.id
	return &engine.Row{Entry: &e, State: s.state}
}

func (w *world) at() position {
	return position{Epoch: fmt.Sprint("run ", w.epoch), Revision: w.rev, Registrations: uint64(w.clock)}
}

// commit sends what changed, or all.
func (w *world) commit(snapshot bool) {
	b := batch{snapshot: snapshot}
	for n, s := range w.there {
		if w.sent[n] != s || snapshot {
			b.changes = append(b.changes, change{s.id, w.row(n, s)})
		}
	}
	for n, s := range w.sent {
		if now, ok := w.there[n]; !snapshot && (!ok || now.id != s.id) {
			b.changes = slices.Insert(b.changes, 0, change{id: s.id})
		}
	}
	w.rev++
	b.at = w.at()
	w.mirror.apply(b)
	w.sent, w.view = maps.Clone(w.there), maps.Clone(w.there)
	for n := range w.gone {
		delete(w.view, n)
	}
}

// settle is what happens before a mirror follows again: what was withdrawn is told, and void where the target was registered
// since.
func (w *world) settle(t require.TestingT) {
	for _, p := range w.mirror.pending() {
		n := int(p.entry.Identifier)
		if s, ok := w.there[n]; ok && s.id == p.entry.ID && s.registered <= int(p.seen.Registrations) {
			require.LessOrEqual(t, s.registered, w.gone[n])
			delete(w.there, n)
		}
		delete(w.gone, n)
		w.rev++
		w.mirror.told(p, w.at())
	}
}

func (w *world) save(t require.TestingT) {
	b, err := w.mirror.unsaved()
	require.NoError(t, err)
	if err := w.store.Write(context.Background(), b); err != nil {
		w.mirror.unstored(b)
	}
}

func rowsShown(m *mirror) map[int]said {
	out := map[int]said{}
	for k := range m.rows {
		if r := m.shown(k); r != nil {
			out[int(r.Entry.Identifier)] = said{id: r.Entry.ID, status: r.Entry.Status, state: r.State}
		}
	}
	return out
}

func plain(rows map[int]said) map[int]said {
	out := map[int]said{}
	for n, s := range rows {
		s.registered = 0
		out[n] = s
	}
	return out
}

// check compares what is shown and listed with what should be.
func (w *world) check(t require.TestingT) {
	require.Equal(t, plain(w.view), rowsShown(w.mirror))
	for f, shows := range map[engine.Filter]func(said) bool{
		registered:                  func(said) bool { return true },
		active:                      func(s said) bool { return s.state == engine.Active },
		{Status: registry.Disabled}: func(s said) bool { return s.status == registry.Disabled },
	} {
		var want []int
		for n, s := range w.view {
			if shows(s) {
				want = append(want, n)
			}
		}
		slices.SortFunc(want, func(a, b int) int { return cmp.Compare(w.view[a].id, w.view[b].id) })
		watch := w.mirror.lists.Watch(w.mirror.rev, f)
		l, _, ok, _ := watch.Next()
		watch.Close()
		require.Equal(t, w.mirror.known, ok)
		var have []int
		for r := range l.Rows() {
			have = append(have, int(r.Entry.Identifier))
		}
		require.Equal(t, want, have, "%v", f)
	}
}

// newWorld has spoken once.
func newWorld() *world {
	w := &world{
		mirror: newMirror(trench, time.Hour), store: memory.New(), nextID: 1,
		there: map[int]said{}, sent: map[int]said{}, view: map[int]said{}, gone: map[int]int{},
	}
	w.mirror.adopted = true
	w.commit(true)
	w.watch()
	return w
}

// watch has somebody watch all the time, so that lists are kept up to date by difference.
func (w *world) watch() {
	for _, f := range []engine.Filter{registered, active, {Status: registry.Disabled}} {
		w.mirror.lists.Watch(w.mirror.rev, f)
	}
}

func number(t *rapid.T) int { return rapid.IntRange(1, 6).Draw(t, "target") }

func (w *world) registeredThere(t *rapid.T) {
	n := number(t)
	w.clock++
	s, ok := w.there[n]
	if !ok {
		s.id = w.nextID
		w.nextID++
	}
	s.status = rapid.SampledFrom([]registry.Status{registry.Enabled, registry.Disabled}).Draw(t, "status")
	s.state, s.registered = engine.Inactive, w.clock
	if s.status == registry.Enabled {
		s.state = rapid.SampledFrom([]engine.State{engine.Active, engine.Inactive}).Draw(t, "state")
	}
	w.there[n] = s
}

// numberedAnew is a namespace process that began anew and gave the IDs to others.
func (w *world) numberedAnew(t *rapid.T) {
	ids := []uint64{}
	for _, n := range slices.Sorted(maps.Keys(w.there)) {
		ids = append(ids, w.there[n].id)
	}
	ids = rapid.Permutation(ids).Draw(t, "ids")
	for i, n := range slices.Sorted(maps.Keys(w.there)) {
		s := w.there[n]
		s.id = ids[i]
		w.there[n] = s
	}
	w.epoch++
	w.away = true
}

func (w *world) withdrawnHere(t *rapid.T) {
	n := number(t)
	k, _ := registry.KeyOf(target(n), own)
	if _, shown := w.view[n]; !w.away || !shown {
		return
	}
	w.clock++
	w.gone[n] = w.clock
	delete(w.view, n)
	require.Equal(t, 1, w.mirror.withdraw(k))
	require.Zero(t, w.mirror.withdraw(k))
}

func (w *world) speak(t *rapid.T) {
	if w.away {
		w.settle(t)
	}
	w.commit(w.away)
	w.away = false
	require.Empty(t, w.mirror.withdrawn)
}

func (w *world) restart(t *rapid.T) {
	w.save(t)
	saved, err := w.store.Load(t.Context())
	require.NoError(t, err)
	before := w.mirror
	w.mirror = newMirror(trench, time.Hour)
	require.NoError(t, w.mirror.load(saved, own))
	require.Equal(t, len(before.withdrawn), len(w.mirror.withdrawn))
	w.watch()
	w.away = true
}

// Whatever happens on either side while they cannot speak, the mirror shows what was said last without what was withdrawn; a
// restart shows the same; and when they speak again it shows what the namespace process has.
func TestMirrorAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld()
		t.Repeat(map[string]func(*rapid.T){
			"registered there": w.registeredThere,
			"removed there":    func(t *rapid.T) { delete(w.there, number(t)) },
			"all IDs anew":     w.numberedAnew,
			"cut":              func(*rapid.T) { w.away = true },
			"withdrawn here":   w.withdrawnHere,
			"speak":            w.speak,
			"restart":          w.restart,
			"":                 func(t *rapid.T) { w.check(t) },
		})
	})
}

// A namespace process that lost its store numbers registrations anew: an ID may pass from one to another.
func TestIDsChangeHands(t *testing.T) {
	w := &world{}
	for range 20 { // the order of changes is any
		m := newMirror(trench, time.Hour)
		at := func(rev uint64) position { return position{Epoch: "run", Revision: rev} }
		m.apply(batch{snapshot: true, at: at(1), changes: []change{
			{1, w.row(1, said{id: 1})}, {2, w.row(2, said{id: 2})},
		}})
		m.apply(batch{snapshot: true, at: at(2), changes: []change{
			{2, w.row(1, said{id: 2})}, {1, w.row(2, said{id: 1})},
		}})
		m.apply(batch{at: at(3), changes: []change{{id: 2}}})
		require.Equal(t, map[int]said{2: {id: 1}}, rowsShown(m))
		require.Len(t, m.lists.Targets(engine.Filter{}), 1)
	}
}
