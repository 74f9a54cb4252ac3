package engine

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/pkg/pool"
	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// A namespace that is read again replaces all that was known of it: what was deleted while nobody looked is gone. // D10
func TestSyncReplacesWhatWasKnown(t *testing.T) {
	one, two := service("one", x1), service("two", x2)
	x, y := slice("x", "one", 1, ready("u1")), slice("y", "two", 1, ready("u2"))
	for name, now := range map[string]NamespaceSynced{
		"without the Service": {Namespace: own, Services: []pool.Service{two.Service}, Slices: []pool.Slice{x.Slice, y.Slice}},
		"without the slice":   {Namespace: own, Services: []pool.Service{one.Service, two.Service}, Slices: []pool.Slice{y.Slice}},
		"without both":        {Namespace: own, Services: []pool.Service{two.Service}, Slices: []pool.Slice{y.Slice}},
	} {
		t.Run(name, func(t *testing.T) {
			n := running(t)
			a, b := target(x1, 1), target(x2, 2)
			n.register(a)
			n.register(b)
			n.do(one, two, x, y)
			n.is(a, Active, pool.ReasonReady)
			require.Equal(t, 1, n.do(now).rows, "the other stream is untouched")
			n.is(a, Inactive, ReasonLeft)
			n.is(b, Active, pool.ReasonReady)
			require.Zero(t, n.do(now).rows, "it was read once more, and says the same")
		})
	}
}

// What is known of a namespace goes when it is no longer watched, and nothing of it comes back by itself.
func TestDroppedNamespaceIsForgotten(t *testing.T) {
	n := running(t, func(c *Config) { c.Grants = pool.NewGrants([]pool.Grant{{Namespace: "app", Trench: "t1"}}) })
	svc, x := service("s", x1), slice("x", "s", 1, ready("u1"))
	svc.Service.Namespace, svc.Service.Labels[pool.LabelNamespace], x.Slice.Namespace = "app", own, "app"
	a := target(x1, 1)
	n.register(a)
	n.do(NamespaceSynced{Namespace: "app"}, svc, x)
	n.is(a, Active, pool.ReasonReady)
	n.do(NamespaceDropped{"app"})
	n.is(a, Inactive, ReasonLeft)
	require.Nil(t, n.pools[svc.Service.Ref])
	n.do(NamespaceSynced{Namespace: "app", Services: []pool.Service{svc.Service}})
	n.is(a, Inactive, ReasonLeft)
	n.do(x)
	n.is(a, Active, pool.ReasonReady)
}

// Of several watches of one pod, the latest that knows the owners says who they are, and one that knows none says nothing of them.
func TestLatestReportOfOwnersCounts(t *testing.T) {
	w := Workload{Namespace: own, Pod: "pod-u1"}
	says := func(id uint64, knows bool, app ...stream.Key) reported {
		return reported{id: id, workload: w, report: &Report{Proven: true, HasOwners: knows, Application: app}}
	}
	for name, tc := range map[string]struct {
		reports []Event
		state   State
	}{
		"the application, then not":             {[]Event{says(1, true, x1), says(2, true)}, Inactive},
		"not, then the application":             {[]Event{says(1, true), says(2, true, x1)}, Active},
		"the later watch had reported before":   {[]Event{says(2, true), says(1, true, x1)}, Inactive},
		"the later watch does not know":         {[]Event{says(1, true, x1), says(2, false)}, Active},
		"nor does its list count":               {[]Event{says(1, true), says(2, false, x1)}, Inactive},
		"nobody knows, and nobody called since": {[]Event{says(1, false, x1)}, Inactive},
	} {
		t.Run(name, func(t *testing.T) {
			for range 10 { // claims are kept in maps
				n := running(t)
				a := target(x1, 1)
				n.register(a)
				n.do(service("s", x1), slice("x", "s", 1, ready("u1")))
				n.do(tc.reports...)
				n.do(slice("x", "s", 2, notReady("u2")), slice("y", "s", 3, ready("u1")))
				n.do(sliceGone("y"))
				n.do(tc.reports...)
				require.Equal(t, tc.state, n.row(a).State)
			}
		})
	}
}

// A proof of one namespace says nothing of a pod of another one that bears the address.
func TestAccountIsOfItsNamespace(t *testing.T) {
	grants := pool.NewGrants([]pool.Grant{{Namespace: "app", Accounts: []string{"web"}, Trench: "t1"}})
	svc, x := service("s", x1), slice("x", "s", 1, ready("u1"))
	svc.Service.Namespace, svc.Service.Labels[pool.LabelNamespace], x.Slice.Namespace = "app", own, "app"
	n := running(t, func(c *Config) { c.Grants = grants })
	n.do(NamespaceSynced{Namespace: "app"}, svc, x)
	permitted := func() bool { return n.s.table.Pool(svc.Service.Ref).Counts.Withheld == 0 }
	for _, w := range []Workload{{Addr: addr("10.0.0.1")}, {Addr: addr("10.0.0.9")}, {Namespace: "app", Pod: "nobody"}} {
		n.do(identified{workload: w, namespace: "zoo", account: "web"})
		require.False(t, permitted(), w)
	}
	n.do(identified{workload: Workload{Addr: addr("10.0.0.1")}, namespace: "app", account: "web"})
	require.True(t, permitted())
}

// Pods come and go by the thousand, and each proves what it is: those that are members are remembered, the others go.
func TestProofsOfStrangersAreNotKept(t *testing.T) {
	n := running(t, func(c *Config) {
		c.Grants = pool.NewGrants([]pool.Grant{{Namespace: own, Externals: []string{"none"}, Trench: "t1"}})
	})
	n.do(service("s", x1), slice("x", "s", 1, ready("u1")))
	prove := func(uid string) {
		n.s.apply(identified{workload: Workload{Namespace: own, PodUID: uid}, namespace: own, account: "web"})
	}
	prove("u1")
	for i := range 3 * maxAccounts {
		prove(fmt.Sprint("stranger-", i))
		require.LessOrEqual(t, len(n.s.accounts), maxAccounts+2)
	}
	require.Equal(t, "web", n.s.account(registry.Memory{PodUID: "u1", PodName: own + "/pod-u1"}))
}

// The Service's ports are held against the flows of its stream, as soon as these are known and whenever they change.
func TestPortsAreHeldAgainstFlows(t *testing.T) {
	n := running(t)
	svc := service("s", x1)
	svc.Service.Ports = []pool.Port{{Protocol: "TCP", Number: 80}, {Protocol: "UDP", Number: 53}}
	n.do(svc, service("other", key("t2", "c1", "x1")))
	ref := svc.Service.Ref
	flows := func(of map[stream.Key][]pool.Flow) {
		clear(n.pools)
		n.do(TrenchConfigured{Trench: "t1", Flows: of})
	}
	require.False(t, n.pools[ref].Unconfigured, "not known yet")
	flows(map[stream.Key][]pool.Flow{x2: nil})
	require.True(t, n.pools[ref].Unconfigured)
	require.Len(t, n.pools, 1, "what is of another trench is not looked at")
	flows(map[stream.Key][]pool.Flow{x1: {{Name: "f", Protocols: []string{"TCP"}, Ports: []string{"80-90"}}}})
	require.False(t, n.pools[ref].Unconfigured)
	require.Equal(t, []string{"UDP 53"}, n.pools[ref].Unmet)
	same := map[stream.Key][]pool.Flow{x1: {{Name: "f", Protocols: []string{"TCP"}, Ports: []string{"80-90"}}}}
	flows(same)
	require.Empty(t, n.pools, "nothing changed")
	flows(map[stream.Key][]pool.Flow{x1: {{Name: "all"}}})
	require.Empty(t, n.pools[ref].Unmet)
	flows(nil)
	require.False(t, n.pools[ref].Unconfigured, "not known any more")

	svc.Service.Labels[pool.LabelConduit] = ""
	n.do(svc)
	flows(same)
	st := n.s.poolStatus(ref)
	require.False(t, st.Unconfigured, "a Service that is not accepted has another fault")
}

// An ExternalTarget confirms its addresses while it is there: set, deleted, or in what a namespace was found to have. // D10
func TestExternalTargetsFollowTheirObjects(t *testing.T) {
	n := running(t, func(c *Config) {
		c.Grants = pool.NewGrants([]pool.Grant{{Namespace: own, Externals: []string{"vm"}, Trench: "t1"}})
	})
	svc, x := service("s", x1), slice("x", "s", 1, ready("u1"))
	x.Slice.Endpoints[0].Target = &pool.TargetRef{Kind: "ExternalTarget", Name: "vm", UID: "uid-vm"}
	vm := pool.Target{Ref: pool.Ref{Namespace: own, Name: "vm"}, UID: "uid-vm", Confirmed: []netip.Addr{addr("10.0.0.1")}}
	all := NamespaceSynced{Namespace: own, Services: []pool.Service{svc.Service}, Slices: []pool.Slice{x.Slice}}
	with := all
	with.Targets = []pool.Target{vm}
	n.do(svc, x)
	for i, step := range []struct {
		event   Event
		members int
	}{{TargetSet{vm}, 1}, {TargetGone{vm.Ref}, 0}, {with, 1}, {all, 0}, {TargetSet{vm}, 1}} {
		n.do(step.event)
		require.Equal(t, step.members, n.s.table.Pool(svc.Service.Ref).Counts.Members, "step %d", i)
	}
}
