package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/pkg/pool"
	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// An endpoint moves between slices: the newer one wins, and nothing is ever without members. // D1
func TestMemberMovesBetweenSlices(t *testing.T) {
	n := running(t)
	a := target(x1, 1)
	n.register(a)
	n.do(service("s", x1), slice("x", "s", 1, ready("u1")))
	n.is(a, Active, pool.ReasonReady)
	n.do(slice("y", "s", 2, notReady("u1")))
	n.is(a, Inactive, pool.ReasonNotReady)
	require.Zero(t, n.do(sliceGone("x")).rows, "already so")
	n.do(slice("z", "s", 3, ready("u1")))
	require.Zero(t, n.do(sliceGone("y")).rows)
	n.is(a, Active, pool.ReasonReady)
}

// A pod needs its stream to become ready. // D2
func TestAssignedBeforeReady(t *testing.T) {
	n := running(t)
	a := target(x1, 1)
	n.do(service("s", x1), slice("x", "s", 1, notReady("u1")))
	w := n.assignments(Workload{Namespace: own, Pod: "pod-u1"})
	v, _, ok, _ := w.Next()
	require.True(t, ok)
	require.Equal(t, []string{"x1"}, streamsOf(v))
	n.register(a)
	n.is(a, Inactive, pool.ReasonNotReady)
	n.do(slice("x", "s", 2, ready("u1")))
	n.is(a, Active, pool.ReasonReady)
	_, _, ok, _ = w.Next()
	require.False(t, ok, "readiness wakes no TAPA")
}

// Nil conditions mean ready; those that serve while terminating are the last resort. // D3
func TestServingWhileTerminating(t *testing.T) {
	n := running(t)
	a := target(x1, 1)
	n.register(a)
	n.do(service("s", x1), slice("x", "s", 1, ready("u1")))
	n.is(a, Active, pool.ReasonReady)
	n.do(slice("x", "s", 2, pod{uid: "u1", ready: new(false), serving: new(true), terminating: new(true)}))
	n.is(a, Active, pool.ReasonServingTerminating)
	n.do(slice("x", "s", 3, pod{uid: "u1", ready: new(false), serving: new(false), terminating: new(true)}))
	n.is(a, Inactive, pool.ReasonTerminating)
}

// Two Services name one stream and one pod. // D5
func TestTwoServicesOneStream(t *testing.T) {
	n := running(t)
	a := target(x1, 1)
	n.register(a)
	n.do(service("s1", x1), service("s2", x1), slice("a", "s1", 1, ready("u1")), slice("b", "s2", 1, ready("u1")))
	require.Zero(t, n.do(serviceGone("s1")).rows)
	n.is(a, Active, pool.ReasonReady)
	n.do(serviceGone("s2"))
	n.is(a, Inactive, ReasonLeft)
}

// What a target is part of follows the Services that list it, and load balancers hear of it only where that differs.
func TestComponentsOfATarget(t *testing.T) {
	n := running(t, func(c *Config) { c.Cluster = "west" })
	a := target(x1, 1)
	n.register(a)
	require.Empty(t, n.row(a).Components)
	n.do(service("s1", x1), slice("a", "s1", 1, ready("u1")))
	require.Equal(t, []pool.Component{{Cluster: "west", Namespace: own, Service: "s1"}}, n.row(a).Components)
	require.Equal(t, 1, n.do(service("s2", x1), slice("b", "s2", 1, ready("u1"))).rows)
	require.Len(t, n.row(a).Components, 2)
	n.do(serviceGone("s1"), serviceGone("s2"))
	require.Empty(t, n.row(a).Components)
	n.is(a, Inactive, ReasonLeft)
}

// The Service is relabelled to another stream: the old target is inactive at once, whatever its lease. // D6
func TestRelabelled(t *testing.T) {
	n := running(t)
	old, next := target(x1, 1), target(x2, 1)
	n.register(old)
	n.do(service("s", x1), slice("x", "s", 1, ready("u1")))
	w := n.assignments(Workload{Namespace: own, Pod: "pod-u1"})
	_, _, _, _ = w.Next()
	n.do(service("s", x2))
	n.is(old, Inactive, ReasonLeft)
	v, _, ok, _ := w.Next()
	require.True(t, ok)
	require.Equal(t, []string{"x2"}, streamsOf(v), "one update")
	n.register(next)
	n.is(next, Active, pool.ReasonReady)
}

// Addresses are equal, readiness is not. // P1
func TestReadinessOnlyChange(t *testing.T) {
	n := running(t)
	a := target(x1, 1)
	n.register(a)
	n.do(service("s", x1), slice("x", "s", 1, ready("u1"), ready("u2")))
	n.do(slice("x", "s", 2, notReady("u1"), ready("u2")))
	n.is(a, Inactive, pool.ReasonNotReady)
}

// Two families of one pod are one target. // P2
func TestDualStackIsOneTarget(t *testing.T) {
	n := running(t)
	a := target(x1, 1)
	n.register(a)
	six := slice("x6", "s", 1, ready("u1").at("fd00::1"))
	six.Slice.AddressType = pool.AddressTypeIPv6
	n.do(service("s", x1), slice("x4", "s", 1, ready("u1")), six)
	n.is(a, Active, pool.ReasonReady)
	require.Zero(t, n.do(sliceGone("x6")).rows)
	require.Equal(t, 1, n.pools[pool.Ref{Namespace: own, Name: "s"}].Targets.Active)
}

// One identifier in two streams is two. // P16
func TestIdentifierPerStream(t *testing.T) {
	n := running(t)
	a, b := target(x1, 7), target(x2, 7)
	b.addrs, b.caller = "172.16.0.8/24", by(8)
	n.register(a)
	n.register(b)
	n.do(service("s1", x1), service("s2", x2), slice("a", "s1", 1, ready("u7")), slice("b", "s2", 1, ready("u8")))
	n.is(a, Active, pool.ReasonReady)
	n.is(b, Active, pool.ReasonReady)
	n.do(slice("a", "s1", 2, notReady("u7")))
	n.is(b, Active, pool.ReasonReady)
}

// Scaled to zero. // P23
func TestScaledToZero(t *testing.T) {
	n := running(t)
	a := target(x1, 1)
	n.register(a)
	n.do(service("s", x1), slice("x", "s", 1, ready("u1")))
	n.do(slice("x", "s", 2))
	n.is(a, Inactive, ReasonLeft)
}

func TestRegistrationGates(t *testing.T) {
	n := newNSP(t)
	n.do(NamespaceSynced{Namespace: own})
	blocked := target(x1, 1)
	n.register(blocked)
	n.is(blocked, Pending, "")
	n.do(TrenchConfigured{Trench: "t1", MaxTargets: map[stream.Key]uint32{x1: 2}})
	n.is(blocked, Active, ReasonApplication)
	for id, reason := range map[int]string{0: ReasonInvalid, 1: ReasonApplication, 2: ReasonApplication, 3: ReasonInvalid} {
		a := target(x1, id+10)
		a.identifier = id
		n.register(a)
		require.Equal(t, reason, n.row(a).Reason)
	}
	for id, reason := range map[int]string{100: ReasonApplication, 101: ReasonInvalid} {
		a := target(x2, id)
		n.register(a)
		require.Equal(t, reason, n.row(a).Reason, "the default is 100")
	}
	e := *n.book.entries[blocked.key()]
	e.Status, e.Blocked = registry.Disabled, true
	n.change(registry.Change{Old: n.book.entries[blocked.key()], New: &e})
	n.book.entries[e.Key] = &e
	n.is(blocked, Inactive, ReasonBlocked)
}

// Two pools of one stream: each counts its own members, whoever else is active there.
func TestCountsArePerPool(t *testing.T) {
	n := running(t)
	n.do(service("s", x1), service("r", x1), slice("x", "s", 1, ready("u1"), ready("u2")), slice("y", "r", 1, ready("u3")))
	n.register(target(x1, 1))
	n.register(target(x1, 2))
	n.register(target(x1, 9)) // of nobody
	is := func(name string, want Counts, strangers int) {
		t.Helper()
		got := n.pools[pool.Ref{Namespace: own, Name: name}]
		require.Equal(t, want, got.Targets, name)
		require.Equal(t, strangers, got.Strangers.Total, name)
	}
	is("s", Counts{Registered: 2, Active: 2}, 1)
	is("r", Counts{}, 1)

	// A second registration of the same pod is no second target, and of two streams each has its own.
	again := target(x1, 1)
	again.addrs, again.identifier = "172.16.9.1/24", 7
	n.register(again)
	n.register(target(x2, 3))
	is("s", Counts{Registered: 2, Active: 2}, 1)
	is("r", Counts{}, 1)
	n.unregister(again)
	is("s", Counts{Registered: 2, Active: 2}, 1)

	// A member that a second pool lists counts in both, though nothing changes for it.
	n.do(slice("y", "r", 2, ready("u3"), ready("u1")))
	is("r", Counts{Registered: 1, Active: 1}, 1)
	n.do(slice("x", "s", 2, notReady("u1"), ready("u2")))
	is("s", Counts{Registered: 2, Active: 2}, 1)
	n.do(slice("y", "r", 3, ready("u3")))
	is("s", Counts{Registered: 2, Active: 1}, 1)
	is("r", Counts{}, 1)
	n.unregister(target(x1, 9))
	is("r", Counts{}, 0)
}

func TestConfigurationChanges(t *testing.T) {
	n := running(t)
	a := target(x1, 50)
	n.register(a)
	n.is(a, Active, ReasonApplication)
	n.do(TrenchConfigured{Trench: "t1", MaxTargets: map[stream.Key]uint32{x1: 49}})
	n.is(a, Inactive, ReasonInvalid)
	require.Zero(t, n.do(TrenchConfigured{Trench: "t1", MaxTargets: map[stream.Key]uint32{x1: 49}}).rows)
	n.do(TrenchConfigured{Trench: "t1", MaxTargets: map[stream.Key]uint32{x1: 0}})
	n.is(a, Active, ReasonApplication)
	require.Equal(t, []string{"t1"}, n.wanted)
}

func TestNeverListedIsTheApplications(t *testing.T) {
	n := running(t)
	a := target(x1, 1)
	n.register(a)
	n.do(service("s", x2), slice("x", "s", 1, notReady("u1")))
	n.is(a, Active, ReasonApplication)
	n.bound(a, BoundByPeer, "u1")
}

func TestLeftThenOpenedByApplication(t *testing.T) {
	n := running(t)
	a := target(x1, 1)
	n.register(a)
	n.do(service("s", x1), slice("x", "s", 1, ready("u1")))
	n.refresh(a)
	n.do(slice("x", "s", 2))
	n.is(a, Inactive, ReasonLeft)
	other := a
	other.caller = by(9)
	n.refresh(other)
	n.is(a, Inactive, ReasonLeft)
	n.refresh(other)
	n.is(a, Active, ReasonApplication)
	n.do(slice("x", "s", 3, notReady("u1")))
	n.refresh(a)
	n.is(a, Inactive, pool.ReasonNotReady)
}

// A refresh that came before the pool let go says nothing of what came after, not even in one turn.
func TestRefreshBeforeLeavingOpensNothing(t *testing.T) {
	for name, caller := range map[string]registry.Caller{"peer": by(1), "proven": {PodUID: "u1"}} {
		t.Run(name, func(t *testing.T) {
			n := running(t)
			a := target(x1, 1)
			a.caller = caller
			n.register(a)
			n.do(service("s", x1), slice("x", "s", 1, ready("u1")))
			n.refresh(a)
			n.s.changed(n.book.register(a))
			n.do(slice("x", "s", 2))
			n.is(a, Inactive, ReasonLeft)
			n.refresh(a)
			n.is(a, Active, ReasonApplication)
		})
	}
}

func TestOwnersAreReported(t *testing.T) {
	n := running(t)
	a, w := target(x1, 1), Workload{Namespace: own, Pod: "pod-u1"}
	n.register(a)
	owners := func(app ...stream.Key) reported {
		return reported{id: 1, workload: w, report: &Report{Proven: true, HasOwners: true, Application: app}}
	}
	n.do(service("s", x1), slice("x", "s", 1, ready("u1")), owners())
	n.do(slice("x", "s", 2))
	n.refresh(a)
	n.is(a, Inactive, ReasonLeft)
	n.do(owners(x1))
	n.is(a, Active, ReasonApplication)
	n.do(owners(x2))
	n.is(a, Inactive, ReasonLeft)
	n.do(slice("x", "s", 3, ready("u1")))
	n.do(owners(x1), slice("x", "s", 4, notReady("u1")))
	n.is(a, Inactive, pool.ReasonNotReady)
}

// The time of the cause stays while the state does, whoever else changed and whatever restarted.
func TestCausedStays(t *testing.T) {
	n := running(t)
	a := target(x1, 1)
	n.register(a)
	n.do(service("s", x1), slice("x", "s", 5, ready("u1"), ready("u2")))
	require.Equal(t, time.Unix(5, 0), n.row(a).Caused)
	n.do(slice("x", "s", 6, ready("u1"), notReady("u2")))
	require.Equal(t, time.Unix(5, 0), n.row(a).Caused)
	n.start()
	n.do(NamespaceSynced{
		Namespace: own, Services: []pool.Service{service("s", x1).Service},
		Slices: []pool.Slice{slice("x", "s", 9, ready("u1")).Slice},
	}, TrenchConfigured{Trench: "t1"})
	require.Equal(t, time.Unix(5, 0), n.row(a).Caused)
	n.do(slice("x", "s", 10, notReady("u1")))
	require.Equal(t, time.Unix(10, 0), n.row(a).Caused)
}

// What is remembered is the last conclusion, also where it is one that was remembered before.
func TestFlapIsRemembered(t *testing.T) {
	n := running(t)
	a := target(x1, 1)
	n.register(a)
	up, down := slice("x", "s", 1, ready("u1")), slice("x", "s", 1, notReady("u1"))
	n.do(service("s", x1), up)
	for range 3 {
		down.Slice.Version, up.Slice.Version = down.Slice.Version+2, down.Slice.Version+3
		n.do(down)
		require.Equal(t, uint8(Inactive), n.book.entries[a.key()].Memory.State)
		n.do(up)
		require.Equal(t, uint8(Active), n.book.entries[a.key()].Memory.State)
	}
}

func TestReadinessOff(t *testing.T) {
	n := newNSP(t, func(c *Config) { c.ReadinessOff = true })
	n.do(NamespaceSynced{Namespace: own}, TrenchConfigured{Trench: "t1"})
	a := target(x1, 1)
	n.register(a)
	n.is(a, Active, ReasonApplication)
	n.do(service("s", x1), slice("x", "s", 1, notReady("u1")))
	n.is(a, Active, ReasonMember)
	n.do(serviceGone("s"))
	n.is(a, Active, ReasonMember)
}

// A frontend registers whatever it likes and is no target.
func TestFrontend(t *testing.T) {
	n := newNSP(t)
	a := asked{kind: registry.Frontend, addrs: "lb-1", identifier: 5}
	n.change(n.book.register(a))
	n.is(a, Inactive, ReasonDisabled)
	w := n.list(Filter{Type: registry.Frontend})
	got, ok := ids(w)
	require.True(t, ok)
	require.Empty(t, got)
	n.change(n.book.register(a))
	got, ok = ids(w)
	require.True(t, ok, "frontends wait for nothing")
	require.Equal(t, []uint64{1}, got)
	require.Empty(t, n.wanted)
}

// A key goes and comes back, or comes and goes, within one turn.
func TestKeyWithinOneBatch(t *testing.T) {
	n := running(t)
	n.do(service("s", x1), slice("x", "s", 1, ready("u1")))
	a := target(x1, 1)
	n.register(a)
	n.do(serviceGone("s"))
	n.is(a, Inactive, ReasonLeft)
	cursor := n.s.topic(&n.out, x1.Of()).Follow()
	_, _, _ = cursor.Next()

	gone, _ := n.book.unregister(a.key())
	n.change(gone, n.book.register(a), n.book.register(a))
	n.is(a, Active, ReasonApplication)
	require.EqualValues(t, 2, n.row(a).Entry.ID, "another life, another history")
	b, ok, _ := cursor.Next()
	require.True(t, ok)
	require.Len(t, b.Changes, 2)

	c := target(x2, 3)
	come := n.book.register(c)
	gone, _ = n.book.unregister(c.key())
	require.Zero(t, n.change(come, gone).rows)
	require.NotContains(t, n.s.streams, x2)
}
