package engine

import (
	"slices"
	"strings"

	"github.com/nordix/meridio-nsp/pkg/pool"
	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// Counts counts the members of one pool by what their registrations in its stream come to. A pod may have several
// registrations there, while it changes its addresses say: it counts once in each field that one of them is for.
type Counts struct {
	// Registered members have a registration; Active and Draining ones take traffic.
	Registered, Active, Draining int
	// Blocked registrations wait for the identifier that they state; Invalid ones state none in 1..max-targets; Waiting are not
	// registered yet, because they wait to be given one.
	Blocked, Invalid, Waiting int
}

func (c Counts) plus(o Counts, n int) Counts {
	return Counts{
		Registered: c.Registered + n*o.Registered, Active: c.Active + n*o.Active, Draining: c.Draining + n*o.Draining,
		Blocked: c.Blocked + n*o.Blocked, Invalid: c.Invalid + n*o.Invalid, Waiting: c.Waiting + n*o.Waiting,
	}
}

// once has 1 where c has more.
func (c Counts) once() Counts {
	return Counts{
		Registered: min(1, c.Registered), Active: min(1, c.Active), Draining: min(1, c.Draining),
		Blocked: min(1, c.Blocked), Invalid: min(1, c.Invalid), Waiting: min(1, c.Waiting),
	}
}

// waits tells whether one of the registrations that are counted is without an identifier that it may use.
func (c Counts) waits() bool { return c.Blocked+c.Invalid+c.Waiting > 0 }

func countsOf(r *Row) Counts {
	c := Counts{Registered: 1}
	switch {
	case r.State == Active:
		c.Active = 1
	case r.State == Draining:
		c.Draining = 1
	case r.Reason == ReasonBlocked:
		c.Blocked = 1
	case r.Reason == ReasonInvalid:
		c.Invalid = 1
	}
	return c
}

// seat is what one registration adds: to the counts of the pools that list its member, or to the strangers of its stream.
type seat struct {
	member pool.MemberKey
	pools  []pool.Ref
	counts Counts
	stream stream.Key
	// stranger has the ID of the registration where it belongs to no member, 0 otherwise; name is for people.
	stranger uint64
	name     string
}

func (x seat) equal(y seat) bool {
	return x.member == y.member && slices.Equal(x.pools, y.pools) && x.counts == y.counts && x.stranger == y.stranger &&
		x.name == y.name
}

// tally has the counts of all pools. They are kept by difference: a pool may have thousands of members.
type tally struct {
	pools map[pool.Ref]Counts
	// members has the registrations of one member in one pool.
	members map[poolMember]Counts
	// waiting are the members of each pool that wait for an identifier.
	waiting rolls[pool.Ref, pool.MemberKey]
}

type poolMember struct {
	pool   pool.Ref
	member pool.MemberKey
}

func newTally() tally {
	return tally{pools: make(map[pool.Ref]Counts), members: make(map[poolMember]Counts), waiting: make(rolls[pool.Ref, pool.MemberKey])}
}

// add books a seat, or takes it back where n is -1.
func (t *tally) add(x seat, n int) {
	for _, ref := range x.pools {
		k := poolMember{ref, x.member}
		before := t.members[k]
		after := before.plus(x.counts, n)
		set(t.members, k, after)
		set(t.pools, ref, t.pools[ref].plus(before.once(), -1).plus(after.once(), +1))
		if after.waits() {
			t.waiting.add(ref, x.member, x.name)
		} else {
			t.waiting.remove(ref, x.member)
		}
	}
}

func set[K comparable](m map[K]Counts, k K, c Counts) {
	if c == (Counts{}) {
		delete(m, k)
		return
	}
	m[k] = c
}

// reseat books a registration anew after its row or its member changed.
func (s *state) reseat(r *record, now seat, st *step) {
	last := r.seat
	r.seat = now
	if now.equal(last) {
		return
	}
	s.book(last, -1, st)
	s.book(now, +1, st)
}

func (s *state) book(x seat, n int, st *step) {
	s.tally.add(x, n)
	for _, ref := range x.pools {
		s.dirtyPools[ref] = true
	}
	if x.stranger == 0 {
		return
	}
	if n > 0 {
		s.stream(x.stream).strangers.add(x.stranger, x.name)
	} else {
		s.stream(x.stream).strangers.remove(x.stranger)
	}
	st.streams[x.stream] = true
}

func (s *state) seatOf(r *record, now *Row) seat {
	if now == nil || now.Entry.Type != registry.Default {
		return seat{}
	}
	ans, listed := s.answer(r)
	if !listed {
		return seat{stream: now.Entry.Stream, stranger: now.Entry.ID, name: strangerName(now)}
	}
	return seat{
		member: r.member.Key, pools: ans.Services, counts: countsOf(now), stream: now.Entry.Stream, name: memberName(r.member),
	}
}

// strangerName says what is known of a registration that belongs to no member.
func strangerName(r *Row) string {
	const shown = 2
	ips := r.Entry.IPs
	name := strings.Join(ips[:min(shown, len(ips))], ",")
	if len(ips) > shown {
		name += ",..."
	}
	if r.Pod != "" {
		name += " of pod " + r.Pod
	}
	return name
}

// memberName is the pod's name in the namespace of its pools.
func memberName(m *pool.Member) string {
	switch {
	case m.Key.External():
		return m.Key.Addr.String()
	case m.Name == "":
		return m.Key.UID
	}
	return m.Name
}
