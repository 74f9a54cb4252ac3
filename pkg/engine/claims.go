package engine

import (
	"net/netip"
	"slices"

	"github.com/nordix/meridio-nsp/pkg/pool"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// claim is what one sidecar reports of its pod.
type claim struct {
	id       uint64
	workload Workload
	report   *Report
	// uid is the pod that the claim was found to speak of. It is pinned: a pod that comes later under the same name or address
	// does not inherit the claim.
	uid string
	// ended is set when the sidecar's watch is over. The claim stays while the pod is a member, because a connection that
	// breaks says nothing of the pod.
	ended bool
}

// claims finds claims by who made them and by what they claim.
type claims struct {
	byID       map[uint64]*claim
	byWorkload map[Workload]map[*claim]struct{}
	byAddr     map[netip.Addr]map[*claim]struct{}
	byUID      map[string]map[*claim]struct{}
}

func newClaims() claims {
	return claims{
		byID:       make(map[uint64]*claim),
		byWorkload: make(map[Workload]map[*claim]struct{}),
		byAddr:     make(map[netip.Addr]map[*claim]struct{}),
		byUID:      make(map[string]map[*claim]struct{}),
	}
}

// report takes a sidecar's word in, or the end of its watch.
func (s *state) report(ev reported) {
	c, known := s.claims.byID[ev.id]
	switch {
	case ev.report == nil && !known:
		return
	case ev.report == nil:
		c.ended = true
	case !known:
		c = &claim{id: ev.id, workload: ev.workload}
		s.claims.byID[ev.id] = c
		put(s.claims.byWorkload, ev.workload, c)
		s.setClaim(c, ev.report)
	default:
		s.setClaim(c, ev.report)
	}
	s.resolve(c)
}

// setClaim replaces what a claim says and marks the registrations that this concerns.
func (s *state) setClaim(c *claim, r *Report) {
	s.markClaimed(c)
	if c.report != nil {
		for _, a := range c.report.Addrs {
			drop(s.claims.byAddr, a, c)
		}
	}
	c.report = r
	if r != nil {
		for _, a := range r.Addrs {
			put(s.claims.byAddr, a, c)
		}
	}
	s.markClaimed(c)
}

// markClaimed marks the registrations whose binding or state may depend on the claim.
func (s *state) markClaimed(c *claim) {
	if c.report == nil {
		return
	}
	for _, a := range c.report.Addrs {
		s.markAll(s.byAddr[a])
	}
	s.markAll(s.byPod[c.uid])
}

// resolve pins a claim to the member it speaks of, and forgets claims that are over: ended, and the pod no member, or spoken
// for by a newer claim.
func (s *state) resolve(c *claim) {
	if c.uid == "" {
		if m := s.memberOf(c.workload); m != nil {
			c.uid = m.Key.UID
			put(s.claims.byUID, c.uid, c)
			s.markClaimed(c)
		}
	}
	if c.uid == "" {
		if c.ended {
			s.forget(c)
		}
		return
	}
	if s.members[c.uid] == nil && c.ended {
		s.forget(c)
		return
	}
	for other := range s.claims.byUID[c.uid] {
		if other.ended && other.id < c.id {
			s.forget(other)
		}
	}
}

func (s *state) forget(c *claim) {
	s.setClaim(c, nil)
	delete(s.claims.byID, c.id)
	drop(s.claims.byWorkload, c.workload, c)
	drop(s.claims.byUID, c.uid, c)
}

// memberOf finds the pod that a workload names; nil where there is none, or more than one.
func (s *state) memberOf(w Workload) *pool.Member {
	var found []*pool.Member
	if w.Addr.IsValid() {
		found = s.table.ByAddress(w.Addr)
	} else {
		found = s.table.ByName(w.Namespace, w.Pod)
	}
	found = slices.DeleteFunc(slices.Clone(found), func(m *pool.Member) bool {
		return m.Key.UID == "" || (w.PodUID != "" && w.PodUID != m.Key.UID)
	})
	if len(found) != 1 {
		return nil
	}
	return found[0]
}

// claimants are the members that claim an address in the scope of a trench, by proven report. A pod that another trench holds
// may bear the same secondary address and has no say here.
func (s *state) claimants(a netip.Addr, trench string) map[string]*pool.Member {
	out := make(map[string]*pool.Member)
	for c := range s.claims.byAddr[a] {
		m := s.members[c.uid]
		if m != nil && c.report.Proven && m.Trench == trench {
			out[c.uid] = m
		}
	}
	return out
}

// owners says what the sidecar of a pod reports of a stream: whether it reports owners at all, and whether the application
// is one. The latest word counts.
func (s *state) owners(uid string, k stream.Key) (reported, application bool) {
	var latest *claim
	for c := range s.claims.byUID[uid] {
		if c.report.HasOwners && (latest == nil || c.id > latest.id) {
			latest = c
		}
	}
	if latest == nil {
		return false, false
	}
	return true, slices.Contains(latest.report.Application, k)
}

func put[K comparable, V comparable](m map[K]map[V]struct{}, k K, v V) {
	set, ok := m[k]
	if !ok {
		set = make(map[V]struct{})
		m[k] = set
	}
	set[v] = struct{}{}
}

func drop[K comparable, V comparable](m map[K]map[V]struct{}, k K, v V) {
	set := m[k]
	delete(set, v)
	if len(set) == 0 {
		delete(m, k)
	}
}
