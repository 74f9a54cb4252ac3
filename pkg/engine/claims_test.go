package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/pkg/pool"
	"github.com/nordix/meridio-nsp/pkg/registry"
)

// at is the registration with another source address of its call.
func (a asked) at(peer string) asked {
	a.caller = registry.Caller{}
	if peer != "" {
		a.caller.Peer = addr(peer)
	}
	return a
}

func six(s SliceSet) SliceSet {
	s.Slice.AddressType = pool.AddressTypeIPv6
	return s
}

func onHost(uid string) pod { return ready(uid).at("10.0.0.100") }

// whose is a registration, what is known of pods, and whose it is.
type whose struct {
	slices []SliceSet
	peer   string
	claims []reported
	by     Binding
	uid    string
}

// waysIn are the ways in which an unmodified TAPA may reach the NSP, and what its sidecar claims.
func waysIn() map[string]whose {
	return map[string]whose{
		"behind SNAT, the peer is nobody's": {
			[]SliceSet{slice("x", "s", 1, ready("u1"), ready("u2"))}, "192.0.2.1",
			[]reported{claimOf(1, w1, "10.0.0.1", "172.16.0.7")}, BoundByClaim, "u1",
		},
		"behind SNAT, the peer is another member's": {
			[]SliceSet{slice("x", "s", 1, ready("u1"), ready("u2"))}, "10.0.0.2",
			[]reported{claimOf(1, w1, "172.16.0.7"), claimOf(2, w2, "172.16.0.8")}, BoundByClaim, "u1",
		},
		"behind SNAT without a sidecar": {
			[]SliceSet{slice("x", "s", 1, ready("u1"))}, "192.0.2.1", nil, Unbound, "",
		},
		"over the family that no slice has": {
			[]SliceSet{slice("x", "s", 1, ready("u1"), ready("u2"))}, "fd00::1",
			[]reported{claimOf(1, w1, "10.0.0.1", "fd00::1", "172.16.0.7")}, BoundByClaim, "u1",
		},
		"over the other family of a pod with both": { // P2
			[]SliceSet{slice("x", "s", 1, ready("u1")), six(slice("y", "s", 1, ready("u1").at("fd00::1")))}, "fd00::1",
			nil, BoundByPeer, "u1",
		},
		"hostNetwork, one sidecar": { // D4
			[]SliceSet{slice("x", "s", 1, onHost("u1"), onHost("u2"))}, "10.0.0.100",
			[]reported{claimOf(1, w1, "10.0.0.100", "172.16.0.7")}, BoundByClaim, "u1",
		},
		"hostNetwork, two sidecars see the same addresses, and the peer is both": { // D4
			[]SliceSet{slice("x", "s", 1, onHost("u1"), onHost("u2"))}, "10.0.0.100",
			[]reported{claimOf(1, w1, "10.0.0.100", "172.16.0.7"), claimOf(2, w2, "10.0.0.100", "172.16.0.7")}, Unbound, "",
		},
		"contested, and the peer decides": {
			[]SliceSet{slice("x", "s", 1, ready("u1"), ready("u2"))}, "10.0.0.2",
			[]reported{claimOf(1, w1, "172.16.0.7"), claimOf(2, w2, "172.16.0.7")}, BoundByPeer, "u2",
		},
		"two sidecars of one pod agree": {
			[]SliceSet{slice("x", "s", 1, ready("u1"))}, "192.0.2.1",
			[]reported{claimOf(1, w1, "172.16.0.7"), claimOf(2, Workload{Addr: addr("10.0.0.1")}, "172.16.0.7")}, BoundByClaim, "u1",
		},
		"the sidecar of a pod that is no member has no say": {
			[]SliceSet{slice("x", "s", 1, ready("u2"))}, "10.0.0.2", []reported{claimOf(1, w1, "172.16.0.7")}, BoundByPeer, "u2",
		},
	}
}

func TestWhoseRegistration(t *testing.T) {
	for name, tc := range waysIn() {
		t.Run(name, func(t *testing.T) {
			n := running(t)
			a := target(x1, 7).at(tc.peer)
			n.do(service("s", x1))
			for _, s := range tc.slices {
				n.do(s)
			}
			n.register(a)
			for _, c := range tc.claims {
				n.do(c)
			}
			n.bound(a, tc.by, tc.uid)
			n.refresh(a)
			n.bound(a, tc.by, tc.uid)
			strangers := n.pools[pool.Ref{Namespace: own, Name: "s"}].Strangers
			if tc.uid == "" {
				require.Equal(t, Names{First: []string{"172.16.0.7/24"}, Total: 1}, strangers)
			} else {
				require.Zero(t, strangers.Total)
			}
		})
	}
}

// An address that is given to another pod takes no registration with it, primary or secondary.
func TestAddressReuse(t *testing.T) {
	for name, claimed := range map[string]bool{"bound by a claim": true, "bound by the peer": false} {
		t.Run(name, func(t *testing.T) {
			n := running(t)
			a := target(x1, 1)
			n.do(service("s", x1), slice("x", "s", 1, ready("u1")))
			if claimed {
				n.do(claimOf(1, w1, "10.0.0.1", "172.16.0.1"))
			}
			n.register(a)
			n.is(a, Active, pool.ReasonReady)
			n.do(slice("x", "s", 2)) // u1 is gone, its registration still has a lease
			n.is(a, Inactive, ReasonLeft)
			b := target(x1, 2).at("10.0.0.1")
			n.do(slice("x", "s", 3, ready("u2").at("10.0.0.1")), claimOf(2, w2, "10.0.0.1", "172.16.0.2"))
			n.register(b)
			n.bound(b, BoundByClaim, "u2")
			n.bound(a, Unbound, "u1")
			n.is(a, Inactive, ReasonLeft)
			n.refresh(a) // somebody at that address says that it is his
			n.bound(a, BoundByPeer, "u2")
		})
	}
}
