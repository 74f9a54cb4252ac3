package pool

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
)

// kindTarget is that of the targetRef of an ExternalTarget.
const kindTarget = "ExternalTarget"

// Target is what matters here of an ExternalTarget. A tenant can write any address into an EndpointSlice, but only the controller
// can write a status: so only what the status confirms counts.
type Target struct {
	Ref
	UID string
	// Confirmed are the addresses of the status.
	Confirmed []netip.Addr
	// Origin is the Service of another cluster whose endpoints they are; zero where it is none.
	Origin Component
}

// SetTarget adds or replaces an ExternalTarget; it may come before the slices that refer to it.
func (t *Table) SetTarget(x Target) { t.newTargets[x.Ref] = &x }

// DeleteTarget forgets an ExternalTarget, and with it its members.
func (t *Table) DeleteTarget(r Ref) { t.newTargets[r] = nil }

// takeTargets has the slices read again that refer to what has changed. It comes after takeSlices.
func (f *flush) takeTargets() {
	changed := make(map[Ref]bool)
	for r, in := range f.newTargets {
		if reflect.DeepEqual(f.targets[r], in) {
			continue
		}
		changed[r] = true
		if f.targets[r] = in; in == nil {
			delete(f.targets, r)
		}
	}
	clear(f.newTargets)
	if len(changed) == 0 {
		return
	}
	for _, s := range f.Table.slices {
		if s.in.refersTo(changed) {
			s.plain = false // its endpoints are as before, but not what they mean
			f.slices[s] = struct{}{}
		}
	}
}

func (s *Slice) refersTo(targets map[Ref]bool) bool {
	return s != nil && slices.ContainsFunc(s.Endpoints, func(e Endpoint) bool {
		return e.Target != nil && e.Target.Kind == kindTarget && targets[Ref{s.Namespace, e.Target.Name}]
	})
}

// readTarget reads an endpoint of an ExternalTarget.
func (r reader) readTarget(s *Slice, e Endpoint, addrs []netip.Addr) (MemberKey, reading, error) {
	ref := *e.Target
	known := r.targets[Ref{s.Namespace, ref.Name}]
	switch {
	case ref.Namespace != "" && ref.Namespace != s.Namespace:
		return MemberKey{}, reading{}, fmt.Errorf("targetRef is in namespace %.63q, not in that of the EndpointSlice", ref.Namespace)
	case !r.permission.Target(ref.Name):
		return MemberKey{}, reading{}, fmt.Errorf("namespace %s has no grant for ExternalTarget %.63q", s.Namespace, ref.Name)
	case known == nil || known.UID != ref.UID:
		return MemberKey{}, reading{}, fmt.Errorf("there is no ExternalTarget %.63q with uid %.63q", ref.Name, ref.UID)
	case r.cluster != "" && known.Origin.Cluster == r.cluster:
		return MemberKey{}, reading{}, fmt.Errorf("ExternalTarget %.63q names another cluster %.63q, which is the name of this one", ref.Name, r.cluster)
	}
	for _, a := range addrs {
		if !slices.Contains(known.Confirmed, a) {
			return MemberKey{}, reading{}, fmt.Errorf("the status of ExternalTarget %.63q does not confirm %s", ref.Name, a)
		}
	}
	return MemberKey{Namespace: s.Namespace, UID: ref.UID}, reading{
		class: classify(e), name: ref.Name, addrs: addrs, target: true, origin: known.Origin,
	}, nil
}
