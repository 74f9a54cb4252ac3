package engine

import (
	"fmt"
	"net/netip"

	"github.com/nordix/meridio-nsp/pkg/pool"
)

// watched knows which members somebody watches for.
type watched struct {
	// open counts the watches for each workload.
	open map[Workload]int
	// booked are the pools in which a member is booked as unwatched, foreign the namespace of the NSP that its sidecar believes to
	// speak to.
	booked  map[pool.MemberKey][]pool.Ref
	foreign map[pool.MemberKey]string
	// unwatched are the members of each pool that nobody watches for.
	unwatched rolls[pool.Ref, pool.MemberKey]
}

func newWatched() watched {
	return watched{
		open: make(map[Workload]int), booked: make(map[pool.MemberKey][]pool.Ref), foreign: make(map[pool.MemberKey]string),
		unwatched: make(rolls[pool.Ref, pool.MemberKey]),
	}
}

// watching says that a watch for a workload begins (+1) or ends (-1).
type watching struct {
	workload Workload
	by       int
}

// misdirected says that the watch of a sidecar was refused, because it is configured for the NSP of another namespace.
type misdirected struct {
	workload  Workload
	peer      netip.Addr
	namespace string
}

func (watching) isEvent()    {}
func (misdirected) isEvent() {}

func (s *state) watching(ev watching) {
	n := s.watched.open[ev.workload] + ev.by
	if s.watched.open[ev.workload] = n; n == 0 {
		delete(s.watched.open, ev.workload)
	}
	for _, m := range s.membersOf(ev.workload) {
		if ev.by > 0 {
			delete(s.watched.foreign, m.Key)
		}
		s.bookWatches(m.Key, m)
	}
}

// misdirect keeps what is said by the pod itself: from its own address.
func (s *state) misdirect(ev misdirected) {
	for _, m := range s.membersOf(ev.workload) {
		for _, a := range m.Addrs {
			if a == ev.peer {
				s.watched.foreign[m.Key] = ev.namespace
				s.bookWatches(m.Key, m)
			}
		}
	}
}

// bookWatches brings the books of one member up to date; nil is one that is gone.
func (s *state) bookWatches(key pool.MemberKey, m *pool.Member) {
	for _, ref := range s.watched.booked[key] {
		s.watched.unwatched.remove(ref, key)
		s.dirtyPools[ref] = true
	}
	delete(s.watched.booked, key)
	if m == nil {
		delete(s.watched.foreign, key)
		return
	}
	if s.isWatched(m) {
		return
	}
	name := memberName(m)
	if ns, ok := s.watched.foreign[key]; ok {
		name += fmt.Sprintf(" (its sidecar is configured for the NSP of namespace %.63q)", ns)
	}
	for _, ans := range m.Streams {
		for _, ref := range ans.Services {
			s.watched.unwatched.add(ref, key, name)
			s.watched.booked[key] = append(s.watched.booked[key], ref)
			s.dirtyPools[ref] = true
		}
	}
}

func (s *state) isWatched(m *pool.Member) bool {
	for _, w := range workloadsOf(m) {
		if s.watched.open[w] > 0 {
			return true
		}
	}
	return false
}
