package pool

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/pkg/stream"
)

var east = Component{"east", "app", "web"}

func from(t Target, c Component) Target {
	t.Origin = c
	return t
}

// clusterTable is a targetTable of a cluster with a name, in which a pod is a member too.
func clusterTable(cluster string) *Table {
	table := targetTable(Any)
	table.cfg.Cluster = cluster
	table.SetGrants(NewGrants([]Grant{{Namespace: "app", Trench: "t1"}, {Namespace: "app", Trench: "t1", Externals: []string{Any}}}))
	table.SetSlice(Slice{Namespace: "app", Name: "pods", Service: "web", AddressType: AddressTypeIPv4, Endpoints: []Endpoint{
		{Addresses: []string{"10.0.0.1"}, Target: &TargetRef{Kind: "Pod", Name: "web-0", UID: "p"}}}})
	return table
}

// components are those of each member in the stream, by its name, and as its pool sees it.
func components(t *testing.T, table *Table) map[string]string {
	table.Flush()
	all := map[string]string{}
	for m := range table.Members() {
		for _, a := range m.Streams {
			all[m.Name] = fmt.Sprint(a.Components)
		}
	}
	for _, m := range table.PoolMembers(Ref{"app", "web"}) {
		if m.Component != (Component{}) {
			require.Equal(t, all[m.Name], fmt.Sprint([]Component{m.Component}))
		}
	}
	return all
}

func TestComponents(t *testing.T) {
	table := clusterTable("west")
	table.SetTarget(confirmed("vm", "u", "192.0.2.1"))
	table.SetSlice(targetSlice("a", 1, AddressTypeIPv4, "vm", "u", "192.0.2.1"))
	table.SetTarget(from(confirmed("far", "f", "192.0.2.2"), east))
	table.SetSlice(targetSlice("b", 1, AddressTypeIPv4, "far", "f", "192.0.2.2"))
	// The same namespace and Service, and two clusters.
	require.Equal(t, map[string]string{"web-0": "[west/app/web]", "vm": "[west/app/web]", "far": "[east/app/web]"}, components(t, table))

	table.SetTarget(from(confirmed("far", "f", "192.0.2.2"), Component{"north", "app", "web"}))
	require.Equal(t, "[north/app/web]", components(t, table)["far"], "the slices are as before")

	second := Service{Ref: Ref{"app", "web2"}, UID: "s2", HasSelector: true, Labels: table.pools[Ref{"app", "web"}].service.Labels}
	table.SetService(second)
	for name, target := range map[string][2]string{"c": {"vm", "u"}, "d": {"far", "f"}} {
		again := targetSlice(name, 1, AddressTypeIPv4, target[0], target[1], map[string]string{"vm": "192.0.2.1", "far": "192.0.2.2"}[target[0]])
		again.Service = "web2"
		table.SetSlice(again)
	}
	table.Flush()
	k := stream.Key{Namespace: "nsp", Trench: "t1", Conduit: "c1", Name: "x1"}
	of := func(uid string) []Component {
		return table.Member(MemberKey{Namespace: "app", UID: uid}).Streams[k].Components
	}
	require.Equal(t, []Component{{"west", "app", "web"}, {"west", "app", "web2"}}, of("u"))
	require.Equal(t, []Component{{"north", "app", "web"}}, of("f"), "however many Services list it here")
}

// A cluster without a name says nothing of any.
func TestNoClusterNoComponents(t *testing.T) {
	table := clusterTable("")
	table.SetTarget(from(confirmed("far", "f", "192.0.2.2"), east))
	table.SetSlice(targetSlice("b", 1, AddressTypeIPv4, "far", "f", "192.0.2.2"))
	require.Equal(t, map[string]string{"web-0": "[]", "far": "[]"}, components(t, table))
}

// Nobody passes what is elsewhere off as a Service of this cluster.
func TestAnotherClusterIsNotThisOne(t *testing.T) {
	table := clusterTable("west")
	table.SetTarget(from(confirmed("far", "f", "192.0.2.2"), Component{"west", "app", "web"}))
	table.SetSlice(targetSlice("b", 1, AddressTypeIPv4, "far", "f", "192.0.2.2"))
	require.Equal(t, map[string]string{"web-0": "[west/app/web]"}, components(t, table))
	require.Contains(t, fmt.Sprint(table.Pool(Ref{"app", "web"}).Problems), `ExternalTarget "far" names another cluster "west"`)
}
