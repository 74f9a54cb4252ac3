package pool

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/nordix/meridio-nsp/pkg/stream"
)

// view is a member as one accepted pool that lists it sees it.
type view struct {
	pool  *pool
	class class
	slice *slice // the one that is believed
	// target is whether an ExternalTarget is behind it there, origin where that has its addresses from.
	target bool
	origin Component
	lost   loss
}

// loss is by whom a member is withheld, with its own name for the message; the zero value is nobody.
type loss struct {
	member string
	winner Ref
	trench string
	// denied is set where it is the grant that withholds it; account is what the member runs as, if that is proven.
	denied  bool
	account string
}

// rules are the rules of a pool as a whole that are in force.
type rules struct {
	// lastResort: none is Ready, so those that drain count as active.
	lastResort bool
	// panic: too few are Ready, so all that are not terminating count as active.
	panic bool
}

// count replaces the views of a member and what they contribute to their pools.
func (f *flush) count(m *member) {
	before := m.views
	m.views = m.look(f.accountOf(m.key))
	for _, v := range before {
		if v.lost == (loss{}) {
			v.pool.tally[v.class]--
		}
		if !slices.ContainsFunc(m.views, func(o view) bool { return o.pool == v.pool }) {
			v.pool.setLoss(m.key, loss{})
		}
		f.pools[v.pool] = struct{}{}
	}
	for _, v := range m.views {
		if v.lost == (loss{}) {
			v.pool.tally[v.class]++
		}
		v.pool.setLoss(m.key, v.lost)
		f.pools[v.pool] = struct{}{}
	}
}

func (p *pool) setLoss(k MemberKey, l loss) {
	switch {
	case p.withheld[k] == l:
		return
	case l == loss{}:
		delete(p.withheld, k)
	default:
		p.withheld[k] = l
	}
	p.conflictStale = true
}

// look merges the listings by pool and decides whose the member is. A pool that may not have it claims nothing.
func (m *member) look(account string) []view {
	var views []view
	for _, l := range m.listings {
		next := view{pool: l.slice.pool, class: l.class, slice: l.slice, target: l.target, origin: l.origin}
		i := slices.IndexFunc(views, func(v view) bool { return v.pool == next.pool })
		switch {
		case i < 0:
			views = append(views, next)
		case next.target && views[i].target:
			// Its addresses are spread over slices, and each speaks for its own.
			next.class = max(views[i].class, next.class)
			if !l.slice.isNewer(views[i].slice) {
				next.slice = views[i].slice
			}
			views[i] = next
		case l.slice.isNewer(views[i].slice):
			views[i] = next
		}
	}
	slices.SortFunc(views, func(a, b view) int { return a.pool.compareAge(b.pool) })
	var winner *pool
	for i := range views {
		p := views[i].pool
		switch {
		case !m.key.External() && !views[i].target && !p.spec.permission.Account(account):
			views[i].lost = loss{member: m.displayName(), denied: true, account: account}
		case winner == nil:
			winner = p
		case p.spec.stream.Trench != winner.spec.stream.Trench:
			views[i].lost = loss{member: m.displayName(), winner: winner.ref, trench: winner.spec.stream.Trench}
		}
	}
	return views
}

func (s *slice) isNewer(o *slice) bool {
	return cmp.Or(cmp.Compare(s.in.Version, o.in.Version), strings.Compare(s.in.Name, o.in.Name)) > 0
}

func (m *member) name() string {
	name := ""
	for _, l := range m.listings {
		name = firstName(name, l.name)
	}
	return name
}

func (m *member) displayName() string {
	if m.key.External() {
		return m.key.Addr.String()
	}
	return cmp.Or(m.name(), m.key.UID)
}

// applyRules has all members judged anew when a rule of the whole pool comes into force or ends.
func (f *flush) applyRules(p *pool) {
	r := rules{lastResort: p.tally[ready] == 0 && p.tally[draining] > 0}
	if staying := p.tally[ready] + p.tally[notReady]; staying > 0 && p.spec.accepted() {
		r.panic = p.tally[ready]*100 < p.spec.panicThreshold*staying
	}
	if r != p.rules {
		p.rules = r
		f.touchAll(p)
	}
}

func (p *pool) judge(c class) (State, string) {
	switch {
	case c == ready:
		return Active, ReasonReady
	case c == notReady && p.rules.panic:
		return Active, ReasonPanic
	case c == notReady:
		return Inactive, ReasonNotReady
	case c == draining && p.rules.lastResort:
		return Active, ReasonServingTerminating
	case c == draining && p.spec.keepDrain:
		return DrainingState, ReasonDraining
	default:
		return Inactive, ReasonTerminating
	}
}

func (p *pool) assigns(c class) bool {
	return p.spec.assignment != ByReadiness || c == ready
}

// in is the member as p sees it.
func (m *member) in(p *pool) PoolMember {
	v := m.views[slices.IndexFunc(m.views, func(v view) bool { return v.pool == p })]
	pm := PoolMember{Key: m.key, Name: m.published.Name, Condition: v.class.condition(), Withheld: v.lost != loss{}, Target: v.target}
	if !pm.Withheld {
		pm.State, _ = p.judge(v.class)
		pm.Assigned, pm.Component = p.assigns(v.class), v.component()
	}
	return pm
}

// build is nil for a member that no accepted pool lists.
func (m *member) build() *Member {
	if len(m.views) == 0 {
		return nil
	}
	b := &Member{
		Key: m.key, Name: m.name(), Addrs: m.addrs(), Streams: make(map[stream.Key]Answer, len(m.views)),
	}
	for _, v := range m.views {
		b.Target = b.Target || v.target
		if v.lost != (loss{}) {
			b.Withheld = append(b.Withheld, v.pool.ref)
			continue
		}
		key := v.pool.spec.stream
		b.Trench = key.Trench
		answer, known := b.Streams[key]
		b.Streams[key] = v.strengthen(answer, known)
	}
	slices.SortFunc(b.Withheld, Ref.Compare)
	for _, a := range b.Streams {
		slices.SortFunc(a.Services, Ref.Compare)
	}
	b.keepCauses(m.published)
	return b
}

// strengthen takes the stronger state. The views come oldest first: of equal states the oldest pool's reason stands.
func (v view) strengthen(a Answer, known bool) Answer {
	if state, reason := v.pool.judge(v.class); !known || state > a.State {
		a.State, a.Reason, a.Caused = state, reason, v.slice.in.Changed
	}
	a.Assigned = a.Assigned || v.pool.assigns(v.class)
	a.Services = append(a.Services, v.pool.ref)
	a.Components = withComponent(a.Components, v.component())
	return a
}

func (m *member) addrs() []netip.Addr {
	if len(m.listings) == 1 {
		return m.listings[0].addrs
	}
	var all []netip.Addr
	for _, l := range m.listings {
		all = append(all, l.addrs...)
	}
	return union(all, nil)
}

// keepCauses keeps the time of an answer that is as before: the slice may have changed since, for another member.
func (m *Member) keepCauses(before *Member) {
	if before == nil || !slices.Equal(m.Addrs, before.Addrs) {
		return
	}
	for k, a := range m.Streams {
		if b, ok := before.Streams[k]; ok && a.equal(b) {
			a.Caused = b.Caused
			m.Streams[k] = a
		}
	}
}

func (a Answer) equal(o Answer) bool {
	return a.State == o.State && a.Reason == o.Reason && a.Assigned == o.Assigned && slices.Equal(a.Services, o.Services) &&
		slices.Equal(a.Components, o.Components)
}

func (m *Member) equal(o *Member) bool {
	if m == nil || o == nil {
		return m == o
	}
	return m.Key == o.Key && m.Name == o.Name && m.Trench == o.Trench && slices.Equal(m.Addrs, o.Addrs) &&
		slices.Equal(m.Withheld, o.Withheld) && maps.EqualFunc(m.Streams, o.Streams, Answer.equal)
}

func (p *Pool) equal(o *Pool) bool { return reflect.DeepEqual(p, o) }

// build is nil for a Service that is no pool.
func (p *pool) build() *Pool {
	s := p.spec
	if s == nil {
		return nil
	}
	p.refresh()
	b := &Pool{
		Ref: p.ref, UID: s.uid, Created: s.created.UTC(), Stream: s.stream,
		Accepted: s.accepted(), Assignment: s.assignment, KeepDrain: s.keepDrain, PanicThreshold: s.panicThreshold,
		Panic: p.rules.panic, HasSelector: s.hasSelector, Ports: s.ports, Counts: p.counts(), Problems: p.problems,
	}
	b.Reason, b.Message = p.condition()
	if len(s.problems) > 0 {
		b.Problems = slices.Concat(s.problems, p.problems)
	}
	return b
}

// refresh makes anew what costs more than a few members to make.
func (p *pool) refresh() {
	if p.conflictStale {
		p.conflict, p.denied, p.conflictStale = p.conflictMessage(), p.deniedMessage(), false
	}
	if p.problemsStale {
		p.problems, p.problemsStale = p.mergeProblems(), false
	}
}

// mergeProblems names the least few of the slices' problems and counts the others: a slice has up to 1,000 endpoints, and all
// of them may be wrong in the same way.
func (p *pool) mergeProblems() []string {
	total := 0
	all := func(yield func(string) bool) {
		for s := range p.slices {
			for _, problem := range s.problems {
				total++
				if !yield(problem) {
					return
				}
			}
		}
	}
	named := least(all, maxNamed, strings.Compare)
	if more := total - len(named); more > 0 {
		named = append(named, fmt.Sprintf("and %d more problems in EndpointSlices", more))
	}
	return named
}

// condition is reason and message of Accepted; what disturbs members comes before what disturbs nobody.
func (p *pool) condition() (reason, message string) {
	if r := p.spec.refusal; r != (refusal{}) {
		return r.reason, strings.Join(append([]string{r.message}, p.spec.problems...), "; ")
	}
	reason, parts := ReasonAccepted, []string{"pool of stream " + p.spec.stream.String()}
	if len(p.spec.problems) > 0 {
		reason, parts = ReasonInvalidAnnotations, append(parts, p.spec.problems...)
	}
	if p.denied != "" {
		reason, parts = ReasonMembersNotPermitted, append(parts, p.denied)
	}
	if p.conflict != "" {
		reason, parts = ReasonConflict, append(parts, p.conflict)
	}
	if !p.spec.hasSelector {
		parts = append(parts, "the Service has no selector: only its EndpointSlices count")
	}
	return reason, strings.Join(parts, "; ")
}

func (p *pool) counts() Counts {
	c := Counts{Ready: p.tally[ready], Draining: p.tally[draining], Withheld: len(p.withheld)}
	c.Members = c.Withheld
	for class, n := range p.tally {
		c.Members += n
		if p.spec.assignment != ByReadiness || class == int(ready) {
			c.Assigned += n
		}
	}
	c.Active = c.Ready
	if p.rules.panic {
		c.Active += p.tally[notReady]
	}
	if p.rules.lastResort {
		c.Active += p.tally[draining]
	}
	return c
}

// maxNamed bounds what a message lists: it is for people.
const maxNamed = 5

func (p *pool) conflictMessage() string {
	names := p.lossesOf(false, func(l loss) string {
		return fmt.Sprintf("%s (held by Service %s, trench %s)", l.member, l.winner, l.trench)
	})
	if names == "" {
		return ""
	}
	return "members are withheld, for an older Service of another trench has them: " + names
}

func (p *pool) deniedMessage() string {
	names := p.lossesOf(true, func(l loss) string {
		if l.account == "" {
			return l.member + " (not proven)"
		}
		return fmt.Sprintf("%s (runs as %s)", l.member, l.account)
	})
	if names == "" {
		return ""
	}
	if len(p.spec.permission.Accounts) == 0 {
		return "members are not permitted, for the grant is for external targets only: " + names
	}
	return fmt.Sprintf("members are not permitted, for the grant is for pods that run as %s: %s",
		strings.Join(clipped(p.spec.permission.Accounts), ", "), names)
}

// clipped is the beginning of a long list.
func clipped(names []string) []string {
	if len(names) <= maxNamed {
		return names
	}
	return append(slices.Clone(names[:maxNamed]), "...")
}

// lossesOf names the first few of one kind, empty where there are none.
func (p *pool) lossesOf(denied bool, name func(loss) string) string {
	total := 0
	all := func(yield func(MemberKey) bool) {
		for k, l := range p.withheld {
			if l.denied == denied {
				total++
				if !yield(k) {
					return
				}
			}
		}
	}
	var parts []string
	for _, k := range least(all, maxNamed, MemberKey.Compare) {
		parts = append(parts, name(p.withheld[k]))
	}
	text := strings.Join(parts, ", ")
	if more := total - len(parts); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// least are the n least elements, without sorting all.
func least[T any](all iter.Seq[T], n int, compare func(a, b T) int) []T {
	var found []T
	for x := range all {
		i, _ := slices.BinarySearchFunc(found, x, compare)
		if i < n {
			found = slices.Insert(found, i, x)
			found = found[:min(n, len(found))]
		}
	}
	return found
}
