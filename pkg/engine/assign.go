package engine

import (
	"net/netip"
	"slices"

	"github.com/nordix/meridio-nsp/pkg/pool"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// Assigned is what one workload is told, with what tells whether the caller may hear it. It is immutable.
type Assigned struct {
	Streams []Assignment
	// Known is whether the workload is a member of any pool, and Addrs are its addresses then.
	Known bool
	Addrs []netip.Addr
	// Shared is set where another pod bears one of the addresses: an address proves nothing then.
	Shared bool
}

// Assignment is one stream that the workload shall hold, and the pools that say so.
type Assignment struct {
	Stream   stream.Key
	Services []pool.Ref
}

func equalAssigned(a, b *Assigned) bool {
	return a.Known == b.Known && a.Shared == b.Shared && slices.Equal(a.Addrs, b.Addrs) && SameStreams(a, b)
}

// SameStreams tells whether two lists name the same streams for the same reasons.
func SameStreams(a, b *Assigned) bool {
	return slices.EqualFunc(a.Streams, b.Streams, func(x, y Assignment) bool {
		return x.Stream == y.Stream && slices.Equal(x.Services, y.Services)
	})
}

// publishAssignment computes what a workload is told. Nothing is said before its namespace has been read: silence keeps
// streams open, an empty list closes them.
func (s *state) publishAssignment(out *outputs, w Workload) {
	if !s.answered || !out.assignments.Watched(w) {
		return
	}
	if s.namespaces[w.Namespace] == unavailable {
		return
	}
	members := s.membersOf(w)
	if w.Addr.IsValid() && len(members) == 0 && s.stale() {
		return // it may be of a namespace that could not be read
	}
	out.assignments.Set(w, s.rev, s.assigned(members))
}

// membersOf finds the pods or ExternalTargets that a workload names. A pod that is being replaced under its name may be there twice.
func (s *state) membersOf(w Workload) []*pool.Member {
	found := s.table.ByName(w.Namespace, w.Pod)
	if w.Addr.IsValid() {
		found = s.table.ByAddress(w.Addr)
	}
	return slices.DeleteFunc(found, func(m *pool.Member) bool {
		return m.Key.External() || w.PodUID != "" && w.PodUID != m.Key.UID || !w.Addr.IsValid() && w.External != m.Target
	})
}

func (s *state) assigned(members []*pool.Member) *Assigned {
	a := &Assigned{Known: len(members) > 0}
	services := make(map[stream.Key][]pool.Ref)
	for _, m := range members {
		a.Addrs = append(a.Addrs, m.Addrs...)
		for _, addr := range m.Addrs {
			a.Shared = a.Shared || len(s.membersOf(Workload{Addr: addr})) > 1
		}
		for k, ans := range m.Streams {
			if ans.Assigned {
				services[k] = append(services[k], ans.Services...)
			}
		}
	}
	slices.SortFunc(a.Addrs, netip.Addr.Compare)
	a.Addrs = slices.Compact(a.Addrs)
	for k, refs := range services {
		slices.SortFunc(refs, pool.Ref.Compare)
		a.Streams = append(a.Streams, Assignment{Stream: k, Services: slices.Compact(refs)})
	}
	slices.SortFunc(a.Streams, func(x, y Assignment) int { return stream.Compare(x.Stream, y.Stream) })
	return a
}
