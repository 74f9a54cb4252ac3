package engine

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/nordix/meridio-nsp/pkg/pool"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// PoolDetail is a pool with its members, for people.
type PoolDetail struct {
	PoolStatus
	Members []MemberDetail
	// Slices are those that name the Service, in the version that was read.
	Slices []*pool.Slice
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
		d := PoolDetail{PoolStatus: *s.poolStatus(p.Ref), Slices: s.table.Slices(p.Ref)}
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

// Overview is what decides over all targets at once, for people.
type Overview struct {
	// Answering is set once every namespace was read or found unavailable, Rebuilding while stored registrations that were lost
	// come back, Stale where some namespace counts by what was stored.
	Answering, Rebuilding, Stale bool
	Trenches                     []TrenchDetail
	Conduits                     []ConduitDetail
	Waiting                      []WaitingDetail
	// Limited are the streams whose sources are limited.
	Limited []*Access
}

// WaitingDetail is somebody who waits to be given an identifier.
type WaitingDetail struct {
	Stream stream.Key
	IPs    []string
	// Pod is namespace/name of the pod, PodUID its UID; empty where it is not known.
	Pod, PodUID string
	// Preferred is whether it comes before those that are not.
	Preferred bool
}

// TrenchDetail is a trench whose configuration is wanted or known.
type TrenchDetail struct {
	Name string
	Read bool
	// MaxTargets of the streams that set it. It must not be modified.
	MaxTargets map[stream.Key]uint32
}

// ConduitDetail is the topic of a conduit.
type ConduitDetail struct {
	Conduit stream.Conduit
	// Open is whether what it depends on was read.
	Open     bool
	Revision uint64
	Targets  int
}

// Overview tells how far everything is read, and what load balancers are told; all sorted.
func (e *Engine) Overview(ctx context.Context) (Overview, error) {
	return ask(ctx, e, func() Overview { return e.state.overview(&e.out) })
}

func (s *state) overview(out *outputs) Overview {
	o := Overview{Answering: s.answered, Rebuilding: s.rebuilding, Stale: s.stale(), Limited: s.limited()}
	trenches := maps.Clone(s.wanted)
	for trench := range s.maxTargets {
		trenches[trench] = true
	}
	for _, name := range slices.Sorted(maps.Keys(trenches)) {
		limits, read := s.maxTargets[name]
		o.Trenches = append(o.Trenches, TrenchDetail{Name: name, Read: read, MaxTargets: limits})
	}
	for conduit, topic := range out.topics.live() {
		if conduit.Name == "" {
			continue // what trench processes are told
		}
		o.Conduits = append(o.Conduits, ConduitDetail{
			Conduit: conduit, Open: s.opened(conduit.Trench), Revision: topic.Revision(), Targets: topic.Len() - s.limitedIn(conduit),
		})
	}
	slices.SortFunc(o.Conduits, func(a, b ConduitDetail) int { return stream.CompareConduits(a.Conduit, b.Conduit) })
	o.Waiting = s.waitingDetails()
	return o
}

func (s *state) waitingDetails() (all []WaitingDetail) {
	for _, r := range s.waiters {
		all = append(all, WaitingDetail{
			Stream: r.entry.Stream, IPs: r.entry.IPs, Pod: r.memory.PodName, PodUID: r.memory.PodUID, Preferred: r.preferred != nil && *r.preferred,
		})
	}
	slices.SortFunc(all, func(a, b WaitingDetail) int {
		return cmp.Or(stream.Compare(a.Stream, b.Stream), slices.Compare(a.IPs, b.IPs))
	})
	return all
}
