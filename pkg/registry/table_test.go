package registry

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/nordix/meridio-nsp/pkg/stream"
)

// want is what a client asks for: DEFAULT, in a stream, with one address and an identifier ("" for none).
func want(t require.TestingT, name, ip, identifier string, s Status) Entry {
	target := Target{
		Status: s, Stream: stream.Key{Trench: "t", Conduit: "c", Name: name}, IPs: []string{ip}, Context: map[string]string{},
	}
	if identifier != "" {
		target.Context["identifier"] = identifier
	}
	e, err := newEntry(target, Caller{}, "ns", Limits{}.withDefaults())
	require.NoError(t, err)
	return e
}

// enable registers twice, which is what it takes.
func enable(t require.TestingT, tab *table, name, ip, identifier string) *Entry {
	e := want(t, name, ip, identifier, Enabled)
	tab.register(e)
	return tab.register(e)[0].New
}

func TestFirstRegistrationIsDisabled(t *testing.T) {
	tab := newTable(5)
	e := want(t, "x", "10.0.0.1", "7", Enabled)
	first := tab.register(e)
	require.Len(t, first, 1)
	require.Nil(t, first[0].Old)
	require.True(t, first[0].Registered)
	require.Equal(t, Disabled, first[0].New.Status)
	require.False(t, first[0].New.Blocked)
	require.EqualValues(t, 5, first[0].New.ID)
	for _, s := range []Status{Enabled, Any, 7, Disabled} { // then any number as asked
		e.Status = s
		c := tab.register(e)
		require.Len(t, c, 1)
		require.Equal(t, s, c[0].New.Status)
		require.EqualValues(t, 5, c[0].New.ID)
	}
}

func TestRefreshChangesNothing(t *testing.T) { // P13
	tab := newTable(1)
	e := enable(t, tab, "x", "10.0.0.1", "7")
	tab.commit()
	c := tab.register(want(t, "x", "10.0.0.1", "7", Enabled))
	require.Equal(t, []Change{{Old: e, New: e, Registered: true}}, c)
	require.Same(t, c[0].Old, c[0].New)
	b, later := tab.staged()
	require.True(t, b.Empty())
	require.Empty(t, later)
}

func TestOnlyCallerChanged(t *testing.T) {
	tab := newTable(1)
	enable(t, tab, "x", "10.0.0.1", "7")
	tab.commit()
	e := want(t, "x", "10.0.0.1", "7", Enabled)
	e.Caller = Caller{Peer: netip.MustParseAddr("192.0.2.1"), PodUID: "u"}
	c := tab.register(e)
	require.NotSame(t, c[0].Old, c[0].New)
	require.Equal(t, e.Caller, c[0].New.Caller)
	b, later := tab.staged()
	require.True(t, b.Empty(), "nobody waits for that on the disk")
	require.Equal(t, []*Entry{c[0].New}, later)
}

func TestSpellingIsEchoedNotKeyed(t *testing.T) {
	tab := newTable(1)
	e := want(t, "x", "10.0.0.1", "7", Enabled)
	e.IPs = []string{"10.0.0.1", "fd00::1"}
	a := Target{Stream: e.Stream, IPs: []string{"10.0.0.1", "fd00::1"}}
	b := Target{Stream: e.Stream, IPs: []string{"FD00:0::0001/128", "10.0.0.1/32", "10.0.0.1"}}
	first, err := newEntry(a, Caller{}, "ns", Limits{}.withDefaults())
	require.NoError(t, err)
	second, err := newEntry(b, Caller{}, "ns", Limits{}.withDefaults())
	require.NoError(t, err)
	tab.register(first)
	tab.register(first)
	c := tab.register(second)
	require.Len(t, tab.entries, 1)
	require.Equal(t, b.IPs, c[0].New.IPs)
	require.Equal(t, a.IPs, c[0].Old.IPs)
	require.Equal(t, Enabled, c[0].New.Status)
}

func TestIdentifiers(t *testing.T) {
	t.Run("a holder blocks, and frees by leaving", func(t *testing.T) {
		tab := newTable(1)
		a := enable(t, tab, "x", "10.0.0.1", "7")
		b := enable(t, tab, "x", "10.0.0.2", "7")
		require.Equal(t, Enabled, a.Status)
		require.Equal(t, Disabled, b.Status)
		require.True(t, b.Blocked)
		c := tab.unregister(a.Key)
		require.Len(t, c, 2)
		require.Equal(t, Change{Old: a}, c[0])
		require.Same(t, b, c[1].Old)
		require.Equal(t, Enabled, c[1].New.Status)
		require.False(t, c[1].New.Blocked)
		require.False(t, c[1].Registered)
	})
	t.Run("frees by disabling or by another number", func(t *testing.T) {
		for _, e := range []Entry{want(t, "x", "10.0.0.1", "7", Disabled), want(t, "x", "10.0.0.1", "8", Enabled), want(t, "x", "10.0.0.1", "", Enabled)} {
			tab := newTable(1)
			enable(t, tab, "x", "10.0.0.1", "7")
			b := enable(t, tab, "x", "10.0.0.2", "7")
			c := tab.register(e)
			require.Len(t, c, 2)
			require.Equal(t, e.Key, c[0].New.Key)
			require.Equal(t, b.Key, c[1].New.Key)
			require.Equal(t, Enabled, c[1].New.Status)
		}
	})
	t.Run("the oldest that waits comes first", func(t *testing.T) {
		tab := newTable(1)
		a := enable(t, tab, "x", "10.0.0.1", "7")
		old := want(t, "x", "10.0.0.2", "7", Enabled)
		tab.register(old)
		enable(t, tab, "x", "10.0.0.3", "7")
		tab.register(old) // is blocked later, but was there before
		c := tab.unregister(a.Key)
		require.Equal(t, old.Key, c[1].New.Key)
		require.Len(t, c, 2)
		require.Equal(t, 1, tab.blocked)
	})
}

func TestWhoBlocksNobody(t *testing.T) {
	t.Run("plain DISABLED", func(t *testing.T) {
		tab := newTable(1)
		tab.register(want(t, "x", "10.0.0.1", "7", Disabled))
		require.Equal(t, Enabled, enable(t, tab, "x", "10.0.0.2", "7").Status)
	})
	t.Run("no number", func(t *testing.T) {
		tab := newTable(1)
		for i, id := range []string{"", "0", "abc", "-1", "4294967296", "7.0", " 7", "", "0", "abc"} {
			require.Equal(t, Enabled, enable(t, tab, "x", "10.0.0."+strconv.Itoa(i), id).Status, id)
		}
	})
	t.Run("another stream", func(t *testing.T) { // P16 P28
		tab := newTable(1)
		for _, st := range []stream.Key{
			{Trench: "t", Conduit: "c", Name: "x"}, {Trench: "t", Conduit: "c", Name: "y"},
			{Trench: "t", Conduit: "d", Name: "x"}, {Trench: "u", Conduit: "c", Name: "x"},
		} {
			target := Target{Stream: st, IPs: []string{"10.0.0.1"}, Context: map[string]string{"identifier": "7"}}
			e, err := newEntry(target, Caller{}, "ns", Limits{}.withDefaults())
			require.NoError(t, err)
			tab.register(e)
			require.Equal(t, Enabled, tab.register(e)[0].New.Status)
		}
		require.Len(t, tab.entries, 4)
	})
	t.Run("who goes at the same time", func(t *testing.T) {
		tab := newTable(1)
		a := enable(t, tab, "x", "10.0.0.1", "7")
		b := enable(t, tab, "x", "10.0.0.2", "7")
		c := enable(t, tab, "x", "10.0.0.3", "7")
		changes := tab.expire([]Key{a.Key, b.Key})
		require.Len(t, changes, 3)
		require.Equal(t, Change{Old: a, Expired: true}, changes[0])
		require.Equal(t, Change{Old: b, Expired: true}, changes[1])
		require.Equal(t, c.Key, changes[2].New.Key)
	})
}

func TestRestoreKeepsHolder(t *testing.T) {
	tab := newTable(1)
	waits := want(t, "x", "10.0.0.1", "7", Enabled)
	tab.register(waits)
	holder := enable(t, tab, "x", "10.0.0.2", "7")
	tab.register(waits)
	again := newTable(1)
	again.restore(tab.all())
	require.Equal(t, tab.all(), again.all())
	require.EqualValues(t, 3, again.nextID)
	b, _ := again.staged()
	require.True(t, b.Empty())

	require.Len(t, again.unregister(holder.Key), 2, "the other one is enabled")
	tab.unregister(holder.Key)
	orphan := *tab.entries[waits.Key]
	orphan.Status, orphan.Blocked = Disabled, true
	second := orphan
	second.Addrs, second.ID = "10.0.0.9/32", 9
	third := newTable(1)
	third.restore([]*Entry{&orphan, &second})
	require.Equal(t, Enabled, third.entries[orphan.Key].Status, "nobody holds it any more")
	require.True(t, third.entries[second.Key].Blocked)
}

func TestRememberIsForOneLife(t *testing.T) {
	tab := newTable(1)
	e := enable(t, tab, "x", "10.0.0.1", "7")
	tab.commit()
	tab.remember(e.ID, Memory{Listed: true})
	b, later := tab.staged()
	require.True(t, b.Empty())
	require.Len(t, later, 1)
	require.True(t, tab.register(want(t, "x", "10.0.0.1", "8", Enabled))[0].New.Memory.Listed, "a change keeps it")
	tab.unregister(e.Key)
	tab.register(want(t, "x", "10.0.0.1", "7", Enabled))
	tab.remember(e.ID, Memory{Listed: true})
	require.False(t, tab.entries[e.Key].Memory.Listed)
}

// twins are a table and a slow and plain model of it, which are told the same.
type twins struct {
	table *table
	model model
	next  uint64
	// saved is what rollback goes back to.
	saved     model
	savedNext uint64
	// told are the changes since the last commit; seen and stored are what changes and batches add up to.
	told         []Change
	seen, stored map[Key]*Entry
}

func (w *twins) register(t *rapid.T) {
	e := want(t, rapid.SampledFrom([]string{"x", "y"}).Draw(t, "stream"),
		rapid.SampledFrom([]string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.1/24"}).Draw(t, "ip"),
		rapid.SampledFrom([]string{"", "1", "2"}).Draw(t, "identifier"),
		rapid.SampledFrom([]Status{Enabled, Enabled, Enabled, Disabled, Any, 7}).Draw(t, "status"))
	e.Caller.PodUID = rapid.SampledFrom([]string{"", "u"}).Draw(t, "pod")
	w.next = w.model.register(e, w.next)
	w.told = append(w.told, w.table.register(e)...)
}

func (w *twins) remove(t *rapid.T) {
	keys := slices.SortedFunc(maps.Keys(w.model), func(a, b Key) int { return byID(w.model[a], w.model[b]) })
	if len(keys) == 0 {
		return
	}
	gone := rapid.SliceOfNDistinct(rapid.SampledFrom(keys), 1, 2, rapid.ID).Draw(t, "keys")
	for _, k := range gone {
		delete(w.model, k)
	}
	w.model.promote()
	w.told = append(w.told, w.table.expire(gone)...)
}

func (w *twins) remember(t *rapid.T) {
	id := rapid.Uint64Range(1, w.next).Draw(t, "id")
	w.table.remember(id, Memory{Reason: "r"})
	for _, e := range w.model {
		if e.ID == id {
			e.Memory.Reason = "r"
		}
	}
}

func (w *twins) commit(t *rapid.T) {
	b, later := w.table.staged()
	for _, k := range b.Delete {
		require.Contains(t, w.stored, k)
		delete(w.stored, k)
	}
	for _, e := range append(b.Put, later...) {
		w.stored[e.Key] = e
	}
	for _, c := range w.told {
		if c.New == nil {
			delete(w.seen, c.Old.Key)
		} else {
			w.seen[c.New.Key] = c.New
		}
	}
	w.table.commit()
	w.told, w.saved, w.savedNext = nil, w.model.clone(), w.next
	require.Equal(t, w.table.entries, w.stored)
	require.ElementsMatch(t, slices.Collect(maps.Keys(w.table.entries)), slices.Collect(maps.Keys(w.seen)))
	for k, e := range w.seen {
		require.True(t, sameClaim(e, w.table.entries[k]))
	}
}

func (w *twins) rollback(*rapid.T) {
	w.table.rollback()
	w.told, w.model, w.next = nil, w.saved.clone(), w.savedNext
}

// TestTableModel compares the table with a model, through commits and rollbacks, and checks that the changes and the batches
// it gives out add up to its state.
func TestTableModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &twins{
			table: newTable(1), model: model{}, next: 1, saved: model{}, savedNext: 1,
			seen: map[Key]*Entry{}, stored: map[Key]*Entry{},
		}
		t.Repeat(map[string]func(*rapid.T){
			"register": w.register, "remove": w.remove, "remember": w.remember, "commit": w.commit, "rollback": w.rollback,
			"": func(t *rapid.T) {
				require.Equal(t, w.model.list(), w.table.all())
				checkIndexes(t, w.table)
			},
		})
	})
}

// checkIndexes works the indexes out anew.
func checkIndexes(t *rapid.T, tab *table) {
	again := newTable(1)
	for _, e := range tab.all() {
		again.link(e)
	}
	require.Equal(t, again.holders, tab.holders)
	require.Equal(t, again.waiting, tab.waiting)
	require.Equal(t, again.ids, tab.ids)
	require.Equal(t, again.blocked, tab.blocked)
	for s := range tab.waiting {
		require.Contains(t, tab.holders, s)
	}
}

// model is the rules of identifiers, spelled out by looking at everything each time.
type model map[Key]*Entry

func (m model) register(e Entry, next uint64) uint64 {
	old := m[e.Key]
	switch {
	case old == nil:
		e.ID, e.Status = next, Disabled
		next++
	default:
		e.ID, e.Memory = old.ID, old.Memory
		if e.Status == Enabled && m.taken(&e) {
			e.Status, e.Blocked = Disabled, true
		}
	}
	m[e.Key] = &e
	m.promote()
	return next
}

func (m model) taken(by *Entry) bool {
	for _, o := range m {
		if o.Key != by.Key && o.Stream == by.Stream && o.Identifier == by.Identifier && o.Identifier != 0 && o.Status == Enabled {
			return true
		}
	}
	return false
}

func (m model) promote() {
	for _, e := range m.list() {
		if e.Blocked && !m.taken(e) {
			e.Status, e.Blocked = Enabled, false
		}
	}
}

func (m model) list() []*Entry { return slices.SortedFunc(maps.Values(m), byID) }

func (m model) clone() model {
	c := model{}
	for k, e := range m {
		c[k] = new(*e)
	}
	return c
}
