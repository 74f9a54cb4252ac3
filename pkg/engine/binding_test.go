package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/pkg/pool"
	"github.com/nordix/meridio-nsp/pkg/registry"
)

var w1, w2 = Workload{Namespace: own, Pod: "pod-u1"}, Workload{Namespace: own, Pod: "pod-u2"}

// unproven is a registration whose call tells nothing of its pod.
func unproven(a asked) asked {
	a.caller = registry.Caller{}
	return a
}

func TestBindingOrder(t *testing.T) {
	n := running(t)
	a := target(x1, 1)
	a.caller.Peer = addr("10.0.0.3")
	n.register(a)
	n.do(service("s", x1), slice("x", "s", 1, ready("u1"), ready("u2"), ready("u3")))
	n.bound(a, BoundByPeer, "u3")
	n.do(claimOf(1, w2, "172.16.0.1"))
	n.bound(a, BoundByClaim, "u2")
	a.caller.PodUID = "u1"
	n.refresh(a)
	n.bound(a, BoundByProof, "u1")
	n.do(slice("x", "s", 2, ready("u2"), ready("u3")))
	n.bound(a, Unbound, "u1") // nothing else may speak for it
}

// A pod that comes later under the same name does not inherit the claim.
func TestClaimIsPinned(t *testing.T) {
	n := running(t)
	a := unproven(target(x1, 1))
	n.register(a)
	n.do(service("s", x1), slice("x", "s", 1, ready("u1")), claimOf(1, w1, "172.16.0.1"))
	n.bound(a, BoundByClaim, "u1")
	next := slice("x", "s", 2, ready("u9"))
	next.Slice.Endpoints[0].Target.Name = "pod-u1"
	n.do(next)
	n.bound(a, Unbound, "u1")
	n.is(a, Inactive, ReasonLeft)
	n.do(claimOf(2, w1, "172.16.0.1"))
	n.bound(a, BoundByClaim, "u9")
}

// A claim waits for its pod, and for its name to mean one pod only, in whatever way that comes about.
func TestClaimWaitsForItsPod(t *testing.T) {
	for name, w := range map[string]Workload{"name": w1, "address": {Addr: addr("10.0.0.1")}} {
		t.Run(name, func(t *testing.T) {
			n := running(t)
			a := unproven(target(x1, 1))
			n.register(a)
			twin := pod{uid: "u9"}.at("10.0.0.1")
			both := slice("x", "s", 1, ready("u1"), twin)
			both.Slice.Endpoints[1].Target.Name = "pod-u1"
			n.do(claimOf(1, w, "172.16.0.1"), service("s", x1), both)
			n.bound(a, Unbound, "")
			n.do(slice("x", "s", 2, ready("u1")))
			n.bound(a, BoundByClaim, "u1")
		})
	}
}

// A connection that breaks says nothing of the pod; the claim goes with the pod, or with the next word on it.
func TestEndedClaim(t *testing.T) {
	n := running(t)
	a := unproven(target(x1, 1))
	n.register(a)
	n.do(service("s", x1), slice("x", "s", 1, ready("u1")), claimOf(1, w1, "172.16.0.1"), ended(1, w1))
	n.bound(a, BoundByClaim, "u1")
	n.do(claimOf(2, w1, "172.16.0.2"))
	n.bound(a, BoundByMemory, "u1")
	require.Len(t, n.s.claims.byID, 1)
	n.do(claimOf(3, w1, "172.16.0.1"), ended(2, w1))
	require.Len(t, n.s.claims.byID, 1, "the older one ended after the newer one came")
	n.do(ended(3, w1), slice("x", "s", 2))
	require.Empty(t, n.s.claims.byID)
	require.Empty(t, n.s.claims.byAddr)
	require.Empty(t, n.s.claims.byUID)
	require.Empty(t, n.s.claims.byWorkload)
}

func TestContestedClaim(t *testing.T) {
	n := running(t)
	a := target(x1, 3)
	n.register(a)
	n.do(service("s", x1), slice("x", "s", 1, ready("u1"), ready("u2"), ready("u3")))
	n.do(claimOf(1, w1, "172.16.0.3"), claimOf(2, w2, "172.16.0.3"))
	n.bound(a, BoundByPeer, "u3")
	n.do(claimOf(2, w2, "172.16.0.4"))
	n.bound(a, BoundByClaim, "u1")
	n.do(claimOf(2, w2, "172.16.0.3"))
	n.bound(a, BoundByPeer, "u3")
	n.do(ended(2, w2), slice("x", "s", 2, ready("u1"), ready("u3")))
	n.bound(a, BoundByClaim, "u1")
}

// Trenches may use the same secondary addresses.
func TestClaimCountsInItsTrench(t *testing.T) {
	n := running(t)
	other := key("t2", "c1", "x1")
	n.do(TrenchConfigured{Trench: "t2"})
	a, b := unproven(target(x1, 7)), unproven(target(other, 7))
	n.register(a)
	n.register(b)
	n.do(service("s", x1), service("o", other), slice("x", "s", 1, ready("u1")), slice("y", "o", 1, notReady("u2")))
	n.do(claimOf(1, w1, "172.16.0.7"), claimOf(2, w2, "172.16.0.7"))
	n.bound(a, BoundByClaim, "u1")
	n.is(a, Active, pool.ReasonReady)
	n.bound(b, BoundByClaim, "u2")
	n.is(b, Inactive, pool.ReasonNotReady)
}

// An address of two pods proves nothing, until it is one pod's again and that pod calls. // D4
func TestSharedPeerAddress(t *testing.T) {
	n := running(t)
	a := target(x1, 1)
	n.register(a)
	n.do(service("s", x1), slice("x", "s", 1, ready("u1"), ready("u2").at("10.0.0.1")))
	n.bound(a, Unbound, "")
	n.do(slice("x", "s", 2, ready("u1"), ready("u2")))
	n.bound(a, Unbound, "")
	n.refresh(a)
	n.bound(a, BoundByPeer, "u1")
	n.do(slice("x", "s", 3, notReady("u1"), ready("u2").at("10.0.0.1")))
	n.bound(a, BoundByMemory, "u1")
	n.is(a, Inactive, pool.ReasonNotReady)
}

// Two hostNetwork pods: each is told its own streams, and that its address proves nothing. // D4
func TestHostNetworkAssignments(t *testing.T) {
	n := running(t)
	n.do(service("s1", x1), service("s2", x2), slice("a", "s1", 1, ready("u1")))
	one := n.assignments(w1)
	v, _, ok, _ := one.Next()
	require.True(t, ok)
	require.False(t, v.Shared)
	n.do(slice("b", "s2", 1, ready("u2").at("10.0.0.1")))
	v, _, ok, _ = one.Next()
	require.True(t, ok, "the first one's address is shared now")
	require.True(t, v.Shared)
	require.Equal(t, []string{"x1"}, streamsOf(v))
	v, _, _, _ = n.assignments(w2).Next()
	require.True(t, v.Shared)
	require.Equal(t, []string{"x2"}, streamsOf(v))
	n.do(sliceGone("b"))
	v, _, ok, _ = one.Next()
	require.True(t, ok)
	require.False(t, v.Shared)
}

// A slice written by hand in another namespace names a pod that is not there.
func TestForgedUIDProvesNothing(t *testing.T) {
	n := newNSP(t, appMay)
	n.do(NamespaceSynced{Namespace: own}, TrenchConfigured{Trench: "t1"})
	a := target(x1, 1)
	n.register(a)
	forgedService, forged := service("f", x1), slice("f", "f", 9, notReady("u1").at("10.9.9.9"))
	forgedService.Service.Namespace, forged.Slice.Namespace = "app", "app"
	forgedService.Service.Labels[pool.LabelNamespace] = own
	n.do(service("s", x1), slice("x", "s", 1, ready("u1")), forgedService, forged)
	n.bound(a, BoundByPeer, "u1")
	n.is(a, Active, pool.ReasonReady)
	a.caller.PodUID = "u1"
	n.refresh(a)
	n.bound(a, Unbound, "u1")
	n.do(SliceGone{"app", "f"})
	n.bound(a, BoundByProof, "u1")
}

func TestStoredBinding(t *testing.T) {
	n := running(t)
	a, b := unproven(target(x1, 1)), unproven(target(x1, 2))
	n.register(a)
	n.register(b)
	snapshot := NamespaceSynced{
		Namespace: own, Services: []pool.Service{service("s", x1).Service},
		Slices: []pool.Slice{slice("x", "s", 1, ready("u1"), notReady("u2")).Slice},
	}
	n.do(snapshot, claimOf(1, w1, "172.16.0.1"), claimOf(2, w2, "172.16.0.2"))
	n.start()
	n.is(a, Pending, "")
	n.do(snapshot, TrenchConfigured{Trench: "t1"})
	n.bound(a, BoundByMemory, "u1")
	n.is(a, Active, pool.ReasonReady)
	n.is(b, Inactive, pool.ReasonNotReady)
	n.do(claimOf(1, w1, "172.16.0.2"))
	n.bound(b, BoundByClaim, "u1")
	n.is(b, Active, pool.ReasonReady)
}

// The namespace cannot be read after a restart: what was stored counts until it can.
func TestStaleStart(t *testing.T) {
	n := running(t)
	a, b, c := target(x1, 1), target(x1, 2), target(x2, 3)
	for _, x := range []asked{a, b, c} {
		n.register(x)
	}
	n.do(service("s", x1), slice("x", "s", 1, ready("u1"), notReady("u2")))
	n.start()
	feed := n.s.topic(&n.out, x1.Of()).Follow()
	w, byAddr := n.assignments(w1), n.assignments(Workload{Addr: addr("10.0.0.1")})
	n.do(TrenchConfigured{Trench: "t1"})
	_, ok, _ := feed.Next()
	require.False(t, ok)
	n.do(NamespaceUnavailable{Namespace: own})
	require.True(t, n.s.stale())
	n.is(a, Active, pool.ReasonReady)
	n.is(b, Inactive, pool.ReasonNotReady)
	n.is(c, Active, ReasonApplication)
	_, ok, _ = feed.Next()
	require.True(t, ok)
	_, _, ok, _ = w.Next()
	require.False(t, ok, "an empty list would close all streams")
	_, _, ok, _ = byAddr.Next()
	require.False(t, ok, "it may be of that namespace")

	b.status = registry.Disabled
	n.refresh(a)
	n.refresh(b)
	b.status = registry.Enabled
	n.refresh(b)
	n.is(a, Active, pool.ReasonReady)
	n.is(b, Inactive, pool.ReasonNotReady)
	require.True(t, n.row(a).Listed, "a refresh says nothing of a pool that nobody can read")

	n.do(NamespaceSynced{
		Namespace: own, Services: []pool.Service{service("s", x1).Service},
		Slices: []pool.Slice{slice("x", "s", 2, notReady("u1"), ready("u2")).Slice},
	})
	require.False(t, n.s.stale())
	n.is(a, Inactive, pool.ReasonNotReady)
	n.is(b, Active, pool.ReasonReady)
	_, _, ok, _ = w.Next()
	require.True(t, ok)
	n.do(NamespaceUnavailable{Namespace: own})
	n.is(a, Inactive, pool.ReasonNotReady)
	require.False(t, n.s.stale(), "after the first sync nothing changes")
}

// Nobody is shown what is not concluded, whatever is in the store.
func TestStoredWithoutState(t *testing.T) {
	n := newNSP(t)
	a := target(x1, 1)
	n.register(a)
	n.book.remember(map[uint64]registry.Memory{1: {PodUID: "u1", PodName: own + "/pod-u1", Listed: true}})
	n.start()
	n.do(NamespaceUnavailable{Namespace: own}, TrenchConfigured{Trench: "t1"})
	n.is(a, Inactive, ReasonLeft)
}

func TestNamespaceDropped(t *testing.T) {
	n := running(t)
	a := target(x1, 1)
	n.register(a)
	n.do(service("s", x1), slice("x", "s", 1, ready("u1")))
	n.start()
	n.do(NamespaceUnavailable{Namespace: own}, TrenchConfigured{Trench: "t1"})
	w := n.assignments(w1)
	n.is(a, Active, pool.ReasonReady)
	n.do(NamespaceDropped{own})
	n.is(a, Inactive, ReasonLeft)
	v, _, ok, _ := w.Next()
	require.True(t, ok)
	require.False(t, v.Known)
}
