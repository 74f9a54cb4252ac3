package engine

import (
	"strings"

	"github.com/nordix/meridio-nsp/pkg/pool"
	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// defaultMaxTargets is what Meridio takes where a stream says nothing, or 0.
const defaultMaxTargets = 100

// flushPools brings the pools up to date and marks the registrations that this concerns.
func (s *state) flushPools() {
	d := s.table.Flush()
	for ref, p := range d.Pools {
		s.poolChanged(ref, p)
	}
	for key, m := range d.Members {
		s.memberChanged(key, m)
	}
	for key, m := range d.Members {
		s.resolveClaims(key, m)
	}
}

func (s *state) poolChanged(ref pool.Ref, p *pool.Pool) {
	s.dirtyPools[ref] = true
	if k, known := s.streamOf[ref]; known && (p == nil || p.Stream != k) {
		delete(s.stream(k).pools, ref)
		delete(s.streamOf, ref)
	}
	if p == nil || p.Stream == (stream.Key{}) {
		return
	}
	s.streamOf[ref] = p.Stream
	s.stream(p.Stream).pools[ref] = true
	if p.Accepted {
		s.want(p.Stream.Trench)
	}
}

// memberChanged marks what is bound to the member, or could be by one of its addresses, old or new.
func (s *state) memberChanged(key pool.MemberKey, m *pool.Member) {
	if key.UID == "" {
		return
	}
	for _, version := range []*pool.Member{s.members[key.UID], m} {
		if version == nil {
			continue
		}
		for _, a := range version.Addrs {
			s.markAll(s.byPeer[a])
		}
		for _, w := range workloadsOf(version) {
			s.dirtyWorkloads[w] = true
		}
	}
	s.markAll(s.byPod[key.UID])
	if m == nil {
		delete(s.members, key.UID)
	} else {
		s.members[key.UID] = m
	}
	for c := range s.claims.byUID[key.UID] {
		s.markClaimed(c)
	}
}

// resolveClaims looks again at the claims that speak of a member that came, changed or went.
func (s *state) resolveClaims(key pool.MemberKey, m *pool.Member) {
	for c := range s.claims.byUID[key.UID] {
		s.resolve(c)
	}
	if m == nil {
		return
	}
	for _, w := range workloadsOf(m) {
		for c := range s.claims.byWorkload[w] {
			s.resolve(c)
		}
	}
}

// workloadsOf are all the ways in which a member can be named.
func workloadsOf(m *pool.Member) []Workload {
	out := make([]Workload, 0, 2+len(m.Addrs))
	if m.Name != "" {
		out = append(out,
			Workload{Namespace: m.Key.Namespace, Pod: m.Name},
			Workload{Namespace: m.Key.Namespace, Pod: m.Name, PodUID: m.Key.UID})
	}
	for _, a := range m.Addrs {
		out = append(out, Workload{Addr: a})
	}
	return out
}

// bind finds the pod that a registration belongs to: a proven caller, a proven claim on its addresses, the peer address of the
// call, or, where nothing speaks for any pod, the one it was bound to before.
func (s *state) bind(r *record) {
	r.member, r.binding = s.bound(r)
	if r.member == nil {
		return
	}
	if r.podUID != r.member.Key.UID {
		s.byPod.remove(r.podUID, r)
		r.podUID = r.member.Key.UID
		s.byPod.add(r.podUID, r)
	}
	r.pod = r.member.Key.Namespace + "/" + r.member.Name
}

func (s *state) bound(r *record) (*pool.Member, Binding) {
	if uid := r.entry.Caller.PodUID; uid != "" {
		// Proven: nothing else may speak for the registration, also while its pod is no member.
		if m := s.members[uid]; m != nil {
			return m, BoundByProof
		}
		return nil, Unbound
	}
	if m := s.boundByClaim(r); m != nil {
		return m, BoundByClaim
	}
	if peer := r.entry.Caller.Peer; peer.IsValid() {
		if m := s.memberOf(Workload{Addr: peer}); m != nil {
			return m, BoundByPeer
		}
	}
	if m := s.members[r.podUID]; m != nil {
		return m, BoundByMemory
	}
	return nil, Unbound
}

// boundByClaim is the one member that claims an address of the registration; several contest it, and then none does.
func (s *state) boundByClaim(r *record) *pool.Member {
	var found *pool.Member
	for _, p := range r.entry.Prefixes {
		for uid, m := range s.claimants(p.Addr(), r.entry.Scope) {
			if found != nil && found.Key.UID != uid {
				return nil
			}
			found = m
		}
	}
	return found
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
	ans, inPool := s.answer(r)
	s.track(r, inPool)
	row.Binding, row.PodUID, row.Pod, row.Listed = r.binding, r.podUID, r.pod, r.listed
	s.decide(row, r, ans, inPool)
	if r.row != nil && r.row.State == row.State && r.row.Reason == row.Reason {
		row.Caused = r.row.Caused
	}
	return row
}

func (s *state) answer(r *record) (pool.Answer, bool) {
	if r.member == nil {
		return pool.Answer{}, false
	}
	ans, ok := r.member.Streams[r.entry.Stream]
	return ans, ok
}

// track keeps the registration's history with pools. Where no sidecar reports owners, a Register that comes after the last
// pool let go can only be the application's.
func (s *state) track(r *record, inPool bool) {
	registered := r.registered
	r.registered = false
	switch {
	case inPool:
		r.listed = true
	case r.listed && registered && s.believes(r):
		if reported, _ := s.owners(r.podUID, r.entry.Stream); !reported {
			r.listed = false
		}
	}
}

// believes tells whether the pools of the registration's namespace have been read, so that "not listed" means something.
func (s *state) believes(r *record) bool {
	return s.answered && s.namespaces[namespaceOf(r.pod)] != unavailable
}

func (s *state) decide(row *Row, r *record, ans pool.Answer, inPool bool) {
	maxTargets, configured := s.maxTargets[r.entry.Stream.Trench]
	switch {
	case r.entry.Blocked:
		row.State, row.Reason = Inactive, ReasonBlocked
	case r.entry.Status != registry.Enabled:
		row.State, row.Reason = Inactive, ReasonDisabled
	case !configured || !s.answered:
		row.State = Pending
	case !validIdentifier(r.entry, maxTargets):
		row.State, row.Reason = Inactive, ReasonInvalid
	case r.pod != "" && s.namespaces[namespaceOf(r.pod)] == unavailable && r.entry.Memory.State != 0:
		m := r.entry.Memory
		row.State, row.Reason, row.Caused = State(m.State), m.Reason, m.Caused
	case inPool && s.cfg.ReadinessOff:
		row.State, row.Reason = Active, ReasonMember
	case inPool:
		row.State, row.Reason, row.Caused = stateOf(ans.State), ans.Reason, ans.Caused
	case r.listed:
		row.State, row.Reason = Inactive, ReasonLeft
		if _, application := s.owners(r.podUID, r.entry.Stream); application {
			row.State, row.Reason = Active, ReasonApplication
		}
	default:
		row.State, row.Reason = Active, ReasonApplication
	}
}

func validIdentifier(e *registry.Entry, maxTargets map[stream.Key]uint32) bool {
	limit := maxTargets[e.Stream]
	if limit == 0 {
		limit = defaultMaxTargets
	}
	return e.Identifier >= 1 && e.Identifier <= limit
}

func namespaceOf(pod string) string {
	ns, _, _ := strings.Cut(pod, "/")
	return ns
}
