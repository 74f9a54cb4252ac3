package pool

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// choose is a number below n; what it draws from is a rapid.T or the bytes of a fuzz input.
type choose func(n int) int

func one[T any](c choose, from ...T) T { return from[c(len(from))] }

// player plays the same events to the table and to the world, and compares.
type player struct {
	*world
	table *Table
	pick  choose
	// What the deltas add up to.
	members map[MemberKey]*Member
	pools   map[Ref]*Pool
}

func newPlayer(pick choose) *player {
	w := &world{map[Ref]Service{}, map[Ref]Slice{}, []Grant{
		{Namespace: own, Externals: []string{Any}, Trench: "t1"}, {Namespace: own, Externals: []string{Any}, Trench: "t2"},
		{Namespace: "app", Trench: "t1"}, {Namespace: "app", Accounts: []string{"web"}, Trench: "t2"},
	}, map[MemberKey]string{}}
	return &player{
		world: w, pick: pick, table: New(Config{Namespace: own, Grants: NewGrants(w.grants)}),
		members: map[MemberKey]*Member{}, pools: map[Ref]*Pool{},
	}
}

func (p *player) ref(prefix string) Ref {
	return Ref{one(p.pick, own, own, own, own, own, "app", "app", "zoo"), fmt.Sprint(prefix, p.pick(3))}
}

func (p *player) setService() {
	s := Service{
		Ref: p.ref("s"), UID: one(p.pick, "a", "b", "c"), Created: at(p.pick(3)),
		HasSelector: p.pick(4) > 0, Type: "ClusterIP",
		Labels: map[string]string{
			LabelMarker: MarkerValue, LabelNamespace: own,
			LabelTrench: one(p.pick, "t1", "t1", "t2"), LabelConduit: one(p.pick, "c1", "c2"), LabelStream: one(p.pick, "x1", "x2"),
		},
		Annotations: map[string]string{},
	}
	switch p.pick(24) {
	case 5:
		s.Type = "ExternalName"
	case 0:
		delete(s.Labels, LabelMarker)
	case 1:
		delete(s.Labels, LabelNamespace)
	case 2:
		s.Labels[LabelNamespace] = "another"
	case 3:
		delete(s.Labels, LabelConduit)
	case 4:
		s.Labels[LabelStream] = one(p.pick, "", "no/name", "x!")
	}
	for name, values := range annotationValues() {
		if p.pick(3) == 0 {
			s.Annotations[name] = one(p.pick, values...)
		}
	}
	p.services[s.Ref] = s
	p.table.SetService(s)
}

// annotationValues are sorted by name: the same draws must give the same events.
func annotationValues() func(func(string, []string) bool) {
	return func(yield func(string, []string) bool) {
		_ = yield(AnnotationAssignment, []string{"ready", "membership", "Ready"}) &&
			yield(AnnotationDraining, []string{"keep", "remove", "kept"}) &&
			yield(AnnotationPanicThreshold, []string{"0", "50", "100", "50%", "101", "-1", "050", ""})
	}
}

func (p *player) deleteService() {
	r := p.ref("s")
	delete(p.services, r)
	p.table.DeleteService(r)
}

func (p *player) setSlice() {
	r := p.ref("y")
	x := Slice{
		Namespace: r.Namespace, Name: r.Name, Service: fmt.Sprint("s", p.pick(3)), OwnerUID: one(p.pick, "", "", "", "a", "b"),
		Version: uint64(p.pick(6)), AddressType: one(p.pick, "IPv4", "IPv4", "IPv4", "IPv6", "IPv6", "FQDN"), Changed: at(p.pick(100)),
	}
	for range p.pick(5) {
		x.Endpoints = append(x.Endpoints, p.endpoint(x.AddressType))
	}
	p.put(x)
}

func (p *player) put(x Slice) {
	p.slices[Ref{x.Namespace, x.Name}] = x
	p.table.SetSlice(x)
}

func (p *player) endpoint(family string) Endpoint {
	e := Endpoint{Ready: p.condition(), Serving: p.condition(), Terminating: p.condition()}
	for range one(p.pick, 1, 1, 1, 2) {
		e.Addresses = append(e.Addresses, p.address(family))
	}
	u := p.pick(4)
	e.Target = &TargetRef{Kind: "Pod", Namespace: one(p.pick, own, "app", ""), Name: fmt.Sprint("pod", u), UID: fmt.Sprint("u", u)}
	switch p.pick(30) {
	case 0, 1, 2:
		e.Target = nil
	case 3:
		e.Target.UID = ""
	case 4:
		e.Target.Kind = "Node"
	case 5:
		e.Addresses = nil
	case 6:
		e.Target.Name = one(p.pick, "", "alias")
	}
	return e
}

func (p *player) condition() *bool { return one(p.pick, nil, new(true), new(false)) }

func (p *player) address(family string) string {
	switch {
	case p.pick(25) == 0:
		return one(p.pick, "bad", "127.0.0.1", "224.0.0.1", "0.0.0.0", "::1", "::ffff:10.0.0.1", "fd00::1%eth0", "10.0.0.1/32", "010.0.0.1", "")
	case family == "IPv6":
		return fmt.Sprint("fd00::", p.pick(5))
	}
	return fmt.Sprint("10.0.0.", p.pick(5))
}

// editSlice is what the endpointslice controller does most: one endpoint of a slice becomes another, comes or goes.
func (p *player) editSlice() {
	x, ok := p.slices[p.ref("y")]
	if !ok {
		return
	}
	x.Endpoints = slices.Clone(x.Endpoints)
	x.Version, x.Changed = x.Version+1, at(p.pick(100))
	switch i := p.pick(max(1, len(x.Endpoints))); {
	case len(x.Endpoints) == 0 || p.pick(4) == 0:
		x.Endpoints = append(x.Endpoints, p.endpoint(x.AddressType))
	case p.pick(4) == 0:
		x.Endpoints = slices.Delete(x.Endpoints, i, i+1)
	default:
		e := &x.Endpoints[i]
		e.Ready, e.Serving, e.Terminating = p.condition(), p.condition(), p.condition()
	}
	p.put(x)
}

// retouchSlice changes all but the endpoints.
func (p *player) retouchSlice() {
	x, ok := p.slices[p.ref("y")]
	if !ok {
		return
	}
	switch p.pick(4) {
	case 0:
		x.OwnerUID = one(p.pick, "", "a", "b")
	case 1:
		x.Service = fmt.Sprint("s", p.pick(3))
	case 2:
		x.AddressType = one(p.pick, "IPv4", "IPv6")
	}
	x.Version = uint64(p.pick(6))
	p.put(x)
}

// moveEndpoint may make the endpoint be in both slices for a while, or in none.
func (p *player) moveEndpoint() {
	from, ok := p.slices[p.ref("y")]
	to, ok2 := p.slices[p.ref("y")]
	if !ok || !ok2 || len(from.Endpoints) == 0 || to.Name == from.Name {
		return
	}
	i := p.pick(len(from.Endpoints))
	to.Endpoints = append(slices.Clone(to.Endpoints), from.Endpoints[i])
	to.Version++
	from.Endpoints = slices.Delete(slices.Clone(from.Endpoints), i, i+1)
	from.Version++
	what := p.pick(3)
	if what != 0 {
		p.put(to)
	}
	if what != 1 {
		p.put(from)
	}
}

func (p *player) deleteSlice() {
	r := p.ref("y")
	delete(p.slices, r)
	p.table.DeleteSlice(r.Namespace, r.Name)
}

func (p *player) dropNamespace() {
	ns := one(p.pick, own, "app", "zoo")
	of := func(r Ref) bool { return r.Namespace == ns }
	maps.DeleteFunc(p.services, func(r Ref, _ Service) bool { return of(r) })
	maps.DeleteFunc(p.slices, func(r Ref, _ Slice) bool { return of(r) })
	p.table.DropNamespace(ns)
}

// setGrant gives a grant, or revokes it.
func (p *player) setGrant() {
	g := Grant{
		Namespace: one(p.pick, own, "app", "app", "zoo"), Trench: one(p.pick, "t1", "t2"), Stream: one(p.pick, "", "x1"),
		Accounts: one(p.pick, nil, nil, []string{"web"}, []string{"db", "web"}), Externals: one(p.pick, nil, nil, []string{Any}),
	}
	same := func(o Grant) bool { return reflect.DeepEqual(g, o) }
	was := slices.Clone(p.grants)
	if p.grants = slices.DeleteFunc(slices.Clone(was), same); len(p.grants) == len(was) {
		p.grants = append(p.grants, g)
	}
	p.table.SetGrants(NewGrants(p.grants))
}

// prove proves an account of a pod, listed or not, or takes that back.
func (p *player) prove() {
	k := MemberKey{Namespace: one(p.pick, own, "app", "app", "zoo"), UID: fmt.Sprint("u", p.pick(4))}
	p.accounts[k] = one(p.pick, "web", "db", "")
	p.table.SetAccount(k, p.accounts[k])
}

// step plays one event; each comes as often as its weight says.
func (p *player) step() {
	events := []struct {
		weight int
		play   func()
	}{
		{6, p.setService}, {2, p.deleteService}, {6, p.setSlice}, {8, p.editSlice}, {3, p.retouchSlice},
		{4, p.moveEndpoint}, {2, p.deleteSlice}, {3, p.setGrant}, {3, p.prove}, {1, p.dropNamespace},
	}
	n := p.pick(38)
	for _, e := range events {
		if n -= e.weight; n < 0 {
			e.play()
			return
		}
	}
}

// check flushes and compares table and world.
func (p *player) check(t require.TestingT) {
	before := maps.Clone(p.members)
	delta := p.table.Flush()
	p.applyDelta(t, delta)
	wantPools := p.world.pools()
	wantMembers := members(wantPools)
	for k, m := range wantMembers {
		m.keepCauses(before[k])
	}
	require.Equal(t, wantMembers, p.members)
	p.checkPools(t, wantPools)
	for ref, want := range wantPools {
		require.Equal(t, want.poolMembers(wantMembers), p.table.PoolMembers(ref), "members of %s", ref)
	}
	p.checkQueries(t)
	p.checkReplay(t)
	again := p.table.Flush()
	require.Empty(t, again.Members)
	require.Empty(t, again.Pools)
}

// applyDelta insists that every entry is a difference.
func (p *player) applyDelta(t require.TestingT, d Delta) {
	for k, m := range d.Members {
		require.False(t, m.equal(p.members[k]), "member %s did not change", k)
		if m == nil {
			delete(p.members, k)
		} else {
			p.members[k] = m
		}
	}
	for r, pool := range d.Pools {
		require.False(t, pool.equal(p.pools[r]), "pool %s did not change", r)
		if pool == nil {
			delete(p.pools, r)
		} else {
			p.pools[r] = pool
		}
	}
}

func (p *player) checkPools(t require.TestingT, want map[Ref]*mPool) {
	require.Len(t, p.pools, len(want))
	for ref, w := range want {
		got := *p.pools[ref]
		require.NotEmpty(t, got.Message)
		require.Len(t, got.Problems, w.problemsTold(), "problems of %s: %q", ref, got.Problems)
		got.Message, got.Problems, w.Problems = "", nil, nil
		require.Equal(t, w.Pool, got)
	}
}

func (p *player) checkQueries(t require.TestingT) {
	n := 0
	for m := range p.table.Members() {
		n++
		require.Same(t, p.members[m.Key], m)
		require.Same(t, m, p.table.Member(m.Key))
		for _, a := range m.Addrs {
			require.Contains(t, p.table.ByAddress(a), m)
		}
		if m.Name != "" {
			require.Contains(t, p.table.ByName(m.Key.Namespace, m.Name), m)
		}
	}
	require.Len(t, p.members, n)
	for a, list := range p.table.byAddr {
		require.NotEmpty(t, list)
		for _, m := range list {
			require.Same(t, p.members[m.Key], m)
			require.Contains(t, m.Addrs, a)
		}
	}
	for r, list := range p.table.byName {
		require.NotEmpty(t, list)
		for _, m := range list {
			require.Same(t, p.members[m.Key], m)
			require.Equal(t, r, Ref{m.Key.Namespace, m.Name})
		}
	}
	p.checkNothingKept(t)
}

// checkNothingKept finds what was forgotten by everybody but the maps.
func (p *player) checkNothingKept(t require.TestingT) {
	require.Len(t, p.table.slices, len(p.slices))
	require.Len(t, p.table.members, len(p.members))
	for r, pool := range p.table.pools {
		_, ok := p.services[r]
		require.True(t, ok || len(pool.slices) > 0, "pool %s is kept for nothing", r)
		require.LessOrEqual(t, len(pool.withheld), len(p.members))
	}
}

// checkReplay gives the final objects to an empty table, slices first, in the map's random order: all but the times of past
// causes must come out the same, messages included.
func (p *player) checkReplay(t require.TestingT) {
	fresh := New(Config{Namespace: own, Grants: NewGrants(p.grants)})
	for k, account := range p.accounts {
		fresh.SetAccount(k, account)
	}
	for _, x := range p.slices {
		fresh.SetSlice(x)
	}
	for _, s := range p.services {
		fresh.SetService(s)
	}
	d := fresh.Flush()
	require.Equal(t, p.pools, d.Pools)
	require.True(t, maps.EqualFunc(p.members, d.Members, (*Member).equal))
}

// Whatever the order of events, the table says what the objects say. // D1 D3 D5 D6 P2 P3 P4 P7 P23
func TestTableFollowsModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// One draw for each event: rapid prefers small numbers, which would leave most of every event at its first choice.
		var draws *rand.Rand
		p := newPlayer(func(n int) int { return draws.IntN(n) })
		for i, seed := range rapid.SliceOfN(rapid.Uint64(), 60, 400).Draw(t, "events") {
			if seed == 0 { // no event, so that a failure shrinks to the few that matter
				continue
			}
			draws = rand.New(rand.NewPCG(seed, uint64(i)))
			p.step()
			if p.pick(3) == 0 {
				p.check(t)
			}
		}
		p.check(t)
	})
}

func FuzzEvents(f *testing.F) {
	f.Add([]byte("a Service, a slice, and what becomes of them"))
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 3, 0, 50, 2, 1, 1, 1, 0, 1, 0, 9})
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1024 {
			return
		}
		p := newPlayer(func(n int) int {
			if len(data) == 0 {
				return 0
			}
			b := data[0]
			data = data[1:]
			return int(b) % n
		})
		for len(data) > 0 {
			p.step()
			if p.pick(3) == 0 {
				p.check(t)
			}
		}
		p.check(t)
	})
}
