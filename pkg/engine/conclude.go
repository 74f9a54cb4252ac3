package engine

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nordix/meridio-nsp/pkg/pool"
	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// flushPools brings the pools up to date and marks the registrations that this concerns.
func (s *state) flushPools() {
	d := s.table.Flush()
	for ref, p := range d.Pools {
		s.poolChanged(ref, p)
	}
	for key, m := range d.Members {
		if !key.External() {
			s.memberChanged(key, m)
		}
	}
	s.resolveClaims()
}

func (s *state) poolChanged(ref pool.Ref, p *pool.Pool) {
	s.dirtyPools[ref] = true
	if k, known := s.streamOf[ref]; known && (p == nil || p.Stream != k) {
		delete(s.stream(k).pools, ref)
		delete(s.streamOf, ref)
		s.release(k)
	}
	if p == nil || p.Stream == (stream.Key{}) {
		return
	}
	s.streamOf[ref] = p.Stream
	s.stream(p.Stream).pools[ref] = true
	if p.Accepted {
		s.want(p.Stream.Trench, noLimit)
	}
}

// memberChanged marks what depends on a member, by what it was and by what it is.
func (s *state) memberChanged(key pool.MemberKey, m *pool.Member) {
	old := s.replaceMember(key, m)
	for _, version := range []*pool.Member{old, m} {
		if version != nil {
			s.markMember(version)
		}
	}
	s.bookWatches(key, m)
	s.markAll(s.byPod[key.UID])
	for c := range s.claims.byUID[key.UID] {
		s.markClaimed(c)
		s.claims.touched[c] = struct{}{}
	}
}

// replaceMember returns what the member was, nil where it is new.
func (s *state) replaceMember(key pool.MemberKey, m *pool.Member) (old *pool.Member) {
	all := s.members[key.UID]
	if i := slices.IndexFunc(all, func(o *pool.Member) bool { return o.Key == key }); i >= 0 {
		old = all[i]
		all = slices.Delete(all, i, i+1)
	}
	if m != nil {
		all = append(all, m)
	}
	if s.cfg.Listed != nil && (len(all) == 0) != (len(s.members[key.UID]) == 0) {
		s.cfg.Listed(key.UID, len(all) > 0)
	}
	if len(all) == 0 {
		delete(s.members, key.UID)
	} else {
		s.members[key.UID] = all
	}
	return old
}

// markMember marks what is, or could be, found by one of the member's names and addresses. Who shares an address with it is
// told so.
func (s *state) markMember(m *pool.Member) {
	for _, w := range workloadsOf(m) {
		s.markWorkload(w)
	}
	for _, a := range m.Addrs {
		s.markAll(s.byPeer[a])
		for _, other := range s.table.ByAddress(a) {
			if other.Key != m.Key && !other.Key.External() {
				for _, w := range workloadsOf(other) {
					s.markWorkload(w)
				}
			}
		}
	}
}

func (s *state) markWorkload(w Workload) {
	s.dirtyWorkloads[w] = true
	maps.Copy(s.claims.touched, s.claims.byWorkload[w])
}

// workloadsOf are all the ways in which a member can be named.
func workloadsOf(m *pool.Member) []Workload {
	out := make([]Workload, 0, 2+len(m.Addrs))
	if m.Name != "" {
		out = append(out,
			Workload{Namespace: m.Key.Namespace, Pod: m.Name, External: m.Target},
			Workload{Namespace: m.Key.Namespace, Pod: m.Name, PodUID: m.Key.UID, External: m.Target})
	}
	for _, a := range m.Addrs {
		out = append(out, Workload{Addr: a})
	}
	return out
}

// bind finds the pod that a registration belongs to: a proven caller, a proven claim on its addresses, the peer address of the
// call, or, where nothing speaks for any pod, the one it was bound to before.
func (s *state) bind(r *record) {
	claimant, contested := s.claimant(r)
	r.member, r.binding = s.bound(r, claimant)
	if r.binding == BoundByMemory && contested {
		s.disprove(r)
	}
	r.heard = false
	uid, pod := r.entry.Caller.PodUID, ""
	if m := r.member; m != nil {
		uid, pod = m.Key.UID, m.Key.Namespace+"/"+m.Name
	}
	switch {
	case uid == "":
	case uid != r.memory.PodUID:
		s.byPod.remove(r.memory.PodUID, r)
		r.memory.PodUID, r.memory.PodName = uid, pod
		s.byPod.add(uid, r)
	case pod != "":
		r.memory.PodName = pod
	}
	r.memory.Account = s.account(r.memory)
}

// disprove forgets a binding of which the claim that may have made it is contested by now, with what followed from it. Otherwise
// it would matter which of the sidecars came first.
func (s *state) disprove(r *record) {
	s.byPod.remove(r.memory.PodUID, r)
	r.member, r.binding = nil, Unbound
	r.memory.PodUID, r.memory.PodName, r.memory.Listed = "", "", false
}

func (s *state) bound(r *record, claimant *pool.Member) (*pool.Member, Binding) {
	if uid := r.entry.Caller.PodUID; uid != "" {
		// Proven: nothing else may speak for the registration, also while its pod is no member.
		return bindTo(s.member(uid), BoundByProof)
	}
	if claimant != nil {
		return claimant, BoundByClaim
	}
	if m := s.boundByPeer(r); m != nil {
		return m, BoundByPeer
	}
	return bindTo(s.member(r.memory.PodUID), BoundByMemory)
}

func bindTo(m *pool.Member, by Binding) (*pool.Member, Binding) {
	if m == nil {
		return nil, Unbound
	}
	return m, by
}

// boundByPeer is who bears the address of the call, and did so when the call was made. Addresses are given to other pods: where
// several bore it since, or the pod that the registration belonged to is gone, whoever bears it now has to call himself.
func (s *state) boundByPeer(r *record) *pool.Member {
	peer := r.entry.Caller.Peer
	if !peer.IsValid() || r.doubted {
		return nil
	}
	switch found := s.membersOf(Workload{Addr: peer}); {
	case len(found) == 0:
		return nil
	case len(found) > 1, !r.heard && s.succeeds(found[0], r.memory.PodUID):
		r.doubted = true
		return nil
	default:
		return found[0]
	}
}

// succeeds tells whether a member is another pod than one that is a member no more.
func (s *state) succeeds(m *pool.Member, uid string) bool {
	return uid != "" && m.Key.UID != uid && s.member(uid) == nil
}

// claimant is the one member whose sidecar claims an address of the registration; several contest it, and then none does.
// A pod that another trench holds may bear the same secondary address and has no say.
func (s *state) claimant(r *record) (found *pool.Member, contested bool) {
	for _, p := range r.entry.Prefixes {
		for c := range s.claims.byAddr[p.Addr()] {
			m := s.member(c.uid)
			switch {
			case m == nil || m.Trench != r.entry.Scope:
			case found != nil && found != m:
				return nil, true
			default:
				found = m
			}
		}
	}
	return found, false
}

// conclude computes the row of a registration. It returns nil where that is gone.
func (s *state) conclude(r *record) *Row {
	if r.entry == nil {
		return nil
	}
	row := &Row{Entry: r.entry}
	if r.entry.Type != registry.Default {
		row.State = Active
		if r.entry.Status != registry.Enabled {
			row.State, row.Reason = Inactive, ReasonDisabled
		}
		return row
	}
	s.bind(r)
	s.judge(r)
	row.Binding, row.PodUID, row.Pod, row.Listed = r.binding, r.memory.PodUID, r.memory.PodName, r.memory.Listed
	if ans, inPool := s.answer(r); inPool {
		row.Components = ans.Components
	}
	s.decide(row, r)
	return row
}

// judge keeps the registration's history with pools and what follows from it. The time of a conclusion stays while that does.
//
// Where no sidecar reports owners, a Register that comes after the last pool let go can only be the application's.
func (s *state) judge(r *record) {
	ans, inPool := s.answer(r)
	reported, application := s.owners(r.memory.PodUID, r.entry.Stream)
	switch {
	case inPool:
		r.memory.Listed = true
	case r.reopened && !reported:
		r.memory.Listed = false
	}
	unread := s.namespaces[namespaceOf(r.memory.PodName)] == unavailable
	r.left = r.memory.Listed && !inPool && s.answered && !unread
	r.reopened = false
	if !s.answered || unread && r.memory.State != uint8(Pending) {
		return // what was stored counts
	}
	state, reason, caused := s.verdict(r, ans, inPool, application)
	if r.memory.State != uint8(state) || r.memory.Reason != reason {
		r.memory.State, r.memory.Reason, r.memory.Caused = uint8(state), reason, caused
	}
}

func (s *state) answer(r *record) (pool.Answer, bool) {
	if r.member == nil {
		return pool.Answer{}, false
	}
	ans, ok := r.member.Streams[r.entry.Stream]
	return ans, ok
}

func (s *state) verdict(r *record, ans pool.Answer, inPool, application bool) (State, string, time.Time) {
	switch {
	case s.cfg.ReadinessOff && r.memory.Listed:
		return Active, ReasonMember, time.Time{}
	case inPool:
		return stateOf(ans.State), ans.Reason, ans.Caused
	case r.memory.Listed && !application:
		return Inactive, ReasonLeft, time.Time{}
	default:
		return Active, ReasonApplication, time.Time{}
	}
}

// decide asks the registration itself first, then its pools.
func (s *state) decide(row *Row, r *record) {
	switch {
	case r.entry.Blocked:
		row.State, row.Reason = Inactive, ReasonBlocked
	case r.entry.Status != registry.Enabled:
		row.State, row.Reason = Inactive, ReasonDisabled
	case !s.opened(r.entry.Stream.Trench):
		row.State = Pending
	case !validIdentifier(r.entry, s.maxTargets[r.entry.Stream.Trench]):
		row.State, row.Reason = Inactive, ReasonInvalid
	default:
		row.State, row.Reason, row.Caused = State(r.memory.State), r.memory.Reason, r.memory.Caused
	}
}

func validIdentifier(e *registry.Entry, maxTargets map[stream.Key]uint32) bool {
	return e.Identifier >= 1 && e.Identifier <= stream.MaxTargets(maxTargets[e.Stream])
}

func namespaceOf(pod string) string {
	ns, _, _ := strings.Cut(pod, "/")
	return ns
}
