package server

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/pkg/engine"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

var namespaceSynced = engine.NamespaceSynced{Namespace: own}

// streams are the names in the next list.
func (n *nsp) streams(ss poolClient) []string {
	n.Helper()
	m, err := ss.Recv()
	require.NoError(n, err)
	require.NotNil(n, m.GetAssignments())
	names := []string{}
	for _, a := range m.GetAssignments().GetItems() {
		names = append(names, a.GetStream().GetName())
	}
	return names
}

// refused reads until the watch ends and checks why.
func (n *nsp) refused(ss poolClient, code codes.Code, words ...string) {
	n.Helper()
	for {
		_, err := ss.Recv()
		if err == nil {
			continue
		}
		require.Equal(n, code, status.Code(err), "%v", err)
		for _, w := range words {
			require.ErrorContains(n, err, w)
		}
		return
	}
}

func byAddress(i int) *targetpoolv1.Workload { return &targetpoolv1.Workload{Address: podAddr(i)} }

// A pod is told its list at once and then what changes, and nobody else is told.
func TestOnlyThePodItselfIsTold(t *testing.T) {
	n := start(t, setup{})
	n.engine.Post(service(x1), service(x2), slice(x1, 1, ready(2), notReady(3)))
	second, third := n.dial(from(2)), n.dial(from(3))

	two, three := n.assignments(second, pod("pod-2"), nil), n.assignments(third, byAddress(3), nil)
	require.Equal(t, []string{"x1"}, n.streams(two))
	require.Equal(t, []string{"x1"}, n.streams(three)) // D2: on membership

	n.refused(n.assignments(third, pod("pod-2"), nil), codes.PermissionDenied, "red/pod-2", "10.0.0.3")
	n.refused(n.assignments(third, byAddress(2), nil), codes.PermissionDenied, "10.0.0.2", "10.0.0.3")

	n.engine.Post(slice(x2, 1, ready(2)))
	require.Equal(t, []string{"x1", "x2"}, n.streams(two))
	n.engine.Post(slice(x1, 2, ready(3)), slice(x2, 2))
	require.Empty(t, n.streams(two))
	n.engine.Post(slice(x2, 3, ready(3)))
	require.Equal(t, []string{"x1", "x2"}, n.streams(three), "the first news since the beginning")
}

// What changes of a pod without changing its streams is not told.
func TestListsThatAreEqualAreNotSent(t *testing.T) {
	n := start(t, setup{})
	n.engine.Post(service(x1), slice(x1, 1, ready(2)))
	tapa := n.assignments(n.dial(from(2)), pod("pod-2"), nil)
	require.Equal(t, []string{"x1"}, n.streams(tapa))
	second := slice(x1, 2)
	second.Slice.Name = "slice-of-more-addresses"
	for i := range 20 {
		second.Slice.Version++
		second.Slice.Endpoints = slice(x1, 2, member{i: 2, addr: podAddr(100 + i), ready: true}).Slice.Endpoints
		n.engine.Post(second)
		n.settle()
	}
	n.engine.Post(service(x2), slice(x2, 3, ready(2)))
	require.Equal(t, []string{"x1", "x2"}, n.streams(tapa))
	require.Len(t, n.seen.sizes(targetpoolv1.TargetPool_Watch_FullMethodName), 2)
}

// Who watches for a pod before that is in any pool learns nothing, and is refused once it is known whose it is.
func TestWatchThatBeginsTooEarly(t *testing.T) {
	n := start(t, setup{})
	stranger, self := n.assignments(n.dial(from(3)), pod("pod-2"), nil), n.assignments(n.dial(from(2)), pod("pod-2"), nil)
	require.Empty(t, n.streams(stranger))
	require.Empty(t, n.streams(self))
	n.engine.Post(service(x1), slice(x1, 1, ready(2)))
	require.Equal(t, []string{"x1"}, n.streams(self))
	n.refused(stranger, codes.PermissionDenied, "red/pod-2")
}

// D4: an address that two pods bear proves nothing.
func TestSharedAddressProvesNothing(t *testing.T) {
	n := start(t, setup{})
	host := podAddr(9)
	n.engine.Post(service(x1), service(x2),
		slice(x1, 1, member{i: 4, addr: host, ready: true}), slice(x2, 1, member{i: 5, addr: host, ready: true}))
	conn := n.dial(from(9))
	n.refused(n.assignments(conn, pod("pod-4"), nil), codes.PermissionDenied, "red/pod-4", "another pod bears the address 10.0.0.9")
	n.refused(n.assignments(conn, pod("pod-5"), nil), codes.PermissionDenied, "red/pod-5")
	n.refused(n.assignments(conn, byAddress(9), nil), codes.FailedPrecondition, "10.0.0.9", "name the pod")

	// While it is alone it is told; when the other one comes, no longer.
	n.engine.Post(slice(x2, 2))
	n.settle()
	alone := n.assignments(conn, pod("pod-4"), nil)
	require.Equal(t, []string{"x1"}, n.streams(alone))
	n.engine.Post(slice(x2, 3, member{i: 5, addr: host, ready: true}))
	n.refused(alone, codes.PermissionDenied, "red/pod-4")
}

func TestEverybodyIsBelievedWithoutAuthorisation(t *testing.T) {
	n := start(t, setup{mode: auth.None})
	n.engine.Post(service(x1), slice(x1, 1, ready(2)))
	n.settle()
	require.Equal(t, []string{"x1"}, n.streams(n.assignments(n.dial(from(3)), pod("pod-2"), nil)))
}

// What a sidecar reports later in its watch replaces what it reported first: interfaces come and go.
func TestLaterReportsCount(t *testing.T) {
	n := start(t, setup{})
	n.engine.Post(service(x1), slice(x1, 1, ready(2)))
	n.enable(n.dial(from(200)), registration(x1, 1, "172.16.0.2/24")) // from no pod of a pool
	lb := n.feed(n.dial(), nil)
	n.committed(lb)
	tapa := n.assignments(n.dial(from(2)), pod("pod-2"), &targetpoolv1.Report{NspNamespace: own, Addresses: []string{"10.0.0.2"}})
	n.streams(tapa)
	require.Empty(t, lb.targets[1].GetPod())
	require.NoError(t, tapa.Send(&targetpoolv1.TargetPoolWatchRequest{
		Report: &targetpoolv1.Report{NspNamespace: own, Addresses: []string{"10.0.0.2", "172.16.0.2/24"}},
	}))
	n.committed(lb)
	require.Equal(t, "red/pod-2", lb.targets[1].GetPod())
}

// What a sidecar reports binds registrations to its pod, whoever registered them.
func TestReportBindsRegistrations(t *testing.T) {
	n := start(t, setup{})
	n.engine.Post(service(x1), slice(x1, 1, ready(2), ready(3)))
	relay := n.dial(from(200)) // no pod of a pool
	n.enable(relay, registration(x1, 1, "172.16.0.2/24"))
	lb := n.feed(n.dial(), nil)
	n.committed(lb)
	require.Empty(t, lb.targets[1].GetPod())

	report := &targetpoolv1.Report{NspNamespace: own, Addresses: []string{"127.0.0.1/8", "10.0.0.2", "172.16.0.2/24"}}
	tapa := n.assignments(n.dial(from(2)), pod("pod-2"), report)
	require.Equal(t, []string{"x1"}, n.streams(tapa))
	n.committed(lb)
	require.Equal(t, "red/pod-2", lb.targets[1].GetPod())
	n.engine.Post(slice(x1, 2, notReady(2), ready(3)))
	n.committed(lb)
	require.Equal(t, targetpoolv1.Target_STATE_INACTIVE, lb.targets[1].GetState())

	look := targetpoolv1.NewInspectorClient(n.dial())
	members := func() []*targetpoolv1.MemberInfo {
		resp, err := look.ListPools(n.ctx(), &targetpoolv1.ListPoolsRequest{Namespace: own})
		require.NoError(t, err)
		return resp.GetPools()[0].GetMembers()
	}
	binding := func() string {
		resp, err := look.ListTargets(n.ctx(), &targetpoolv1.ListTargetsRequest{})
		require.NoError(t, err)
		return resp.GetTargets()[0].GetBinding()
	}
	m := members()
	require.Equal(t, []bool{true, false}, []bool{m[0].GetWatched(), m[1].GetWatched()})
	require.Equal(t, []string{"NotReady", "Ready"}, []string{m[0].GetCondition(), m[1].GetCondition()})
	require.Equal(t, "Claim", binding())

	// Another pod claims the address too: neither is believed. The claim outlives its watch, but not its pod.
	other := n.dial(from(3))
	require.Equal(t, []string{"x1"}, n.streams(n.assignments(other, pod("pod-3"), report)))
	require.Eventually(t, func() bool { return binding() == "" }, patience, time.Millisecond)
	require.NoError(t, other.Close())
	require.Eventually(t, func() bool { return !members()[1].GetWatched() }, patience, time.Millisecond)
	require.Empty(t, binding())
	n.engine.Post(slice(x1, 3, ready(2)))
	n.settle()
	n.engine.Post(slice(x1, 4, ready(2), ready(3)))
	require.Equal(t, "Claim", binding())
}
