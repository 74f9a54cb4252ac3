package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/pkg/pool"
)

// A grant for a ServiceAccount counts a pod once that is proven, whatever comes first, and after a restart as before.
func TestGrantForAServiceAccount(t *testing.T) {
	grants := pool.NewGrants([]pool.Grant{{Namespace: "app", Accounts: []string{"web"}, Trench: "t1"}})
	svc, sl := service("s", x1), slice("x", "s", 1, ready("u1"))
	svc.Service.Namespace, sl.Slice.Namespace = "app", "app"
	svc.Service.Labels[pool.LabelNamespace] = own
	w := Workload{Namespace: "app", Pod: "pod-u1", PodUID: "u1"}
	proof := identified{workload: w, namespace: "app", account: "web"}
	for name, events := range map[string][]Event{
		"proof first":  {proof, GrantsChanged{grants}, svc, sl},
		"proof last":   {svc, sl, GrantsChanged{grants}, proof},
		"grant last":   {sl, proof, svc, GrantsChanged{grants}},
		"by its name":  {svc, sl, GrantsChanged{grants}, identified{workload: Workload{Namespace: "app", Pod: "pod-u1"}, namespace: "app", account: "web"}},
		"other before": {svc, sl, GrantsChanged{grants}, identified{workload: w, namespace: "app", account: "db"}, proof},
	} {
		t.Run(name, func(t *testing.T) {
			n := running(t)
			watch := n.assignments(w)
			for _, ev := range events {
				n.do(ev)
			}
			v, _, ok, _ := watch.Next()
			require.True(t, ok)
			require.Equal(t, []string{"x1"}, streamsOf(v))
			a := target(x1, 1)
			n.register(a)
			n.is(a, Active, pool.ReasonReady)

			n.start(func(c *Config) { c.Grants = grants })
			n.do(TrenchConfigured{Trench: "t1"}, NamespaceSynced{Namespace: own})
			n.do(NamespaceSynced{Namespace: "app", Services: []pool.Service{svc.Service}, Slices: []pool.Slice{sl.Slice}})
			n.is(a, Active, pool.ReasonReady)
			n.do(GrantsChanged{nil})
			n.is(a, Inactive, ReasonLeft)
		})
	}
}

// Nothing is answered before the grants are known.
func TestGrantsPending(t *testing.T) {
	n := newNSP(t, func(c *Config) { c.GrantsPending = true })
	w := n.assignments(w1)
	n.do(NamespaceSynced{Namespace: own}, TrenchConfigured{Trench: "t1"})
	_, _, ok, _ := w.Next()
	require.False(t, ok)
	n.do(GrantsChanged{nil})
	_, _, ok, _ = w.Next()
	require.True(t, ok)
}
