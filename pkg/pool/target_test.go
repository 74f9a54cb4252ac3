package pool

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// targetSlice lists addresses of an ExternalTarget.
func targetSlice(name string, version uint64, family, target, uid string, addrs ...string) Slice {
	s := Slice{Namespace: "app", Name: name, Service: "web", Version: version, AddressType: family}
	for _, a := range addrs {
		s.Endpoints = append(s.Endpoints, Endpoint{Addresses: []string{a}, Target: &TargetRef{Kind: "ExternalTarget", Namespace: "app", Name: target, UID: uid}})
	}
	return s
}

func confirmed(name, uid string, addrs ...string) Target {
	t := Target{Ref: Ref{"app", name}, UID: uid}
	for _, a := range addrs {
		t.Confirmed = append(t.Confirmed, netip.MustParseAddr(a))
	}
	return t
}

func targetService() Service {
	return Service{Ref: Ref{"app", "web"}, UID: "s", HasSelector: true, Labels: map[string]string{LabelMarker: MarkerValue,
		LabelNamespace: "nsp", LabelTrench: "t1", LabelConduit: "c1", LabelStream: "x1"}}
}

// targetTable has one pool in namespace app, which the grant is for.
func targetTable(externals ...string) *Table {
	table := New(Config{Namespace: "nsp", Grants: NewGrants([]Grant{{Namespace: "app", Trench: "t1", Externals: externals}})})
	table.SetService(targetService())
	return table
}

func targetMembers(table *Table) (all []string) {
	table.Flush()
	for p := range table.members {
		m := table.members[p].published
		all = append(all, fmt.Sprintf("%s %v %d", m.Name, m.Addrs, len(m.Streams)))
	}
	return all
}

var vmMember = []string{"vm [192.0.2.1] 1"}

func TestOnlyWhatTheStatusConfirms(t *testing.T) {
	table := targetTable("vm")
	table.SetSlice(targetSlice("a", 1, AddressTypeIPv4, "vm", "u", "192.0.2.1", "192.0.2.66"))
	require.Empty(t, targetMembers(table)) // no such object is known
	table.SetTarget(confirmed("vm", "u", "192.0.2.1"))
	require.Equal(t, vmMember, targetMembers(table))
	require.Contains(t, fmt.Sprint(table.pools[Ref{"app", "web"}].published.Problems), "does not confirm 192.0.2.66")
	table.SetTarget(confirmed("vm", "u", "192.0.2.66"))
	require.Equal(t, []string{"vm [192.0.2.66] 1"}, targetMembers(table))
	table.SetTarget(confirmed("vm", "another", "192.0.2.1", "192.0.2.66")) // made anew: the slices are of the one before
	require.Empty(t, targetMembers(table))
	table.SetTarget(confirmed("vm", "u", "192.0.2.1"))
	require.Equal(t, vmMember, targetMembers(table))
	table.DeleteTarget(Ref{"app", "vm"})
	require.Empty(t, targetMembers(table))
}

func TestOnlyTargetsThatTheGrantNames(t *testing.T) {
	for _, test := range []struct {
		externals []string
		in        bool
	}{{[]string{"vm"}, true}, {[]string{Any}, true}, {[]string{"other"}, false}, {nil, false}} {
		table := targetTable(test.externals...)
		table.SetTarget(confirmed("vm", "u", "192.0.2.1"))
		table.SetSlice(targetSlice("a", 1, AddressTypeIPv4, "vm", "u", "192.0.2.1"))
		require.Equal(t, test.in, len(targetMembers(table)) == 1, test.externals)
	}
	table := targetTable("vm")
	table.SetTarget(confirmed("vm", "u", "192.0.2.1"))
	table.SetSlice(targetSlice("a", 1, AddressTypeIPv4, "vm", "u", "192.0.2.1"))
	require.Equal(t, vmMember, targetMembers(table))
	table.SetGrants(NewGrants([]Grant{{Namespace: "app", Trench: "t1", Externals: []string{"db"}}}))
	require.Empty(t, targetMembers(table))
	table.SetGrants(NewGrants([]Grant{{Namespace: "app", Trench: "t1", Externals: []string{"db", "vm"}}}))
	require.Equal(t, vmMember, targetMembers(table))
}

// TestATargetIsNoPodByAnotherName is a tenant who writes a slice in which the target's UID is a pod's.
func TestATargetIsNoPodByAnotherName(t *testing.T) {
	table := targetTable("vm")
	table.SetTarget(confirmed("vm", "u", "192.0.2.1"))
	forged := targetSlice("a", 9, AddressTypeIPv4, "vm", "u", "192.0.2.66")
	forged.Endpoints[0].Target.Kind = "Pod"
	table.SetSlice(forged)
	table.Flush()
	p := table.pools[Ref{"app", "web"}].published
	require.Equal(t, 1, p.Counts.Withheld)
	require.Zero(t, p.Counts.Members-p.Counts.Withheld)
}

func TestATargetOfManySlicesIsOneMember(t *testing.T) { // P2
	table := targetTable("vm")
	table.SetTarget(confirmed("vm", "u", "192.0.2.1", "2001:db8::1"))
	six := targetSlice("six", 2, AddressTypeIPv6, "vm", "u", "2001:db8::1")
	six.Endpoints[0].Ready = new(false)
	table.SetSlice(targetSlice("four", 1, AddressTypeIPv4, "vm", "u", "192.0.2.1"))
	table.SetSlice(six) // newer, and not ready: it says nothing of the other address
	require.Equal(t, []string{"vm [192.0.2.1 2001:db8::1] 1"}, targetMembers(table))
	require.Equal(t, 1, table.pools[Ref{"app", "web"}].published.Counts.Ready)
	table.DeleteSlice("app", "four")
	require.Equal(t, []string{"vm [2001:db8::1] 1"}, targetMembers(table))
	require.Zero(t, table.pools[Ref{"app", "web"}].published.Counts.Ready)
}

// Of a target that is in several slices each speaks for its own address, whichever of them is the newest.
func TestATargetIsReadyWhereOneSliceSaysSo(t *testing.T) {
	for name, versions := range map[string][2]uint64{"the ready one is older": {1, 2}, "the ready one is newer": {2, 1}} {
		t.Run(name, func(t *testing.T) {
			good, bad := targetSlice("a", versions[0], AddressTypeIPv4, "vm", "u", "192.0.2.1"),
				targetSlice("b", versions[1], AddressTypeIPv4, "vm", "u", "192.0.2.2")
			bad.Endpoints[0].Ready = new(false)
			good.Changed, bad.Changed = at(int(versions[0])), at(int(versions[1]))
			for range 20 { // slices are kept in maps
				table := targetTable("vm")
				table.SetTarget(confirmed("vm", "u", "192.0.2.1", "192.0.2.2"))
				table.SetSlice(good)
				table.SetSlice(bad)
				require.Len(t, targetMembers(table), 1)
				answer := table.Member(MemberKey{Namespace: "app", UID: "u"}).Streams[streamOf("t1", "x1")]
				require.Equal(t, Active, answer.State)
				require.Equal(t, at(2), answer.Caused, "the newest word")
			}
		})
	}
}

// A namespace that is no longer watched takes its targets along: who returns is to be confirmed anew.
func TestTargetsGoWithTheirNamespace(t *testing.T) {
	table := targetTable("vm")
	slice := targetSlice("a", 1, AddressTypeIPv4, "vm", "u", "192.0.2.1")
	table.SetTarget(confirmed("vm", "u", "192.0.2.1"))
	table.SetSlice(slice)
	require.Equal(t, vmMember, targetMembers(table))
	table.DropNamespace("app")
	require.Empty(t, targetMembers(table))
	table.SetService(targetService())
	table.SetSlice(slice)
	require.Empty(t, targetMembers(table))
}

// A reference that leads out of the slice's namespace is refused, also where such a target is known there.
func TestATargetIsOfItsNamespace(t *testing.T) {
	table := targetTable(Any)
	table.SetTarget(confirmed("vm", "u", "192.0.2.1"))
	slice := targetSlice("a", 1, AddressTypeIPv4, "vm", "u", "192.0.2.1")
	slice.Endpoints[0].Target.Namespace = "zoo"
	table.SetSlice(slice)
	require.Empty(t, targetMembers(table))
	require.Contains(t, table.Pool(Ref{"app", "web"}).Problems[0], `targetRef is in namespace "zoo"`)
	slice.Endpoints[0].Target.Namespace = ""
	table.SetSlice(slice)
	require.Equal(t, vmMember, targetMembers(table))
}

// TestTargetsInAnyOrder compares each order of events, with flushes in between, with one flush of the result.
func TestTargetsInAnyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		flushed, final := targetTable("vm", "db"), targetTable("vm", "db")
		slices, targets := map[string]Slice{}, map[string]Target{}
		addr := rapid.SampledFrom([]string{"192.0.2.1", "192.0.2.2", "192.0.2.3"})
		for version := range rapid.IntRange(1, 12).Draw(t, "steps") {
			target := rapid.SampledFrom([]string{"vm", "db", "web"}).Draw(t, "target")
			addrs := rapid.SliceOfNDistinct(addr, 0, 3, rapid.ID[string]).Draw(t, "addrs")
			if rapid.Bool().Draw(t, "slice") {
				name := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "name")
				slices[name] = targetSlice(name, uint64(version+1), AddressTypeIPv4, target, target, addrs...)
				flushed.SetSlice(slices[name])
			} else {
				targets[target] = confirmed(target, target, addrs...)
				flushed.SetTarget(targets[target])
			}
			flushed.Flush()
		}
		for _, s := range slices {
			final.SetSlice(s)
		}
		for _, x := range targets {
			final.SetTarget(x)
		}
		require.ElementsMatch(t, targetMembers(final), targetMembers(flushed))
	})
}
