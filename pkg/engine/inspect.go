package engine

import "github.com/nordix/meridio-nsp/pkg/pool"

// PoolDetail is a pool with its members, for people.
type PoolDetail struct {
	PoolStatus
	Members []MemberDetail
}

// MemberDetail is a member as one pool sees it.
type MemberDetail struct {
	pool.PoolMember
	Member *pool.Member
	// Watched is whether somebody watches for the member.
	Watched bool
}

func (s *state) poolDetails(out *outputs, namespace string) []PoolDetail {
	var details []PoolDetail
	for p := range s.table.Pools() {
		if namespace != "" && p.Namespace != namespace {
			continue
		}
		d := PoolDetail{PoolStatus: *s.poolStatus(p.Ref)}
		for _, m := range s.table.PoolMembers(p.Ref) {
			md := MemberDetail{PoolMember: m, Member: s.table.Member(m.Key)}
			if md.Member != nil {
				md.Watched = out.watchesFor(md.Member)
			}
			d.Members = append(d.Members, md)
		}
		details = append(details, d)
	}
	return details
}

func (o *outputs) watchesFor(m *pool.Member) bool {
	for _, w := range workloadsOf(m) {
		if o.assignments.Watched(w) {
			return true
		}
	}
	return false
}
