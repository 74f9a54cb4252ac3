package registry

import (
	"context"
	"maps"
	"slices"

	"github.com/nordix/meridio-nsp/pkg/stream"
)

// reservation is one call of Reserve.
type reservation struct {
	ctx    context.Context
	wait   bool
	answer chan reply // has room for one
	// grant is what the call was answered with, nil where that was there before.
	grant *grant
	gone  bool
}

type reply struct {
	identifier uint32
	err        error
}

// grant is a reservation that was given, until its callers have used it.
type grant struct {
	id, registered uint64
	// before is the count of registrations that the key had, 0 for none.
	before uint64
	// created is set where there was no entry before.
	created bool
	calls   []*reservation
}

// waiter is a target that waits for an identifier. One whose callers gave up keeps its place for a lease but takes nothing.
type waiter struct {
	want  *Entry
	ready bool
	calls []*reservation
	// waited is set once one of its callers was willing to wait: only then it keeps its place without one.
	waited bool
	// done is set when it is to leave the line at the next commit.
	done bool
	// told is whether the sink knows of it, fresh whether it has to hear of it again.
	told, fresh bool
}

// pending is an answer that is not given yet.
type pending struct {
	call  *reservation
	reply reply
}

// reservations are the part of a table that gives identifiers away.
//
// Invariant: nobody waits with a caller while an identifier within the limits is free, except where the store failed.
type reservations struct {
	// limits are by trench; one that is not in it is not known yet.
	limits map[string]map[stream.Key]uint32
	// lowest is an identifier below which all are held; 1 where there is nothing.
	lowest map[stream.Key]uint32
	// lines have the waiters in the order of their arrival.
	lines   map[stream.Key][]*waiter
	waiters map[Key]*waiter
	// leaving are done since the last commit, and staged are their answers; committed are the answers that may be given.
	leaving           []*waiter
	staged, committed []pending
	// impatient are the calls that do not wait, and news the waiters of which the sink has to hear.
	impatient []*waiter
	news      []*waiter
}

func newReservations() reservations {
	return reservations{
		limits: map[string]map[stream.Key]uint32{}, lowest: map[stream.Key]uint32{},
		lines: map[stream.Key][]*waiter{}, waiters: map[Key]*waiter{},
	}
}

// reserve lines a call up and serves the line.
func (t *table) reserve(want Entry, call *reservation) []Change {
	if old := t.entries[want.Key]; old != nil && t.settled(old) {
		return t.refresh(old, want.Caller, call)
	}
	t.join(want, call)
	return t.admit(want.Stream)
}

// settled tells whether an entry holds an identifier within the limits. While those are unknown it may have the benefit of the
// doubt: they were known when it got it.
func (t *table) settled(e *Entry) bool {
	limit, known := t.limit(e.Stream)
	return e.Holds() && (!known || e.Identifier <= limit)
}

// refresh answers a call with what its target has.
func (t *table) refresh(old *Entry, c Caller, call *reservation) []Change {
	t.registrations++
	t.registered[old.Key] = t.registrations
	t.reservations.staged = append(t.reservations.staged, pending{call, reply{identifier: old.Identifier}})
	e := old
	if old.Caller != c {
		e = new(*old)
		e.Caller = c
		t.put(e)
	}
	return []Change{{Old: old, New: e, Reserved: true}}
}

func (t *table) join(want Entry, call *reservation) {
	w := t.waiters[want.Key]
	if w == nil || w.done {
		w = &waiter{}
		t.waiters[want.Key] = w
		t.lines[want.Stream] = append(t.lines[want.Stream], w)
	}
	w.want, w.fresh, w.waited = &want, true, w.waited || call.wait
	if !slices.Contains(w.calls, call) {
		w.calls = append(w.calls, call)
	}
	t.news = append(t.news, w)
	if !call.wait {
		t.impatient = append(t.impatient, w)
	}
}

// limit is how many targets a stream may have, where that is known.
func (t *table) limit(k stream.Key) (uint32, bool) {
	limits, known := t.limits[k.Trench]
	return stream.MaxTargets(limits[k]), known
}

// admit gives the free identifiers of a stream to those who wait.
func (t *table) admit(k stream.Key) []Change {
	if len(t.lines[k]) == 0 {
		return nil
	}
	limit, known := t.limit(k)
	if !known {
		return nil
	}
	var changes []Change
	for w := t.next(k); w != nil && t.lowestFree(k) <= limit; w = t.next(k) {
		changes = append(changes, t.give(w, t.lowestFree(k))...)
	}
	return changes
}

// next is the first one who is Ready, else the first one, of those whose callers are still there.
func (t *table) next(k stream.Key) *waiter {
	var first *waiter
	for _, w := range t.lines[k] {
		if w.done || !w.live() {
			continue
		}
		if w.ready {
			return w
		}
		if first == nil {
			first = w
		}
	}
	return first
}

func (w *waiter) live() bool {
	return slices.ContainsFunc(w.calls, func(c *reservation) bool { return c.ctx.Err() == nil })
}

func (t *table) lowestFree(k stream.Key) uint32 {
	at := slot{k.Trench, k, max(1, t.lowest[k])}
	for t.holders[at] != nil {
		at.identifier++
	}
	if at.identifier > 1 {
		t.lowest[k] = at.identifier
	}
	for t.holders[at] != nil || len(t.waiting[at]) > 0 { // whoever waits for this very slot is about to get it
		at.identifier++
	}
	return at.identifier
}

// freed is called when a slot has no holder any more.
func (t *table) freed(s slot) {
	switch {
	case s.identifier >= t.lowest[s.stream]:
	case s.identifier == 1:
		delete(t.lowest, s.stream)
	default:
		t.lowest[s.stream] = s.identifier
	}
}

// give makes a reservation of what is waited for.
func (t *table) give(w *waiter, id uint32) []Change {
	e, old := *w.want, t.entries[w.want.Key]
	e.Context, e.Identifier, e.Reserved = withIdentifier(e.Context, id), id, true
	if old == nil {
		e.ID = t.nextID
		t.nextID++
	} else {
		e.ID, e.Memory = old.ID, old.Memory
	}
	t.put(&e)
	before := t.registered[e.Key]
	t.registrations++
	t.registered[e.Key] = t.registrations
	t.dismiss(w, reply{identifier: id}, &grant{
		id: e.ID, registered: t.registrations, before: before, created: old == nil, calls: slices.Clone(w.calls),
	})
	return append([]Change{{Old: old, New: &e, Reserved: true}}, t.promote(old)...)
}

// dismiss has a waiter leave the line with an answer.
func (t *table) dismiss(w *waiter, r reply, g *grant) {
	w.done = true
	t.leaving = append(t.leaving, w)
	for _, call := range w.calls {
		call.grant = g
		t.reservations.staged = append(t.reservations.staged, pending{call, r})
	}
}

// content answers those who wait under the key of an entry that has an identifier by now.
func (t *table) content(e *Entry) {
	if w := t.waiters[e.Key]; w != nil && !w.done && t.settled(e) {
		t.dismiss(w, reply{identifier: e.Identifier}, nil)
	}
}

// withdraw sends those away who wait under a key.
func (t *table) withdraw(k Key) {
	if w := t.waiters[k]; w != nil && !w.done {
		t.dismiss(w, reply{err: ErrWithdrawn}, nil)
	}
}

// abandon is for a call whose caller gave up. What it was given goes back, unless it was used since.
func (t *table) abandon(k Key, call *reservation) []Change {
	call.gone = true
	if w := t.waiters[k]; w != nil && !w.done {
		w.calls = slices.DeleteFunc(w.calls, func(c *reservation) bool { return c == call })
		if len(w.calls) == 0 && !w.waited {
			t.leave([]*waiter{w})
		}
	}
	g, e := call.grant, t.entries[k]
	if g == nil || slices.ContainsFunc(g.calls, func(c *reservation) bool { return !c.gone }) {
		return nil
	}
	if e == nil || e.ID != g.id || t.registered[k] != g.registered || !e.Reserved {
		return nil
	}
	if g.created {
		return t.unregister(k)
	}
	plain := *e
	plain.Reserved = false
	t.put(&plain)
	return append([]Change{{Old: e, New: &plain}}, t.promote(e)...)
}

// prefer notes who comes before others.
func (t *table) prefer(ready map[Key]bool) {
	for k, is := range ready {
		if w := t.waiters[k]; w != nil {
			w.ready = is
		}
	}
}

// reconsider serves all lines, from which those whose lease is due leave if nobody calls for them.
func (t *table) reconsider(due []Key) []Change {
	for _, k := range due {
		switch w := t.waiters[k]; {
		case w == nil || w.done:
		case w.live():
			w.fresh = true // renews the lease
			t.news = append(t.news, w)
		default:
			t.dismiss(w, reply{err: context.Canceled}, nil)
		}
	}
	for _, w := range t.waiters {
		if e := t.entries[w.want.Key]; e != nil {
			t.content(e) // the limits may be others now
		}
	}
	var changes []Change
	for _, k := range slices.SortedFunc(maps.Keys(t.lines), stream.Compare) {
		changes = append(changes, t.admit(k)...)
	}
	return changes
}

// keepAnswers is part of commit: what was decided stays so.
func (t *table) keepAnswers() {
	t.committed = append(t.committed, t.reservations.staged...)
	t.reservations.staged = nil
	t.leave(t.leaving)
	t.leaving = nil
	t.turnAway()
}

// dropAnswers is part of rollback: nothing was decided. Who has lined up again meanwhile stands for both.
func (t *table) dropAnswers() {
	var gone []*waiter
	for _, w := range t.leaving {
		for _, call := range w.calls {
			t.undo(w.want.Key, call.grant)
			call.grant = nil
		}
		if now := t.waiters[w.want.Key]; now == w {
			w.done = false
		} else {
			now.calls = append(now.calls, w.calls...)
			gone = append(gone, w)
		}
	}
	t.reservations.staged, t.leaving = nil, nil
	t.leave(gone)
}

// undo takes back that a grant counts as a registration, unless there was one since: nobody has called.
func (t *table) undo(k Key, g *grant) {
	if g == nil || t.registered[k] != g.registered {
		return
	}
	if t.registered[k] = g.before; g.before == 0 {
		delete(t.registered, k)
	}
}

// leave takes waiters out of their lines, each line once.
func (t *table) leave(gone []*waiter) {
	lines := map[stream.Key]bool{}
	for _, w := range gone {
		w.done = true
		if t.waiters[w.want.Key] == w {
			delete(t.waiters, w.want.Key)
		}
		lines[w.want.Stream] = true
		t.news = append(t.news, w)
	}
	for k := range lines {
		if t.lines[k] = slices.DeleteFunc(t.lines[k], func(w *waiter) bool { return w.done }); len(t.lines[k]) == 0 {
			delete(t.lines, k)
		}
	}
}

// turnAway answers those who do not wait, where it is known that there is nothing for them.
func (t *table) turnAway() {
	var gone, still []*waiter
	for _, w := range t.impatient {
		limit, known := t.limit(w.want.Stream)
		if !known && !w.done {
			still = append(still, w)
			continue
		}
		if w.done {
			continue
		}
		w.calls = slices.DeleteFunc(w.calls, func(c *reservation) bool {
			if !c.wait {
				t.committed = append(t.committed, pending{c, reply{err: full(w.want.Stream, limit)}})
			}
			return !c.wait
		})
		if len(w.calls) == 0 && !w.waited {
			w.done = true
			gone = append(gone, w)
		}
	}
	t.impatient = still
	t.leave(gone)
}

// waitingChanges says who waits since the last time, and who does not any more.
func (t *table) waitingChanges() []Change {
	var changes []Change
	for _, w := range t.news {
		switch there := t.waiters[w.want.Key] == w; {
		case there && w.fresh:
			w.told, w.fresh = true, false
			changes = append(changes, Change{New: w.want, Waiting: true})
		case !there && w.told:
			w.told = false
			if t.waiters[w.want.Key] == nil {
				changes = append(changes, Change{Old: w.want, Waiting: true})
			}
		}
	}
	t.news = nil
	return changes
}

// deliver gives the answers that are committed.
func (t *table) deliver() {
	for _, p := range t.committed {
		select {
		case p.call.answer <- p.reply:
		default: // it has one
		}
	}
	t.committed = nil
}
