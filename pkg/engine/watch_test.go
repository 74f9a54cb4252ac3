package engine

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/pkg/feed"
	"github.com/nordix/meridio-nsp/pkg/pool"
	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// appMay grants namespace app all of trench t1.
func appMay(c *Config) {
	c.Grants = pool.NewGrants([]pool.Grant{{Namespace: "app", Trench: "t1"}, {Namespace: "app", Externals: []string{pool.Any}, Trench: "t1"}})
}

func enabled(k stream.Key) Filter {
	return Filter{Trench: k.Trench, Conduit: k.Conduit, Stream: k.Name}
}

func anyOf(k stream.Key) Filter {
	f := enabled(k)
	f.Status = registry.Any
	return f
}

// Nothing is told before it was read, and then everybody who waits is told, also that there is nothing.
func TestNothingIsToldBeforeItWasRead(t *testing.T) {
	steps := map[string]Event{
		"own": NamespaceSynced{Namespace: own}, "app": NamespaceUnavailable{Namespace: "app"}, "t1": TrenchConfigured{Trench: "t1"},
	}
	orders := [][]string{{"own", "app", "t1"}, {"t1", "app", "own"}, {"own", "t1", "app"}, {"app", "t1", "own"}}
	for _, order := range orders {
		t.Run(fmt.Sprint(order), func(t *testing.T) {
			n := newNSP(t, func(c *Config) { c.Namespaces = []string{own, "app"} })
			n.register(target(x1, 1))
			cursor := n.s.topic(&n.out, x1.Of()).Follow()
			empty := n.s.topic(&n.out, stream.Conduit{Namespace: own, Trench: "t1", Name: "none"}).Follow()
			active := map[Filter][]uint64{
				enabled(x1): {1}, enabled(x2): {}, {Scope: "t1"}: {1}, {Scope: "t1", Trench: "t1"}: {1}, {}: {1},
			}
			watch := func(f Filter) func() ([]uint64, bool) {
				w := n.list(f)
				return func() ([]uint64, bool) { return ids(w) }
			}
			lists := map[Filter]func() ([]uint64, bool){}
			for f := range active {
				lists[f] = watch(f)
			}
			all := watch(anyOf(x1))
			got, ok := all()
			require.True(t, ok, "what is registered waits for nothing")
			require.Equal(t, []uint64{1}, got)
			w := n.assignments(Workload{Namespace: own, Pod: "p"})
			told := false
			for i := range order {
				_, ok, _ = cursor.Next()
				require.False(t, ok)
				_, ok, _ = empty.Next()
				require.False(t, ok)
				for f, next := range lists {
					_, ok := next()
					require.False(t, ok, f)
				}
				_, _, ok, _ = w.Next()
				namespaces := slices.Contains(order[:i], "own") && slices.Contains(order[:i], "app")
				require.Equal(t, namespaces && !told, ok, "assignments wait for the namespaces only")
				told = told || ok
				n.do(steps[order[i]])
			}
			b, ok, _ := cursor.Next()
			require.True(t, ok)
			require.Equal(t, Active, b.Changes[0].Value.Row.State)
			_, ok, _ = empty.Next()
			require.True(t, ok)
			for f, next := range lists {
				got, ok := next()
				require.True(t, ok, f)
				require.Equal(t, active[f], got)
			}
			_, ok = all()
			require.False(t, ok)
		})
	}
}

func TestLaterNamespaceHoldsUpNobody(t *testing.T) {
	n := running(t, appMay)
	require.True(t, n.s.answered)
	n.do(NamespaceUnavailable{Namespace: "app"})
	require.True(t, n.s.answered)
	cursor := n.s.topic(&n.out, x1.Of()).Follow()
	_, ok, _ := cursor.Next()
	require.True(t, ok)
	n.do(NamespaceSynced{Namespace: "app"})
	require.False(t, n.s.stale())
}

// A new trench holds up nobody either; its own load balancers wait for its configuration.
func TestLaterTrench(t *testing.T) {
	n := running(t)
	all := n.list(Filter{})
	_, ok := ids(all)
	require.True(t, ok)
	other := key("t2", "c1", "x1")
	theirs := n.list(enabled(other))
	require.Equal(t, []string{"t2"}, n.wanted)
	n.register(target(other, 1))
	_, ok = ids(all)
	require.False(t, ok)
	_, ok = ids(theirs)
	require.False(t, ok)
	n.register(target(x1, 2))
	got, ok := ids(all)
	require.True(t, ok)
	require.Equal(t, []uint64{2}, got)
	n.do(TrenchConfigured{Trench: "t2"})
	got, _ = ids(theirs)
	require.Equal(t, []uint64{1}, got)
	got, _ = ids(all)
	require.Equal(t, []uint64{1, 2}, got)
}

// A list wakes for what it shows: an old TAPA sees registrations, an old load balancer the active ones.
func TestListsWakeForTheirAnswer(t *testing.T) {
	n := running(t)
	a := target(x1, 1)
	n.register(a)
	n.do(service("s", x1), slice("x", "s", 1, ready("u1")))
	watched := map[string]Filter{
		"active": enabled(x1), "any": anyOf(x1), "disabled": {Status: registry.Disabled, Trench: "t1", Conduit: "c1", Stream: "x1"},
		"other": enabled(x2), "wild": {Scope: "t1"}, "wild any": {Scope: "t1", Status: registry.Any},
	}
	next := map[string]func() ([]uint64, bool){}
	for name, f := range watched {
		w := n.list(f)
		_, ok := ids(w)
		require.True(t, ok)
		next[name] = func() ([]uint64, bool) { return ids(w) }
	}
	woken := func(want ...string) {
		t.Helper()
		got := []string{}
		for name, next := range next {
			if _, ok := next(); ok {
				got = append(got, name)
			}
		}
		require.ElementsMatch(t, want, got)
	}
	n.refresh(a)
	woken()
	n.do(slice("x", "s", 2, notReady("u1")))
	woken("active", "wild")
	n.do(slice("x", "s", 3, ready("u1")))
	woken("active", "wild")
	n.do(slice("x", "s", 4, ready("u1"), ready("u2")))
	woken()
	a.status = registry.Disabled
	n.refresh(a)
	woken("active", "any", "disabled", "wild", "wild any")
	a.identifier = 2
	n.refresh(a)
	woken("any", "disabled", "wild any")
	a.caller = by(7)
	n.refresh(a)
	woken()
	n.unregister(a)
	woken("any", "disabled", "wild any")
}

// A target that drains stays in the list of an old load balancer only where its pool keeps it.
func TestDraining(t *testing.T) {
	for policy, keeps := range map[string]bool{"keep": true, "remove": false} {
		n := running(t)
		a := target(x1, 1)
		n.register(a)
		draining := pod{uid: "u1", ready: new(false), serving: new(true), terminating: new(true)}
		w := n.list(enabled(x1))
		n.do(service("s", x1, pool.AnnotationDraining, policy), slice("x", "s", 1, draining, ready("u2")))
		got, _ := ids(w)
		if keeps {
			n.is(a, Draining, pool.ReasonDraining)
			require.Equal(t, []uint64{1}, got)
			require.Equal(t, Counts{Registered: 1, Draining: 1}, n.pools[pool.Ref{Namespace: own, Name: "s"}].Targets)
		} else {
			n.is(a, Inactive, pool.ReasonTerminating)
			require.Empty(t, got)
		}
	}
}

// Whoever comes to a list that others watch gets it and wakes none of them. // P8
func TestSubscribingWakesNobody(t *testing.T) {
	n := running(t)
	n.register(target(x1, 1))
	first := n.list(enabled(x1))
	_, _, _, woken := first.Next()
	n.register(target(x2, 2))
	got, ok := ids(n.list(enabled(x1)))
	require.True(t, ok)
	require.Equal(t, []uint64{1}, got)
	select {
	case <-woken:
		t.Fatal("woken by a subscription")
	default:
	}
}

// A list is of one revision and stays as it is, whatever comes later.
func TestListIsImmutable(t *testing.T) {
	n := running(t)
	w := n.list(anyOf(x1))
	for i := range 200 {
		n.refresh(target(x1, i))
	}
	l, _, _, _ := w.Next()
	for i := range 200 {
		n.unregister(target(x1, i))
	}
	count := 0
	for range l.Rows() {
		count++
	}
	require.Equal(t, 200, count)
	got, _ := ids(w)
	require.Empty(t, got)
}

// A pod and its successor of the same name: one list with the streams of both, each with all its Services.
func TestAssignmentsOfTwoPodsOfOneName(t *testing.T) {
	n := running(t)
	next := slice("b", "s2", 1, ready("u9"))
	next.Slice.Endpoints[0].Target.Name = "pod-u1"
	n.do(service("s1", x1), service("s2", x1), slice("a", "s1", 1, ready("u1")), next)
	v, _, _, _ := n.assignments(w1).Next()
	require.Len(t, v.Streams, 1)
	require.Equal(t, []pool.Ref{{Namespace: own, Name: "s1"}, {Namespace: own, Name: "s2"}}, v.Streams[0].Services)
	v, _, _, _ = n.assignments(Workload{Namespace: own, Pod: "pod-u1", PodUID: "u9"}).Next()
	require.Equal(t, []pool.Ref{{Namespace: own, Name: "s2"}}, v.Streams[0].Services)
}

// P20: the stored registrations are lost. Load balancers hear nothing until their targets have had the time to come back; all
// others are answered.
func TestRebuilding(t *testing.T) {
	limited := 0
	n := running(t, func(c *Config) {
		c.Rebuilding, c.Limits = true, func(string, map[stream.Key]uint32) { limited++ }
	})
	n.do(service("s", x1), slice("x", "s", 1, ready("u1")))
	cursor := n.s.topic(&n.out, x1.Of()).Follow()
	theirs, wild, any := n.list(enabled(x1)), n.list(Filter{}), n.list(anyOf(x1))
	n.register(target(x1, 1))
	_, ok, _ := cursor.Next()
	require.False(t, ok)
	for _, w := range []*feed.Watcher[Filter, *List]{theirs, wild} {
		_, ok = ids(w)
		require.False(t, ok)
	}
	got, _ := ids(any)
	require.Equal(t, []uint64{1}, got)
	a, _, ok, _ := n.assignments(w1).Next()
	require.True(t, ok)
	require.Equal(t, []string{"x1"}, streamsOf(a))

	require.Zero(t, limited, "identifiers are given to nobody before those who had them are back")
	n.do(Rebuilt{})
	require.NotZero(t, limited)
	b, ok, _ := cursor.Next()
	require.True(t, ok)
	require.Len(t, b.Changes, 1)
	require.Equal(t, Active, b.Changes[0].Value.Row.State)
	for _, w := range []*feed.Watcher[Filter, *List]{theirs, wild} {
		got, _ = ids(w)
		require.Equal(t, []uint64{1}, got)
	}
}

// Anybody may name trenches that do not exist, by watching and by registering; each costs a watch on the API server.
func TestTrenchesThatClientsNameAreBounded(t *testing.T) {
	n := running(t)
	name := func(i int) string { return fmt.Sprint("t", i) }
	for i := range 2 * maxWatched {
		n.s.topic(&n.out, key(name(i), "c1", "x").Of())
		n.list(Filter{Trench: name(i)}).Close()
		n.do()
	}
	require.LessOrEqual(t, len(n.s.wanted), maxWatched)
	require.LessOrEqual(t, len(n.wanted)-len(n.dropped), maxWatched)
	for i := range 2 * maxRegistered {
		n.register(target(key(name(i), "c1", "x"), 1))
	}
	require.Len(t, n.s.wanted, maxRegistered)
	require.Positive(t, n.s.refused)

	// A pool's trench is always asked for; a registration's as soon as there is room.
	other := key("other", "c1", "x")
	n.do(service("s", other), slice("x", "s", 1, ready("u1")))
	require.Contains(t, n.s.wanted, "other")
	late := target(key(name(2*maxRegistered-1), "c1", "x"), 1)
	n.refresh(late)
	require.NotContains(t, n.s.wanted, late.stream.Trench)
	n.is(late, Pending, "")
	for i := range maxRegistered {
		n.unregister(target(key(name(i), "c1", "x"), 1))
	}
	n.refresh(late)
	require.Contains(t, n.s.wanted, late.stream.Trench)
	n.do(TrenchConfigured{Trench: late.stream.Trench})
	n.is(late, Active, ReasonApplication)
}

// A trench that was dropped while watched is told of again once it is known again, and never of what is Pending.
func TestDroppedTrenchComesBack(t *testing.T) {
	n := running(t)
	k := key("t2", "c1", "x1")
	cursor, list := n.s.topic(&n.out, k.Of()).Follow(), n.list(enabled(k))
	n.do(TrenchConfigured{Trench: "t2"})
	b, ok, _ := cursor.Next()
	require.True(t, ok)
	require.Empty(t, b.Changes)
	got, ok := ids(list)
	require.True(t, ok)
	require.Empty(t, got)
	n.s.dropUnused()
	require.Equal(t, []string{"t1", "t2"}, slices.Sorted(slices.Values(n.dropped)))

	n.register(target(k, 1))
	n.is(target(k, 1), Pending, "")
	b, _, _ = cursor.Next()
	for _, c := range b.Changes {
		require.True(t, c.Gone || c.Value.Row.State != Pending)
	}
	n.do(TrenchConfigured{Trench: "t2"})
	b, ok, _ = cursor.Next()
	require.True(t, ok)
	require.Len(t, b.Changes, 1)
	require.Equal(t, Active, b.Changes[0].Value.Row.State)
	got, _ = ids(list)
	require.Equal(t, []uint64{1}, got)
}

func TestNothingIsKept(t *testing.T) {
	n := running(t)
	topics := []*Topic{}
	for i := range 1000 {
		k := key("t1", fmt.Sprint("c", i), "x")
		a := target(k, 1)
		name := fmt.Sprint("s", i)
		n.register(a)
		n.do(service(name, k), slice(name, name, 1, ready("u1")))
		n.do(serviceGone(name), sliceGone(name))
		n.unregister(a)
		if i < 10 {
			topics = append(topics, n.s.topic(&n.out, k.Of()))
		}
		n.list(Filter{Scope: fmt.Sprint(i)}).Close()
		if i%100 == 0 {
			runtime.GC()
		}
	}
	require.Empty(t, n.s.streams)
	require.Empty(t, n.s.records)
	require.Empty(t, n.s.members)
	require.Empty(t, n.s.byAddr)
	require.Empty(t, n.s.byPeer)
	require.Empty(t, n.s.byPod)
	require.Empty(t, n.s.streamOf)
	require.Empty(t, n.s.dirty)
	require.Less(t, len(n.out.lists.wild), 50)
	require.Less(t, len(n.out.topics.all), 700)
	for i, topic := range topics {
		require.Same(t, topic, n.s.topic(&n.out, key("t1", fmt.Sprint("c", i), "x").Of()), "a watcher holds it")
	}
}

// A topic that was forgotten gives no delta over what it forgot.
func TestResumeOverForgottenTopic(t *testing.T) {
	n := running(t)
	a := target(x1, 1)
	n.register(a)
	seen := n.s.topic(&n.out, x1.Of()).Follow()
	_, _, _ = seen.Next()
	at := seen.Revision()
	seen = nil
	n.unregister(a)
	for range 3 {
		runtime.GC()
	}
	n.register(target(x1, 2))
	b, ok, _ := n.s.topic(&n.out, x1.Of()).Resume(at).Next()
	require.True(t, ok)
	require.True(t, b.Snapshot)
	require.Len(t, b.Changes, 1)
}

// A list of one owner has what that has registered, and wakes also when something becomes its own.
func TestListOfOneOwner(t *testing.T) {
	n := running(t)
	mine, other := target(x1, 1), target(x1, 2)
	mine.caller, other.caller = registry.Caller{PodUID: "u1"}, registry.Caller{PodUID: "u2"}
	n.register(mine)
	n.register(other)
	f := anyOf(x1)
	f.Owner = "u1"
	w := n.list(f)
	got, ok := ids(w)
	require.True(t, ok)
	require.Equal(t, []uint64{1}, got)
	other.status = registry.Disabled
	n.refresh(other)
	_, ok = ids(w)
	require.False(t, ok, "it is none of its business")
	other.caller.PodUID = "u1"
	n.refresh(other)
	got, ok = ids(w)
	require.True(t, ok)
	require.Equal(t, []uint64{1, 2}, got)
	n.unregister(mine)
	got, _ = ids(w)
	require.Equal(t, []uint64{2}, got)
}

// The names of pods and of ExternalTargets are names of different things.
func TestExternalTargetIsNoPod(t *testing.T) {
	n := running(t)
	vm := pool.Target{Ref: pool.Ref{Namespace: own, Name: "same"}, UID: "vm", Confirmed: []netip.Addr{addr("192.0.2.1")}}
	pod, machine := slice("x", "s", 1, ready("u1")), slice("y", "s2", 1, ready("vm"))
	pod.Slice.Endpoints[0].Target.Name = "same"
	machine.Slice.Endpoints[0] = pool.Endpoint{Addresses: []string{"192.0.2.1"}, Target: &pool.TargetRef{Kind: "ExternalTarget", Name: "same", UID: "vm"}}
	n.do(GrantsChanged{Grants: pool.NewGrants([]pool.Grant{{Namespace: own, Externals: []string{"same"}, Trench: "t1"}})}, TargetSet{Target: vm},
		service("s", x1), service("s2", x2), pod, machine)
	for external, uid := range map[bool]string{false: "u1", true: "vm"} {
		found := n.s.membersOf(Workload{Namespace: own, Pod: "same", External: external})
		require.Len(t, found, 1)
		require.Equal(t, uid, found[0].Key.UID)
		require.Equal(t, external, found[0].Target)
	}
}
