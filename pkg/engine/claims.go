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
	// touched are to be resolved at the next commit.
	touched map[*claim]struct{}
}

func newClaims() claims {
	return claims{
		byID:       make(map[uint64]*claim),
		byWorkload: make(map[Workload]map[*claim]struct{}),
		byAddr:     make(map[netip.Addr]map[*claim]struct{}),
		byUID:      make(map[string]map[*claim]struct{}),
		touched:    make(map[*claim]struct{}),
	}
}

// report takes a sidecar's word in, or the end of its watch. Whom it speaks of is found at the commit, when the pools that
// arrived with it are known.
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
		if ev.workload.PodUID != "" {
			s.pin(c, ev.workload.PodUID)
		}
		s.setClaim(c, ev.report)
	default:
		s.setClaim(c, ev.report)
	}
	s.claims.touched[c] = struct{}{}
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

// resolveClaims looks again at the claims that changed or whose pods did.
func (s *state) resolveClaims() {
	for c := range take(&s.claims.touched) {
		s.resolve(c)
	}
}

// resolve pins a claim to the member it speaks of, and forgets claims that are over: ended, and the pod no member, or spoken
// for by a newer claim.
func (s *state) resolve(c *claim) {
	if s.claims.byID[c.id] != c {
		return
	}
	if c.uid == "" {
		if m := s.memberOf(c.workload); m != nil {
			s.pin(c, m.Key.UID)
		}
	}
	if c.ended && s.member(c.uid) == nil {
		s.forget(c)
		return
	}
	s.retire(c.uid)
}

func (s *state) pin(c *claim, uid string) {
	c.uid = uid
	put(s.claims.byUID, uid, c)
	s.markClaimed(c)
}

// retire forgets the ended claims of a pod that a newer one replaces.
func (s *state) retire(uid string) {
	var newest uint64
	for c := range s.claims.byUID[uid] {
		newest = max(newest, c.id)
	}
	for c := range s.claims.byUID[uid] {
		if c.ended && c.id < newest {
			s.forget(c)
		}
	}
}

func (s *state) forget(c *claim) {
	s.setClaim(c, nil)
	delete(s.claims.byID, c.id)
	drop(s.claims.byWorkload, c.workload, c)
	drop(s.claims.byUID, c.uid, c)
}

// member is the pod of a UID; nil where it is no member, or where slices of several namespaces name it: then it proves nothing.
func (s *state) member(uid string) *pool.Member {
	if found := s.members[uid]; len(found) == 1 {
		return found[0]
	}
	return nil
}

// memberOf finds the pod that a workload names; nil where there is none, or more than one.
func (s *state) memberOf(w Workload) *pool.Member {
	if found := s.membersOf(w); len(found) == 1 {
		return found[0]
	}
	return nil
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
