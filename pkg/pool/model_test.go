package pool

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nordix/meridio-nsp/pkg/stream"
)

// world is the model: the objects as they are now, from which every answer is computed anew, slowly and plainly.
type world struct {
	services map[Ref]Service
	slices   map[Ref]Slice
	grants   []Grant
	accounts map[MemberKey]string
}

// permits looks at every grant.
func (w *world) permits(namespace string, k stream.Key, allowed func(Grant) bool) bool {
	return slices.ContainsFunc(w.grants, func(g Grant) bool {
		return g.Namespace == namespace && g.Trench == k.Trench && (g.Stream == "" || g.Stream == k.Name) && allowed(g)
	})
}

func (w *world) permitsPod(namespace string, k stream.Key, account string) bool {
	return namespace == own || w.permits(namespace, k, func(g Grant) bool {
		return g.Accounts == nil && g.Externals == nil || account != "" && slices.Contains(g.Accounts, account)
	})
}

func (w *world) permitsExternal(namespace string, k stream.Key) bool {
	return w.permits(namespace, k, func(g Grant) bool { return g.Externals != nil })
}

// mPool is a pool of the model with what its slices say of each member.
type mPool struct {
	Pool
	external bool
	// denied tells whether the grant withholds a pod.
	denied func(MemberKey) bool
	said   map[MemberKey][]statement
	lost   map[MemberKey]bool
}

// statement is one endpoint of one slice about one member.
type statement struct {
	slice *Slice
	class class
	name  string
	addrs []netip.Addr
}

const own = "nsp"

func (w *world) pools() map[Ref]*mPool {
	all := map[Ref]*mPool{}
	for ref, s := range w.services {
		if s.Labels[LabelMarker] != MarkerValue || cmp.Or(s.Labels[LabelNamespace], s.Namespace) != own {
			continue
		}
		p := w.pool(s)
		all[ref] = p
		for _, x := range w.slices {
			belongs := x.Namespace == s.Namespace && x.Service == s.Name && (x.OwnerUID == "" || x.OwnerUID == s.UID)
			if p.Accepted && belongs {
				p.hear(&x)
			}
		}
		slices.Sort(p.Problems)
	}
	contest(all)
	for _, p := range all {
		p.tally()
	}
	return all
}

func (w *world) pool(s Service) *mPool {
	p := &mPool{said: map[MemberKey][]statement{}, lost: map[MemberKey]bool{}}
	p.Ref, p.UID, p.Created, p.HasSelector = s.Ref, s.UID, s.Created.UTC(), s.HasSelector
	k := stream.Key{Namespace: own, Trench: s.Labels[LabelTrench], Conduit: s.Labels[LabelConduit], Name: s.Labels[LabelStream]}
	switch {
	case k.Trench == "" || k.Conduit == "" || k.Name == "":
		p.Reason = ReasonIncompleteLabels
	case strings.ContainsAny(k.Trench+k.Conduit+k.Name, "/!"):
		p.Reason = ReasonInvalidLabels
	default:
		p.Stream = k
		switch {
		case s.Type == "ExternalName":
			p.Reason = ReasonUnsupportedType
		case s.Namespace != own && !w.permits(s.Namespace, k, func(Grant) bool { return true }):
			p.Reason = ReasonNotPermitted
		default:
			p.Accepted, p.Reason = true, ReasonAccepted
			p.external = w.permitsExternal(s.Namespace, k)
			p.denied = func(m MemberKey) bool { return !m.External() && !w.permitsPod(s.Namespace, k, w.accounts[m]) }
		}
	}
	p.annotate(s.Annotations)
	return p
}

func (p *mPool) annotate(a map[string]string) {
	p.Assignment = ByMembership
	p.KeepDrain = a[AnnotationDraining] == "keep"
	known := map[string]map[string]func(){
		AnnotationAssignment:     {"membership": func() {}, "ready": func() { p.Assignment = ByReadiness }},
		AnnotationDraining:       {"keep": func() {}, "remove": func() {}},
		AnnotationPanicThreshold: {"0": func() {}, "50": func() { p.PanicThreshold = 50 }, "100": func() { p.PanicThreshold = 100 }},
	}
	for name, value := range a {
		if set := known[name][value]; set != nil {
			set()
			continue
		}
		p.Problems = append(p.Problems, name)
		if p.Accepted {
			p.Reason = ReasonInvalidAnnotations
		}
	}
}

// problemsTold are those of annotations, and a few of those of slices with a line that counts the others.
func (p *mPool) problemsTold() int {
	ofSlices := 0
	for _, name := range p.Problems {
		if !strings.HasPrefix(name, "meridio.nordix.org/") {
			ofSlices++
		}
	}
	return len(p.Problems) - ofSlices + min(ofSlices, maxNamed+1)
}

func (p *mPool) hear(x *Slice) {
	if x.AddressType == "FQDN" {
		p.Problems = append(p.Problems, x.Name)
		return
	}
	for _, e := range x.Endpoints {
		st := statement{slice: x, class: mClass(e)}
		ok := len(e.Addresses) > 0
		for _, text := range e.Addresses {
			a, valid := mAddress(x.AddressType, text)
			ok = ok && valid
			st.addrs = append(st.addrs, a)
		}
		switch {
		case !ok:
		case e.Target == nil && p.external:
			for _, a := range st.addrs {
				k := MemberKey{Namespace: x.Namespace, Addr: a}
				p.said[k] = append(p.said[k], statement{x, st.class, "", []netip.Addr{a}})
			}
			continue
		case e.Target != nil && e.Target.Kind == "Pod" && e.Target.UID != "" && cmp.Or(e.Target.Namespace, x.Namespace) == x.Namespace:
			st.name = e.Target.Name
			k := MemberKey{Namespace: x.Namespace, UID: e.Target.UID}
			p.said[k] = append(p.said[k], st)
			continue
		}
		p.Problems = append(p.Problems, x.Name)
	}
}

// mClass is the table of rule 4, spelled out.
func mClass(e Endpoint) class {
	r := e.Ready == nil || *e.Ready
	s := e.Serving == nil || *e.Serving
	t := e.Terminating != nil && *e.Terminating
	if t && s {
		return draining
	}
	if t && !s {
		return gone
	}
	if r {
		return ready
	}
	return notReady
}

// mAddress knows the few addresses that the tests use.
func mAddress(family, text string) (netip.Addr, bool) {
	v4 := strings.HasPrefix(text, "10.0.0.") && len(text) == len("10.0.0.1")
	v6 := strings.HasPrefix(text, "fd00::") && len(text) == len("fd00::1")
	if v4 && family == "IPv4" || v6 && family == "IPv6" {
		return netip.MustParseAddr(text), true
	}
	return netip.Addr{}, false
}

// believed is the strongest statement of the newest slice.
func (p *mPool) believed(k MemberKey) statement {
	return slices.MaxFunc(p.said[k], func(a, b statement) int {
		return cmp.Or(cmp.Compare(a.slice.Version, b.slice.Version), cmp.Compare(a.slice.Name, b.slice.Name), cmp.Compare(a.class, b.class))
	})
}

func older(a, b *mPool) int {
	return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.UID, b.UID), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// claimants are the accepted pools that list the member, the oldest first.
func claimants(all map[Ref]*mPool, k MemberKey) []*mPool {
	var found []*mPool
	for _, p := range all {
		if len(p.said[k]) > 0 {
			found = append(found, p)
		}
	}
	slices.SortFunc(found, older)
	return found
}

func contest(all map[Ref]*mPool) {
	for _, p := range all {
		for k := range p.said {
			permitted := slices.DeleteFunc(claimants(all, k), func(o *mPool) bool { return o.denied(k) })
			switch {
			case p.denied(k):
				p.lost[k] = true
				if p.Reason != ReasonConflict {
					p.Reason = ReasonMembersNotPermitted
				}
			case p.Stream.Trench != permitted[0].Stream.Trench:
				p.lost[k] = true
				p.Reason = ReasonConflict
			}
		}
	}
}

func (p *mPool) tally() {
	by := map[class]int{}
	for k := range p.said {
		p.Counts.Members++
		if p.lost[k] {
			p.Counts.Withheld++
			continue
		}
		by[p.believed(k).class]++
	}
	p.Counts.Ready, p.Counts.Draining = by[ready], by[draining]
	staying := by[ready] + by[notReady]
	p.Panic = staying > 0 && float64(by[ready])/float64(staying) < float64(p.PanicThreshold)/100
	for k := range p.said {
		state, _, assigned := p.answer(k)
		if state == Active {
			p.Counts.Active++
		}
		if assigned {
			p.Counts.Assigned++
		}
	}
}

func (p *mPool) answer(k MemberKey) (State, string, bool) {
	if p.lost[k] {
		return Inactive, "", false
	}
	c := p.believed(k).class
	assigned := p.Assignment == ByMembership || c == ready
	switch c {
	case ready:
		return Active, "Ready", assigned
	case notReady:
		if p.Panic {
			return Active, "Panic", assigned
		}
		return Inactive, "NotReady", assigned
	case draining:
		if p.Counts.Ready == 0 {
			return Active, "ServingTerminating", assigned
		}
		if p.KeepDrain {
			return DrainingState, "Draining", assigned
		}
	}
	return Inactive, "Terminating", assigned
}

// members leaves Caused as the slices say now; the caller knows what was before.
func members(all map[Ref]*mPool) map[MemberKey]*Member {
	found := map[MemberKey]*Member{}
	for _, p := range all {
		for k := range p.said {
			if found[k] == nil {
				found[k] = newMember(k, claimants(all, k))
			}
		}
	}
	return found
}

func newMember(k MemberKey, pools []*mPool) *Member {
	m := &Member{Key: k, Streams: map[stream.Key]Answer{}}
	addrs := map[netip.Addr]bool{}
	for _, p := range pools {
		for _, st := range p.said[k] {
			for _, a := range st.addrs {
				addrs[a] = true
			}
			if m.Name == "" || st.name != "" && st.name < m.Name {
				m.Name = st.name
			}
		}
		if p.lost[k] {
			m.Withheld = append(m.Withheld, p.Ref)
			continue
		}
		m.Trench = p.Stream.Trench
		state, reason, assigned := p.answer(k)
		a, seen := m.Streams[p.Stream]
		if !seen || state > a.State {
			a.State, a.Reason, a.Caused = state, reason, p.believed(k).slice.Changed
		}
		a.Assigned = a.Assigned || assigned
		a.Services = append(slices.Clone(a.Services), p.Ref)
		slices.SortFunc(a.Services, Ref.Compare)
		m.Streams[p.Stream] = a
	}
	slices.SortFunc(m.Withheld, Ref.Compare)
	m.Addrs = slices.SortedFunc(maps.Keys(addrs), netip.Addr.Compare)
	return m
}

// poolMembers is what inspection of the pool should show.
func (p *mPool) poolMembers(all map[MemberKey]*Member) []PoolMember {
	var list []PoolMember
	for k := range p.said {
		pm := PoolMember{Key: k, Name: all[k].Name, Withheld: p.lost[k]}
		pm.State, _, pm.Assigned = p.answer(k)
		pm.Condition = map[class]Condition{ready: Ready, draining: Draining}[p.believed(k).class]
		list = append(list, pm)
	}
	slices.SortFunc(list, func(a, b PoolMember) int { return a.Key.Compare(b.Key) })
	return list
}

func at(second int) time.Time { return time.Unix(int64(second), 0).UTC() }
