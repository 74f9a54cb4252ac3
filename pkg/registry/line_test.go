package registry

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/nordix/meridio-nsp/pkg/stream"
)

// asked is one call of Reserve as the model sees it.
type asked struct {
	*reservation
	cancel context.CancelFunc
}

func ask(wait bool) asked {
	ctx, cancel := context.WithCancel(context.Background())
	return asked{&reservation{ctx: ctx, wait: wait, answer: make(chan reply, 1)}, cancel}
}

func (a asked) got(t require.TestingT) reply {
	select {
	case r := <-a.answer:
		return r
	default:
		require.Fail(t, "the call has no answer")
		return reply{}
	}
}

// done ends a transaction as the registry does.
func done(tab *table, changes []Change) []Change {
	tab.commit()
	changes = append(changes, tab.waitingChanges()...)
	tab.deliver()
	return changes
}

func limited(n uint32) *table {
	tab := newTable(1)
	tab.limits["t"] = map[stream.Key]uint32{keyOf("x"): n, keyOf("y"): n}
	return tab
}

func keyOf(name string) stream.Key {
	return stream.Key{Namespace: "ns", Trench: "t", Conduit: "c", Name: name}
}

// reserve is one call, with its transaction.
func reserve(t require.TestingT, tab *table, ip string, wait bool) (asked, []Change) {
	call := ask(wait)
	return call, done(tab, tab.reserve(want(t, "x", ip, "", Disabled), call.reservation))
}

func reserved(t require.TestingT, tab *table, ip string) uint32 {
	call, _ := reserve(t, tab, ip, false)
	r := call.got(t)
	require.NoError(t, r.err)
	return r.identifier
}

func TestReserveGivesTheLowestFree(t *testing.T) {
	tab := limited(3)
	require.EqualValues(t, 1, reserved(t, tab, "10.0.0.1"))
	require.EqualValues(t, 1, reserved(t, tab, "10.0.0.1"), "it has one")
	enable(t, tab, "x", "10.0.0.2", "2")
	require.EqualValues(t, 3, reserved(t, tab, "10.0.0.3"))
	call, changes := reserve(t, tab, "10.0.0.4", false)
	require.ErrorIs(t, call.got(t).err, ErrFull)
	require.Empty(t, changes, "nobody hears of a call that did not wait")
	done(tab, tab.unregister(want(t, "x", "10.0.0.1", "", Disabled).Key))
	require.EqualValues(t, 1, reserved(t, tab, "10.0.0.4"))
	e := tab.entries[want(t, "x", "10.0.0.4", "", Disabled).Key]
	require.Equal(t, "1", e.Context["identifier"])
	require.Equal(t, Disabled, e.Status)
}

func TestReservationBlocksAndOutlivesEnabling(t *testing.T) {
	tab := limited(3)
	reserved(t, tab, "10.0.0.1")
	old := enable(t, tab, "x", "10.0.0.2", "1")
	require.True(t, old.Blocked)
	e := tab.register(want(t, "x", "10.0.0.1", "1", Enabled))[0].New
	require.Equal(t, Enabled, e.Status)
	e = tab.register(want(t, "x", "10.0.0.1", "1", Disabled))[0].New
	require.True(t, e.Reserved, "it is kept while the number is")
	changes := tab.register(want(t, "x", "10.0.0.1", "2", Disabled))
	require.False(t, changes[0].New.Reserved)
	require.Equal(t, old.Key, changes[1].New.Key, "the number that was given up goes to whoever waits for it")
	require.Equal(t, Enabled, changes[1].New.Status)
}

func TestPlainDisabledTakesNoIdentifier(t *testing.T) {
	tab := limited(1)
	tab.register(want(t, "x", "10.0.0.1", "1", Disabled))
	require.EqualValues(t, 1, reserved(t, tab, "10.0.0.2"))
	require.True(t, enable(t, tab, "x", "10.0.0.1", "1").Blocked)
}

func TestWaitersComeInOrder(t *testing.T) { // D9
	tab := limited(1)
	reserved(t, tab, "10.0.0.1")
	first, changes := reserve(t, tab, "10.0.0.2", true)
	require.Len(t, changes, 1)
	require.True(t, changes[0].Waiting)
	second, _ := reserve(t, tab, "10.0.0.3", true)
	third, _ := reserve(t, tab, "10.0.0.4", true)
	tab.prefer(map[Key]bool{want(t, "x", "10.0.0.3", "", Disabled).Key: true})

	leave := func(ip string) []Change { return done(tab, tab.unregister(want(t, "x", ip, "", Disabled).Key)) }
	changes = leave("10.0.0.1")
	require.Len(t, changes, 3, "gone, given, and waiting no more")
	require.EqualValues(t, 1, second.got(t).identifier, "a Ready member comes before others")
	first.cancel()
	leave("10.0.0.3")
	require.EqualValues(t, 1, third.got(t).identifier, "whoever gave up takes nothing")

	again, _ := reserve(t, tab, "10.0.0.2", true)
	later, _ := reserve(t, tab, "10.0.0.5", true)
	tab.prefer(map[Key]bool{want(t, "x", "10.0.0.2", "", Disabled).Key: false})
	leave("10.0.0.4")
	require.EqualValues(t, 1, again.got(t).identifier, "he is where he was in the line")
	require.Empty(t, later.answer)
}

func TestLimitsDecide(t *testing.T) {
	tab := newTable(1)
	waits, _ := reserve(t, tab, "10.0.0.1", true)
	asks, _ := reserve(t, tab, "10.0.0.2", false)
	other, _ := reserve(t, tab, "10.0.0.3", false)
	require.Empty(t, asks.answer, "not known yet")
	tab.limits["t"] = map[stream.Key]uint32{keyOf("x"): 2}
	done(tab, tab.reconsider(nil))
	require.EqualValues(t, 1, waits.got(t).identifier)
	require.EqualValues(t, 2, asks.got(t).identifier)
	require.ErrorIs(t, other.got(t).err, ErrFull)

	tab.limits["t"] = map[stream.Key]uint32{keyOf("x"): 1}
	moved, _ := reserve(t, tab, "10.0.0.2", true)
	require.Empty(t, moved.answer, "2 is no identifier any more")
	tab.limits["t"] = map[stream.Key]uint32{}
	done(tab, tab.reconsider(nil))
	require.EqualValues(t, 2, moved.got(t).identifier, "absent is 100")
}

func TestAbandonedReservation(t *testing.T) { // P25
	give := func(t *testing.T, known bool) (*table, asked, Key) {
		tab := limited(1)
		if known {
			tab.register(want(t, "x", "10.0.0.1", "7", Disabled))
		}
		call, _ := reserve(t, tab, "10.0.0.1", true)
		return tab, call, want(t, "x", "10.0.0.1", "", Disabled).Key
	}
	t.Run("goes", func(t *testing.T) {
		tab, call, k := give(t, false)
		done(tab, tab.abandon(k, call.reservation))
		require.Empty(t, tab.entries)
	})
	t.Run("leaves what was there", func(t *testing.T) {
		tab, call, k := give(t, true)
		done(tab, tab.abandon(k, call.reservation))
		require.False(t, tab.entries[k].Reserved)
		require.EqualValues(t, 1, reserved(t, tab, "10.0.0.2"))
	})
	t.Run("stays where it was used", func(t *testing.T) {
		tab, call, k := give(t, false)
		tab.register(want(t, "x", "10.0.0.1", "1", Disabled))
		done(tab, tab.abandon(k, call.reservation))
		require.True(t, tab.entries[k].Reserved)
	})
	t.Run("goes though more was given in vain", func(t *testing.T) {
		tab := limited(2)
		reserved(t, tab, "10.0.0.1")
		call, _ := reserve(t, tab, "10.0.0.2", true)
		tab.limits["t"] = map[stream.Key]uint32{keyOf("x"): 1}
		reserve(t, tab, "10.0.0.2", true)
		tab.unregister(want(t, "x", "10.0.0.1", "", Disabled).Key) // gives away 1
		tab.rollback()
		k := want(t, "x", "10.0.0.2", "", Disabled).Key
		require.EqualValues(t, 2, tab.entries[k].Identifier)
		done(tab, tab.abandon(k, call.reservation))
		require.Nil(t, tab.entries[k])
	})
	t.Run("is void for whom nobody calls any more", func(t *testing.T) {
		tab := limited(1)
		reserved(t, tab, "10.0.0.1")
		call, _ := reserve(t, tab, "10.0.0.2", true)
		call.cancel()
		done(tab, tab.unregister(want(t, "x", "10.0.0.1", "", Disabled).Key))
		require.Empty(t, tab.entries)
		changes := done(tab, tab.reconsider([]Key{want(t, "x", "10.0.0.2", "", Disabled).Key}))
		require.Len(t, changes, 1)
		require.True(t, changes[0].Waiting)
		require.Empty(t, tab.waiters)
	})
	t.Run("unregistering while waiting", func(t *testing.T) {
		tab := limited(1)
		reserved(t, tab, "10.0.0.1")
		call, _ := reserve(t, tab, "10.0.0.2", true)
		done(tab, tab.unregister(want(t, "x", "10.0.0.2", "", Disabled).Key))
		require.ErrorIs(t, call.got(t).err, ErrWithdrawn)
		require.Empty(t, tab.waiters)
	})
}

// TestReservationModel compares the table with a plain model: who has which number, who waits in which order, who was answered
// what. A failing store is part of it.
func TestReservationModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &lineWorld{tab: newTable(1), m: lineModel{entries: model{}, used: map[Key]int{}, next: 1}, told: map[Key]bool{}}
		w.checkEach(t)
		ip := rapid.SampledFrom([]string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5"})
		name := rapid.SampledFrom([]string{"x", "x", "y"})
		t.Repeat(map[string]func(*rapid.T){
			"reserve": func(t *rapid.T) {
				e, call := want(t, name.Draw(t, "stream"), ip.Draw(t, "ip"), "", Disabled), ask(rapid.Bool().Draw(t, "wait"))
				w.calls = append(w.calls, call)
				w.step(t, func() []Change { return w.tab.reserve(e, call.reservation) }, func() { w.m.reserve(e, call.reservation) })
			},
			"register": func(t *rapid.T) {
				e := want(t, name.Draw(t, "stream"), ip.Draw(t, "ip"), rapid.SampledFrom([]string{"", "1", "2", "3"}).Draw(t, "identifier"),
					rapid.SampledFrom([]Status{Enabled, Enabled, Disabled}).Draw(t, "status"))
				w.step(t, func() []Change { return w.tab.register(e) }, func() { w.m.register(e) })
			},
			"unregister": func(t *rapid.T) {
				k := want(t, name.Draw(t, "stream"), ip.Draw(t, "ip"), "", Disabled).Key
				w.step(t, func() []Change { return w.tab.unregister(k) }, func() { w.m.unregister(k) })
			},
			"expire": func(t *rapid.T) {
				k := want(t, name.Draw(t, "stream"), ip.Draw(t, "ip"), "", Disabled).Key
				o := want(t, name.Draw(t, "other stream"), ip.Draw(t, "other ip"), "", Disabled).Key
				w.step(t, func() []Change { return w.tab.expire([]Key{k, o}) }, func() { delete(w.m.entries, k); delete(w.m.entries, o) })
			},
			"limit": func(t *rapid.T) {
				limits := map[stream.Key]uint32{
					keyOf("x"): rapid.Uint32Range(1, 4).Draw(t, "limit"), keyOf("y"): rapid.Uint32Range(1, 2).Draw(t, "limit of y"),
				}
				w.tab.limits["t"], w.m.limits = limits, limits
				w.step(t, func() []Change { return w.tab.reconsider(nil) }, func() {})
			},
			"prefer": func(t *rapid.T) {
				k, ready := want(t, name.Draw(t, "stream"), ip.Draw(t, "ip"), "", Disabled).Key, rapid.Bool().Draw(t, "ready")
				w.tab.prefer(map[Key]bool{k: ready})
				w.m.prefer(k, ready)
			},
			"give up": func(t *rapid.T) {
				if len(w.calls) == 0 {
					return
				}
				call := rapid.SampledFrom(w.calls).Draw(t, "call")
				call.cancel()
				k, found := w.m.keyOf(call.reservation)
				if !found || rapid.Bool().Draw(t, "unnoticed") {
					return
				}
				w.step(t, func() []Change { return w.tab.abandon(k, call.reservation) }, func() { w.m.abandon(k, call.reservation) })
			},
			"": func(t *rapid.T) { w.checkEach(t) },
		})
	})
}

// lineWorld drives the table and the model side by side.
type lineWorld struct {
	tab   *table
	m     lineModel
	calls []asked
	told  map[Key]bool
}

func (w *lineWorld) step(t *rapid.T, real func() []Change, plain func()) {
	changes := real()
	if rapid.IntRange(0, 5).Draw(t, "store fails") == 0 {
		w.tab.rollback()
		entries, next := w.m.entries.clone(), w.m.next
		w.m.failing = true
		plain()
		w.m.failing, w.m.entries, w.m.next = false, entries, next
		changes = w.tab.reconsider(nil) // as at the next tick
	} else {
		plain()
	}
	w.m.settle()
	for _, c := range done(w.tab, changes) {
		switch {
		case c.Waiting && c.New != nil:
			w.told[c.New.Key] = true
		case c.Waiting:
			delete(w.told, c.Old.Key)
		}
	}
}

func (w *lineWorld) checkEach(t *rapid.T) {
	checkIndexes(t, w.tab)
	waiting := map[Key]bool{}
	for _, name := range []string{"x", "y"} {
		require.Equal(t, entriesOf(name, w.m.entries.list()), entriesOf(name, w.tab.all()))
		var have, should []Key
		for _, one := range w.tab.lines[keyOf(name)] {
			have = append(have, one.want.Key)
		}
		for _, one := range w.m.line {
			if one.want.Stream == keyOf(name) {
				should = append(should, one.want.Key)
				waiting[one.want.Key] = true
			}
		}
		require.Equal(t, should, have)
		held := map[uint32]bool{}
		for _, e := range w.tab.all() {
			if e.Stream == keyOf(name) && e.Holds() {
				require.False(t, held[e.Identifier], "given twice")
				held[e.Identifier] = true
			}
		}
	}
	require.Equal(t, waiting, w.told)
	for _, call := range w.calls {
		should, answered := w.m.answers[call.reservation]
		select {
		case r := <-call.answer:
			call.answer <- r
			require.True(t, answered, "nobody should have answered %v", r)
			require.Equal(t, should.identifier, r.identifier)
			require.Equal(t, should.err == nil, r.err == nil)
		default:
			require.False(t, answered, "an answer %v is missing", should)
		}
	}
}

// entriesOf are the entries of a stream in their order. The numbers themselves say in which order streams were served.
func entriesOf(name string, all []*Entry) []Entry {
	var found []Entry
	for _, e := range all {
		if e.Stream.Name == name {
			plain := *e
			plain.ID = 0
			found = append(found, plain)
		}
	}
	return found
}
