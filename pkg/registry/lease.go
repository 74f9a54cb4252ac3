package registry

import (
	"container/list"
	"time"
)

// Leases knows which entry was refreshed when, on a clock that counts only time in which a refresh could have been
// served: while the process is stopped or the store stalls, refreshes wait outside, and nobody must lose a lease for that.
type Leases struct {
	timeout time.Duration
	// tick is how often the clock is meant to be advanced, and its resolution.
	tick  time.Duration
	clock time.Duration
	late  bool
	// order has a *lease for every entry, the one that waits longest first. All leases have one length, so it is also
	// the order in which they end.
	order *list.List
	index map[Key]*list.Element
}

type lease struct {
	key       Key
	refreshed time.Duration
}

// NewLeases makes an empty set of leases of one length.
func NewLeases(timeout time.Duration) *Leases {
	const least, most = 10 * time.Millisecond, time.Second
	return &Leases{
		timeout: timeout, tick: min(max(timeout/20, least), most),
		order: list.New(), index: map[Key]*list.Element{},
	}
}

// Tick is how often Advance is meant to be called.
func (l *Leases) Tick() time.Duration { return l.tick }

// Advance counts the time since the last tick, of a long stall no more than two ticks. It says whether leases may be ended
// now: not right after a stall, because what arrived meanwhile may still be on its way through the sockets.
func (l *Leases) Advance(elapsed time.Duration) bool {
	stalled := elapsed > 2*l.tick
	l.clock += min(elapsed, 2*l.tick)
	ok := !stalled || l.late // where every tick is late, that is no stall but the pace
	l.late = stalled
	return ok
}

// Renew starts a full lease.
func (l *Leases) Renew(k Key) {
	if at, ok := l.index[k]; ok {
		at.Value.(*lease).refreshed = l.clock
		l.order.MoveToBack(at)
		return
	}
	l.index[k] = l.order.PushBack(&lease{k, l.clock})
}

// Drop ends a lease.
func (l *Leases) Drop(k Key) {
	if at, ok := l.index[k]; ok {
		l.order.Remove(at)
		delete(l.index, k)
	}
}

// Due are the keys whose lease ran out. The clock may be a tick behind when a lease starts, so a tick is added.
func (l *Leases) Due() []Key {
	var keys []Key
	for at := l.order.Front(); at != nil; at = at.Next() {
		ls := at.Value.(*lease)
		if l.clock-ls.refreshed < l.timeout+l.tick {
			break
		}
		keys = append(keys, ls.key)
	}
	return keys
}
