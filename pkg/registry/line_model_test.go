package registry

import (
	"maps"
	"slices"
	"strconv"

	"github.com/nordix/meridio-nsp/pkg/stream"
)

// lineModel is the rules of reservations, spelled out by looking at everything each time.
type lineModel struct {
	entries model
	next    uint64
	limits  map[stream.Key]uint32
	line    []*modelWaiter
	answers map[*reservation]reply
	grants  []*modelGrant
	// used counts what shows that a target is alive.
	used    map[Key]int
	failing bool
}

type modelWaiter struct {
	want          Entry
	ready, waited bool
	calls         []*reservation
}

// idle tells whether a waiter has no reason to stay.
func (w *modelWaiter) idle() bool { return len(w.calls) == 0 && !w.waited }

type modelGrant struct {
	key     Key
	id      uint64
	used    int
	created bool
	calls   map[*reservation]bool
}

func (m *lineModel) settled(k Key) bool {
	e := m.entries[k]
	return e != nil && e.Identifier != 0 && (e.Status == Enabled || e.Reserved) && (m.limits == nil || e.Identifier <= m.limits[e.Stream])
}

func (m *lineModel) reserve(e Entry, call *reservation) {
	if m.settled(e.Key) {
		m.used[e.Key]++
		m.answer(call, reply{identifier: m.entries[e.Key].Identifier})
		return
	}
	i := slices.IndexFunc(m.line, func(w *modelWaiter) bool { return w.want.Key == e.Key })
	if i < 0 {
		m.line, i = append(m.line, &modelWaiter{}), len(m.line)
	}
	w := m.line[i]
	w.want, w.calls, w.waited = e, append(w.calls, call), w.waited || call.wait
}

func (m *lineModel) register(e Entry) {
	m.used[e.Key]++
	old := m.entries[e.Key]
	if old == nil {
		e.ID, e.Status, m.next = m.next, Disabled, m.next+1
	} else {
		e.ID, e.Reserved = old.ID, old.Reserved && old.Identifier == e.Identifier && e.Identifier != 0
		if e.Status == Enabled && m.taken(e.Key, e.Stream, e.Identifier) {
			e.Status, e.Blocked = Disabled, true
		}
	}
	m.entries[e.Key] = &e
}

func (m *lineModel) unregister(k Key) {
	delete(m.entries, k)
	if m.failing {
		return
	}
	m.line = slices.DeleteFunc(m.line, func(w *modelWaiter) bool {
		if w.want.Key == k {
			for _, call := range w.calls {
				m.answer(call, reply{err: ErrWithdrawn})
			}
		}
		return w.want.Key == k
	})
}

func (m *lineModel) prefer(k Key, ready bool) {
	for _, w := range m.line {
		if w.want.Key == k {
			w.ready = ready
		}
	}
}

// keyOf is what a call asks or asked for.
func (m *lineModel) keyOf(call *reservation) (Key, bool) {
	for _, w := range m.line {
		if slices.Contains(w.calls, call) {
			return w.want.Key, true
		}
	}
	for _, g := range m.grants {
		if _, is := g.calls[call]; is {
			return g.key, true
		}
	}
	return Key{}, false
}

func (m *lineModel) abandon(k Key, call *reservation) {
	for _, w := range m.line {
		w.calls = slices.DeleteFunc(w.calls, func(c *reservation) bool { return c == call })
	}
	m.line = slices.DeleteFunc(m.line, (*modelWaiter).idle)
	for _, g := range m.grants {
		if _, is := g.calls[call]; !is {
			continue
		}
		g.calls[call] = true
		e := m.entries[k]
		all := !slices.Contains(slices.Collect(maps.Values(g.calls)), false)
		switch {
		case !all || e == nil || e.ID != g.id || m.used[k] != g.used || !e.Reserved:
		case g.created:
			m.unregister(k)
		default:
			e = new(*e)
			e.Reserved = false
			m.entries[k] = e
		}
	}
}

func (m *lineModel) taken(by Key, st stream.Key, id uint32) bool {
	for _, o := range m.entries {
		if o.Key != by && o.Stream == st && o.Identifier == id && id != 0 && (o.Status == Enabled || o.Reserved) {
			return true
		}
	}
	return false
}

// settle serves everybody who can be served, one after the other.
func (m *lineModel) settle() {
	for m.promoteOne() || m.contentOne() || m.giveOne() {
	}
	if m.limits == nil {
		return
	}
	for _, w := range m.line {
		w.calls = slices.DeleteFunc(w.calls, func(c *reservation) bool {
			if !c.wait {
				m.answer(c, reply{err: ErrFull})
			}
			return !c.wait
		})
	}
	m.line = slices.DeleteFunc(m.line, (*modelWaiter).idle)
}

func (m *lineModel) promoteOne() bool {
	for _, e := range m.entries.list() {
		if e.Blocked && !m.taken(e.Key, e.Stream, e.Identifier) {
			e = new(*e)
			e.Status, e.Blocked = Enabled, false
			m.entries[e.Key] = e
			return true
		}
	}
	return false
}

func (m *lineModel) contentOne() bool {
	for i, w := range m.line {
		if m.settled(w.want.Key) {
			m.leave(i, m.entries[w.want.Key].Identifier)
			return true
		}
	}
	return false
}

func (m *lineModel) leave(i int, id uint32) {
	for _, call := range m.line[i].calls {
		m.answer(call, reply{identifier: id})
	}
	m.line = slices.Delete(m.line, i, i+1)
}

func (m *lineModel) giveOne() bool {
	for _, ready := range []bool{true, false} {
		for i, w := range m.line {
			live := slices.ContainsFunc(w.calls, func(c *reservation) bool { return c.ctx.Err() == nil })
			if w.ready == ready && live && m.limits != nil && m.give(i) {
				return true
			}
		}
	}
	return false
}

func (m *lineModel) give(i int) bool {
	w := m.line[i]
	for id := uint32(1); id <= m.limits[w.want.Stream]; id++ {
		if m.taken(Key{}, w.want.Stream, id) {
			continue
		}
		e := w.want
		e.Context, e.Identifier, e.Reserved = map[string]string{"identifier": strconv.Itoa(int(id))}, id, true
		old := m.entries[e.Key]
		if old != nil {
			e.ID = old.ID
		} else {
			e.ID, m.next = m.next, m.next+1
		}
		m.entries[e.Key] = &e
		m.used[e.Key]++
		g := &modelGrant{key: e.Key, id: e.ID, used: m.used[e.Key], created: old == nil, calls: map[*reservation]bool{}}
		for _, call := range w.calls {
			g.calls[call] = call.gone
		}
		m.grants = append(m.grants, g)
		m.leave(i, id)
		return true
	}
	return false
}

func (m *lineModel) answer(call *reservation, r reply) {
	if m.failing {
		return
	}
	if m.answers == nil {
		m.answers = map[*reservation]reply{}
	}
	if _, has := m.answers[call]; !has {
		m.answers[call] = r
	}
}
