package pool

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/pkg/stream"
)

func service(name, trench, streamName string) Service {
	return Service{
		Ref: Ref{own, name}, UID: "uid-" + name, Created: at(1), Type: "ClusterIP", HasSelector: true,
		Labels: map[string]string{LabelMarker: MarkerValue, LabelTrench: trench, LabelConduit: "c1", LabelStream: streamName},
	}
}

func slice4(service, name string, version uint64, endpoints ...Endpoint) Slice {
	return Slice{
		Namespace: own, Name: name, Service: service, OwnerUID: "uid-" + service, Version: version,
		AddressType: AddressTypeIPv4, Endpoints: endpoints, Changed: at(int(version)),
	}
}

func slice6(service, name string, version uint64, endpoints ...Endpoint) Slice {
	x := slice4(service, name, version, endpoints...)
	x.AddressType = AddressTypeIPv6
	return x
}

// pod is an endpoint as the endpointslice controller writes it.
func pod(uid, addr string, isReady bool) Endpoint {
	return Endpoint{
		Addresses: []string{addr}, Ready: &isReady, Serving: &isReady, Terminating: new(false),
		Target: &TargetRef{"Pod", own, "pod-" + uid, uid},
	}
}

func leaving(uid, addr string, serving bool) Endpoint {
	e := pod(uid, addr, false)
	e.Serving, e.Terminating = &serving, new(true)
	return e
}

func podOf(uid string) MemberKey { return MemberKey{Namespace: own, UID: uid} }

func streamOf(trench, name string) stream.Key {
	return stream.Key{Namespace: own, Trench: trench, Conduit: "c1", Name: name}
}

var x1 = streamOf("t1", "x1")

func table(services ...Service) *Table {
	t := New(Config{Namespace: own})
	for _, s := range services {
		t.SetService(s)
	}
	return t
}

// put sets the slices and flushes.
func put(t *Table, all ...Slice) Delta {
	for _, x := range all {
		t.SetSlice(x)
	}
	return t.Flush()
}

func requireAnswer(t *testing.T, table *Table, uid string, k stream.Key, state State, reason string) {
	t.Helper()
	m := table.Member(podOf(uid))
	require.NotNil(t, m, uid)
	require.Contains(t, m.Streams, k)
	require.Equal(t, state, m.Streams[k].State, uid)
	require.Equal(t, reason, m.Streams[k].Reason, uid)
}

func TestMemberMovesBetweenSlices(t *testing.T) { // D1
	tb := table(service("s", "t1", "x1"))
	put(tb, slice4("s", "x", 1, pod("u1", "10.0.0.1", true), pod("u2", "10.0.0.2", true)))
	d := put(tb, slice4("s", "y", 2, pod("u1", "10.0.0.1", false)))
	require.Len(t, d.Members, 1)
	requireAnswer(t, tb, "u1", x1, Inactive, ReasonNotReady)
	require.Equal(t, at(2), tb.Member(podOf("u1")).Streams[x1].Caused)

	d = put(tb, slice4("s", "x", 3, pod("u2", "10.0.0.2", true)))
	require.Empty(t, d.Members, "the newer slice went on saying the same")
	tb.SetSlice(slice4("s", "z", 4, pod("u2", "10.0.0.2", true)))
	tb.DeleteSlice(own, "x")
	require.Empty(t, tb.Flush().Members)
	tb.DeleteSlice(own, "y")
	require.Equal(t, map[MemberKey]*Member{podOf("u1"): nil}, tb.Flush().Members)
	require.Equal(t, 1, tb.Pool(Ref{own, "s"}).Counts.Members)
}

func TestOlderSliceIsWrittenAgain(t *testing.T) { // D1
	tb := table(service("s", "t1", "x1"))
	put(tb, slice4("s", "x", 9, pod("u1", "10.0.0.1", true)), slice4("s", "y", 10, pod("u1", "10.0.0.1", false)))
	requireAnswer(t, tb, "u1", x1, Inactive, ReasonNotReady)
	put(tb, slice4("s", "x", 11, pod("u1", "10.0.0.1", true)))
	requireAnswer(t, tb, "u1", x1, Active, ReasonReady)
}

func TestMemberListedTwiceInOneSlice(t *testing.T) { // D1
	tb := table(service("s", "t1", "x1"))
	strong, weak := pod("u1", "10.0.0.1", true), pod("u1", "10.0.0.2", false)
	put(tb, slice4("s", "x", 1, strong))
	put(tb, slice4("s", "x", 2, strong, weak))
	requireAnswer(t, tb, "u1", x1, Active, ReasonReady)
	require.Len(t, tb.Member(podOf("u1")).Addrs, 2)
	put(tb, slice4("s", "x", 3, weak))
	requireAnswer(t, tb, "u1", x1, Inactive, ReasonNotReady)
	require.Equal(t, 1, tb.Pool(Ref{own, "s"}).Counts.Members)
}

func TestStreamIsAssignedBeforeReady(t *testing.T) { // D2
	byReadiness := service("r", "t1", "x2")
	byReadiness.Annotations = map[string]string{AnnotationAssignment: "ready"}
	tb := table(service("s", "t1", "x1"), byReadiness)
	put(tb, slice4("s", "x", 1, pod("u1", "10.0.0.1", false)), slice4("r", "y", 2, pod("u1", "10.0.0.1", false)))
	m := tb.Member(podOf("u1"))
	require.True(t, m.Streams[x1].Assigned)
	require.False(t, m.Streams[streamOf("t1", "x2")].Assigned)
	put(tb, slice4("s", "x", 3, pod("u1", "10.0.0.1", true)), slice4("r", "y", 4, pod("u1", "10.0.0.1", true)))
	requireAnswer(t, tb, "u1", x1, Active, ReasonReady)
	require.True(t, tb.Member(podOf("u1")).Streams[streamOf("t1", "x2")].Assigned)
}

func TestNilConditionsThenAllTerminating(t *testing.T) { // D3
	tb := table(service("s", "t1", "x1"))
	plain := Endpoint{Addresses: []string{"10.0.0.1"}, Target: &TargetRef{"Pod", own, "p1", "u1"}}
	put(tb, slice4("s", "x", 1, plain))
	requireAnswer(t, tb, "u1", x1, Active, ReasonReady)
	put(tb, slice4("s", "x", 2, leaving("u1", "10.0.0.1", true), leaving("u2", "10.0.0.2", true)))
	requireAnswer(t, tb, "u1", x1, Active, ReasonServingTerminating)
	require.False(t, tb.Pool(Ref{own, "s"}).Panic)
	put(tb, slice4("s", "x", 3, leaving("u1", "10.0.0.1", false), leaving("u2", "10.0.0.2", true)))
	requireAnswer(t, tb, "u1", x1, Inactive, ReasonTerminating)
	requireAnswer(t, tb, "u2", x1, Active, ReasonServingTerminating)
	require.Equal(t, Counts{Members: 2, Draining: 1, Active: 1, Assigned: 2}, tb.Pool(Ref{own, "s"}).Counts)
}

func TestAddressSharedByPods(t *testing.T) { // D4
	tb := table(service("s", "t1", "x1"))
	put(tb, slice4("s", "x", 1, pod("u2", "10.0.0.1", true), pod("u1", "10.0.0.1", true)))
	found := tb.ByAddress(netip.MustParseAddr("10.0.0.1"))
	require.Equal(t, []*Member{tb.Member(podOf("u1")), tb.Member(podOf("u2"))}, found)
	require.Equal(t, []*Member{tb.Member(podOf("u1"))}, tb.ByName(own, "pod-u1"))
	require.Empty(t, tb.ByName("app", "pod-u1"))
}

func TestTwoServicesOfOneStream(t *testing.T) { // D5
	tb := table(service("a", "t1", "x1"), service("b", "t1", "x1"))
	put(tb, slice4("a", "x", 1, pod("u1", "10.0.0.1", false)), slice4("b", "y", 2, pod("u1", "10.0.0.1", true)))
	requireAnswer(t, tb, "u1", x1, Active, ReasonReady)
	require.Equal(t, []Ref{{own, "a"}, {own, "b"}}, tb.Member(podOf("u1")).Streams[x1].Services)
	tb.DeleteService(Ref{own, "b"})
	tb.Flush()
	requireAnswer(t, tb, "u1", x1, Inactive, ReasonNotReady)
	require.True(t, tb.Member(podOf("u1")).Streams[x1].Assigned)
	tb.DeleteService(Ref{own, "a"})
	require.Equal(t, Delta{map[MemberKey]*Member{podOf("u1"): nil}, map[Ref]*Pool{{own, "a"}: nil}}, tb.Flush())
}

func TestRelabelledInOneUpdate(t *testing.T) { // D6
	tb := table(service("s", "t1", "x1"))
	put(tb, slice4("s", "x", 1, pod("u1", "10.0.0.1", true)))
	tb.SetService(service("s", "t1", "x2"))
	d := tb.Flush()
	require.Len(t, d.Members, 1)
	require.Equal(t, []stream.Key{streamOf("t1", "x2")}, keysOf(d.Members[podOf("u1")]))
}

func keysOf(m *Member) []stream.Key {
	var all []stream.Key
	for k := range m.Streams {
		all = append(all, k)
	}
	return slices.SortedFunc(slices.Values(all), stream.Compare)
}

func TestDeletesThatNobodyKnows(t *testing.T) { // D10
	tb := table(service("s", "t1", "x1"))
	put(tb, slice4("s", "x", 1, pod("u1", "10.0.0.1", true)))
	tb.DeleteSlice(own, "never")
	tb.DeleteService(Ref{own, "never"})
	tb.DropNamespace("never")
	tb.DeleteSlice(own, "x")
	tb.DeleteSlice(own, "x")
	require.Equal(t, map[MemberKey]*Member{podOf("u1"): nil}, tb.Flush().Members)
	require.Empty(t, tb.Flush().Members)
	require.Nil(t, tb.Member(podOf("u1")))
}

func TestReadinessOfAnEqualAddress(t *testing.T) { // P1
	tb := table(service("s", "t1", "x1"))
	put(tb, slice4("s", "x", 1, pod("u1", "10.0.0.1", true), pod("u2", "10.0.0.2", true)))
	d := put(tb, slice4("s", "x", 2, pod("u1", "10.0.0.1", false), pod("u2", "10.0.0.2", true)))
	require.Len(t, d.Members, 1)
	require.Equal(t, Inactive, d.Members[podOf("u1")].Streams[x1].State)
	require.Equal(t, at(2), d.Members[podOf("u1")].Streams[x1].Caused)
	require.Equal(t, at(1), tb.Member(podOf("u2")).Streams[x1].Caused)
}

func TestTwoFamiliesAreOneMember(t *testing.T) { // P2
	tb := table(service("s", "t1", "x1"))
	put(tb, slice4("s", "x4", 1, pod("u1", "10.0.0.1", true)), slice6("s", "x6", 2, pod("u1", "fd00::1", true)))
	require.Equal(t, 1, tb.Pool(Ref{own, "s"}).Counts.Members)
	require.Equal(t, []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")}, tb.Member(podOf("u1")).Addrs)
	tb.DeleteSlice(own, "x6")
	d := tb.Flush()
	require.Equal(t, []netip.Addr{netip.MustParseAddr("10.0.0.1")}, d.Members[podOf("u1")].Addrs)
	require.Empty(t, d.Pools)
	require.Empty(t, tb.ByAddress(netip.MustParseAddr("fd00::1")))
	d = put(tb, slice4("s", "x4", 3, pod("u1", "10.0.0.7", true)))
	require.Equal(t, at(3), d.Members[podOf("u1")].Streams[x1].Caused, "the new address has a cause of its own")
}

func TestBadEndpointSpoilsNoOther(t *testing.T) { // P3
	good := pod("u1", "10.0.0.1", true)
	for name, tc := range map[string]struct {
		bad  Endpoint
		says string
	}{
		"no address":      {Endpoint{Target: good.Target}, "no address"},
		"no IP":           {pod("u2", "host", true), `"host" is no IP address`},
		"one of two":      {Endpoint{Addresses: []string{"10.0.0.3", "10.0.0"}, Target: &TargetRef{"Pod", own, "p", "u3"}}, "no IP address"},
		"zone":            {pod("u2", "fd00::1%eth0", true), "no IP address"},
		"other family":    {pod("u2", "fd00::1", true), "not of the slice's address type"},
		"mapped":          {pod("u2", "::ffff:10.0.0.2", true), "IPv4 address written as IPv6"},
		"loopback":        {pod("u2", "127.0.0.1", true), "loopback"},
		"kind":            {Endpoint{Addresses: []string{"10.0.0.2"}, Target: &TargetRef{"Node", own, "n", "u2"}}, `kind "Node"`},
		"other namespace": {Endpoint{Addresses: []string{"10.0.0.2"}, Target: &TargetRef{"Pod", "app", "p", "u2"}}, `namespace "app"`},
		"no UID":          {Endpoint{Addresses: []string{"10.0.0.2"}, Target: &TargetRef{"Pod", own, "p", ""}}, `"p" has no uid`},
		"not permitted":   {Endpoint{Addresses: []string{"10.0.0.2"}}, "no grant for members without a pod"},
	} {
		t.Run(name, func(t *testing.T) {
			tb := table(service("s", "t1", "x1"))
			d := put(tb, slice4("s", "x", 1, good, tc.bad))
			require.Len(t, d.Members, 1)
			requireAnswer(t, tb, "u1", x1, Active, ReasonReady)
			p := tb.Pool(Ref{own, "s"})
			require.True(t, p.Accepted)
			require.Len(t, p.Problems, 1)
			require.Contains(t, p.Problems[0], "EndpointSlice nsp/x: endpoint 1: ")
			require.Contains(t, p.Problems[0], tc.says)
			require.Empty(t, put(tb, slice4("s", "x", 2, good)).Members)
			require.Empty(t, tb.Pool(Ref{own, "s"}).Problems)
		})
	}
}

func TestManyBadEndpointsMakeFewWords(t *testing.T) { // P3
	tb := table(service("s", "t1", "x1"))
	var bad []Endpoint
	for range 1000 {
		bad = append(bad, pod("u2", strings.Repeat("x", 1000), true))
	}
	put(tb, slice4("s", "x", 1, bad...))
	put(tb, slice4("s", "y", 1, append(bad, pod("u1", "10.0.0.1", true))...))
	requireAnswer(t, tb, "u1", x1, Active, ReasonReady)
	problems := tb.Pool(Ref{own, "s"}).Problems
	require.Len(t, problems, maxNamed+1)
	require.Equal(t, "and 1995 more problems in EndpointSlices", problems[maxNamed])
	require.Less(t, len(strings.Join(problems, "; ")), 1000)
	put(tb, slice4("s", "x", 2), slice4("s", "y", 2))
	require.Empty(t, tb.Pool(Ref{own, "s"}).Problems)
}

func TestSliceOfNamesIsRefused(t *testing.T) { // P3
	tb := table(service("s", "t1", "x1"))
	x := slice4("s", "dns", 1, Endpoint{Addresses: []string{"example.com"}})
	x.AddressType = "FQDN"
	require.Empty(t, put(tb, x).Members)
	require.Equal(t, []string{`EndpointSlice nsp/dns: address type "FQDN" is not supported; use IPv4 or IPv6`}, tb.Pool(Ref{own, "s"}).Problems)
}

func TestSelectorChanges(t *testing.T) { // P4
	tb := table(service("s", "t1", "x1"), service("o", "t1", "x2"))
	put(tb, slice4("s", "x", 1, pod("a", "10.0.0.1", true)), slice4("o", "y", 2, pod("a", "10.0.0.1", true)))
	d := put(tb, slice4("s", "x", 3, pod("b", "10.0.0.2", true)))
	require.Len(t, d.Members, 2)
	require.Equal(t, []stream.Key{streamOf("t1", "x2")}, keysOf(d.Members[podOf("a")]))
	require.Equal(t, []stream.Key{x1}, keysOf(d.Members[podOf("b")]))
	require.NotContains(t, d.Pools, Ref{own, "o"})
}

func TestMarkerIsRemovedBeforeTheSlices(t *testing.T) { // P5
	for name, remove := range map[string]func(*Table){
		"deleted": func(tb *Table) { tb.DeleteService(Ref{own, "s"}) },
		"unmarked": func(tb *Table) {
			s := service("s", "t1", "x1")
			delete(s.Labels, LabelMarker)
			tb.SetService(s)
		},
	} {
		t.Run(name, func(t *testing.T) {
			tb := table(service("s", "t1", "x1"))
			put(tb, slice4("s", "x", 1, pod("u1", "10.0.0.1", true)))
			remove(tb)
			require.Equal(t, Delta{map[MemberKey]*Member{podOf("u1"): nil}, map[Ref]*Pool{{own, "s"}: nil}}, tb.Flush())
			require.Empty(t, put(tb, slice4("s", "x", 2, pod("u1", "10.0.0.1", false))).Members)
			tb.SetService(service("s", "t1", "x1"))
			require.Len(t, tb.Flush().Members, 1)
			requireAnswer(t, tb, "u1", x1, Inactive, ReasonNotReady)
		})
	}
}

func TestNoSelector(t *testing.T) { // P6
	s := service("s", "t1", "x1")
	s.HasSelector = false
	tb := table(s)
	x := slice4("s", "by-hand", 1, pod("u1", "10.0.0.1", true))
	x.OwnerUID = ""
	put(tb, x)
	requireAnswer(t, tb, "u1", x1, Active, ReasonReady)
	p := tb.Pool(s.Ref)
	require.Equal(t, ReasonAccepted, p.Reason)
	require.Contains(t, p.Message, "has no selector: only its EndpointSlices count")
}

func TestEqualContentIsNoChange(t *testing.T) { // P7
	tb := table(service("s", "t1", "x1"))
	x := slice4("s", "x", 1, pod("u1", "10.0.0.1", true), Endpoint{})
	put(tb, x)
	for i := range 10 {
		s := service("s", "t1", "x1")
		s.Labels["app.kubernetes.io/version"] = fmt.Sprint(i)
		s.Created = s.Created.Local()
		tb.SetService(s)
		x.Version, x.Changed = uint64(i+2), at(i+2)
		d := put(tb, x)
		require.Empty(t, d.Members)
		require.Empty(t, d.Pools)
	}
	require.Equal(t, at(1), tb.Member(podOf("u1")).Streams[x1].Caused)
}

func TestScaledToZero(t *testing.T) { // P23
	tb := table(service("s", "t1", "x1"))
	put(tb, slice4("s", "x", 1, pod("u1", "10.0.0.1", true), pod("u2", "10.0.0.2", true)))
	d := put(tb, slice4("s", "x", 2))
	require.Len(t, d.Members, 2)
	p := d.Pools[Ref{own, "s"}]
	require.True(t, p.Accepted)
	require.False(t, p.Panic)
	require.Equal(t, Counts{}, p.Counts)
}

func TestPanicThreshold(t *testing.T) {
	s := service("s", "t1", "x1")
	s.Annotations = map[string]string{AnnotationPanicThreshold: "50"}
	tb := table(s)
	state := func(readyOnes int) *Pool {
		x := slice4("s", "x", 1, leaving("gone", "10.0.0.9", false), leaving("slow", "10.0.0.8", true))
		for i := range 4 {
			x.Endpoints = append(x.Endpoints, pod(fmt.Sprint("u", i), fmt.Sprint("10.0.0.", i+1), i < readyOnes))
		}
		put(tb, x)
		return tb.Pool(s.Ref)
	}
	p := state(2)
	require.False(t, p.Panic, "half is not below half")
	requireAnswer(t, tb, "u3", x1, Inactive, ReasonNotReady)
	p = state(1)
	require.True(t, p.Panic)
	require.Equal(t, Counts{Members: 6, Ready: 1, Draining: 1, Active: 4, Assigned: 6}, p.Counts)
	requireAnswer(t, tb, "u0", x1, Active, ReasonReady)
	requireAnswer(t, tb, "u3", x1, Active, ReasonPanic)
	requireAnswer(t, tb, "slow", x1, Inactive, ReasonTerminating)
	state(0)
	requireAnswer(t, tb, "slow", x1, Active, ReasonServingTerminating)
	requireAnswer(t, tb, "gone", x1, Inactive, ReasonTerminating)
}

func TestDrainingIsKept(t *testing.T) {
	s := service("s", "t1", "x1")
	s.Annotations = map[string]string{AnnotationDraining: "keep"}
	tb := table(s, service("o", "t1", "x1"))
	x := slice4("s", "x", 1, pod("u1", "10.0.0.1", true), leaving("u2", "10.0.0.2", true))
	put(tb, x)
	requireAnswer(t, tb, "u2", x1, DrainingState, ReasonDraining)
	put(tb, slice4("o", "y", 2, leaving("u2", "10.0.0.2", true)))
	requireAnswer(t, tb, "u2", x1, Active, ReasonServingTerminating)
}

func TestOlderServiceKeepsTheMember(t *testing.T) {
	old, young := service("old", "t1", "x1"), service("young", "t2", "x1")
	young.Created = at(2)
	inT2 := streamOf("t2", "x1")
	tb := table(young)
	x, y := slice4("old", "x", 1), slice4("young", "y", 2)
	for i := range 7 {
		x.Endpoints = append(x.Endpoints, pod(fmt.Sprint("u", i), fmt.Sprint("10.0.0.", i+1), false))
	}
	y.Endpoints = append(slices.Clone(x.Endpoints), pod("mine", "10.0.0.9", true))
	put(tb, x, y)
	require.Equal(t, ReasonAccepted, tb.Pool(young.Ref).Reason)

	tb.SetService(old)
	tb.Flush()
	p := tb.Pool(young.Ref)
	require.True(t, p.Accepted)
	require.Equal(t, ReasonConflict, p.Reason)
	require.Contains(t, p.Message, "pod-u0 (held by Service nsp/old, trench t1)")
	require.Equal(t, 5, strings.Count(p.Message, "held by"))
	require.Contains(t, p.Message, " and 2 more")
	require.Equal(t, Counts{Members: 8, Ready: 1, Active: 1, Assigned: 1, Withheld: 7}, p.Counts)
	m := tb.Member(podOf("u0"))
	require.Equal(t, "t1", m.Trench)
	require.Equal(t, []stream.Key{x1}, keysOf(m))
	require.Equal(t, []Ref{young.Ref}, m.Withheld)
	requireAnswer(t, tb, "mine", inT2, Active, ReasonReady)

	old.Labels[LabelStream] = "" // a Service that is not accepted claims nobody
	tb.SetService(service("old", "t1", ""))
	tb.Flush()
	require.Equal(t, ReasonAccepted, tb.Pool(young.Ref).Reason)
	require.Equal(t, "t2", tb.Member(podOf("u0")).Trench)
}

func TestSlicesOfAFormerServiceAreIgnored(t *testing.T) {
	s := service("s", "t1", "x1")
	tb := table(s)
	put(tb, slice4("s", "x", 1, pod("u1", "10.0.0.1", true)))
	s.UID = "uid-again"
	tb.SetService(s)
	require.Equal(t, map[MemberKey]*Member{podOf("u1"): nil}, tb.Flush().Members)
	x := slice4("s", "new", 2, pod("u1", "10.0.0.1", true))
	x.OwnerUID = s.UID
	require.Len(t, put(tb, x).Members, 1)
	tb.DeleteSlice(own, "x")
	require.Empty(t, tb.Flush().Members)
}

func TestMembersWithoutPodNeedTheirOwnPermit(t *testing.T) {
	tb := table(service("s", "t1", "x1"))
	vm := Endpoint{Addresses: []string{"10.0.0.1", "10.0.0.2"}}
	put(tb, slice4("s", "x", 1, vm))
	require.Empty(t, slices.Collect(tb.Members()))
	tb.SetGrants(NewGrants([]Grant{{Namespace: own, Externals: []string{Any}, Trench: "t1", Conduit: x1.Conduit, Stream: "x1"}}))
	require.Len(t, tb.Flush().Members, 2)
	key := MemberKey{Namespace: own, Addr: netip.MustParseAddr("10.0.0.2")}
	require.Equal(t, Active, tb.Member(key).Streams[x1].State)
	require.True(t, key.External())
	require.Equal(t, "nsp/10.0.0.2", key.String())
	tb.SetGrants(nil)
	require.Len(t, tb.Flush().Members, 2)
	require.Empty(t, slices.Collect(tb.Members()))
}

func TestOtherNamespaceNeedsAPermit(t *testing.T) {
	s := service("s", "t1", "x1")
	s.Namespace, s.Labels[LabelNamespace] = "app", own
	tb := table(s)
	x := slice4("s", "x", 1, Endpoint{Addresses: []string{"10.0.0.1"}, Target: &TargetRef{"Pod", "app", "p", "u1"}})
	x.Namespace = "app"
	put(tb, x)
	p := tb.Pool(s.Ref)
	require.False(t, p.Accepted)
	require.Equal(t, ReasonNotPermitted, p.Reason)
	require.Equal(t, "namespace app may not join stream nsp/t1/c1/x1; ask the owner of trench t1 for a TargetGrant", p.Message)
	tb.SetGrants(NewGrants([]Grant{{Namespace: "app", Trench: "t1"}}))
	tb.Flush()
	require.NotNil(t, tb.Member(MemberKey{Namespace: "app", UID: "u1"}))
	tb.DropNamespace("app")
	tb.Flush()
	require.Empty(t, slices.Collect(tb.Pools()))
	require.Empty(t, tb.pools)
	require.Empty(t, tb.slices)
}

func TestPoolsAreSorted(t *testing.T) {
	tb := table(service("c", "t1", "x1"), service("a", "t1", "x1"), service("b", "t1", "x1"))
	tb.Flush()
	var names []string
	for p := range tb.Pools() {
		names = append(names, p.Name)
	}
	require.Equal(t, []string{"a", "b", "c"}, names)
}
