package server

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/auth"
)

// Who watches is told while they do, with what they were sent.
func TestDescribe(t *testing.T) {
	n := start(t, setup{mode: auth.None})
	client := targetpoolv1.NewInspectorClient(n.dial())
	describe := func(w *targetpoolv1.Workload) *targetpoolv1.DescribeResponse {
		out, err := client.Describe(n.ctx(), &targetpoolv1.DescribeRequest{Workload: w})
		require.NoError(t, err)
		return out
	}
	d := describe(pod("pod-2"))
	require.Equal(t, []string{own, epoch, "none"}, []string{d.GetNamespace(), d.GetEpoch(), d.GetAuthorisation()})
	require.True(t, d.GetAnswering())
	require.Empty(t, d.GetReceivers())
	require.Empty(t, d.GetSidecars())

	n.engine.Post(service(x1), slice(x1, 7, ready(2), ready(3)))
	sidecar := n.assignments(n.dial(), pod("pod-2"), &targetpoolv1.Report{Addresses: []string{"172.16.0.2/24"}, OwnersComplete: true})
	require.Equal(t, []string{"x1"}, n.streams(sidecar))
	byAddr := n.assignments(n.dial(), byAddress(3), nil)
	require.Equal(t, []string{"x1"}, n.streams(byAddr))
	conn := n.dial()
	lb := n.feed(conn, nil)
	n.committed(lb)
	old := n.legacy(n.dial(), &nspv1.Target{Stream: &nspv1.Stream{Conduit: &nspv1.Conduit{Name: "conduit-a", Trench: &nspv1.Trench{Name: "trench-a"}}}})
	n.next(old)

	d = describe(pod("pod-2"))
	require.Len(t, d.GetSidecars(), 1)
	s := d.GetSidecars()[0]
	require.True(t, s.GetProven() && s.GetTold() && s.GetOwners())
	require.Equal(t, []string{"172.16.0.2"}, s.GetAddresses())
	require.Equal(t, "x1", s.GetStreams()[0].GetName())
	require.Len(t, describe(pod("pod-3")).GetSidecars(), 1, "a watch by address is the pod's too")
	require.Len(t, describe(&targetpoolv1.Workload{Namespace: own}).GetSidecars(), 2)
	require.Empty(t, describe(nil).GetSidecars())

	require.Len(t, d.GetReceivers(), 2)
	require.Equal(t, targetpoolv1.ReceiverInfo_KIND_FEED, d.GetReceivers()[0].GetKind())
	require.Equal(t, targetpoolv1.ReceiverInfo_KIND_LIST, d.GetReceivers()[1].GetKind())
	require.Len(t, d.GetConduits(), 1)
	require.Equal(t, d.GetConduits()[0].GetRevision(), d.GetReceivers()[0].GetRevision())
	require.Equal(t, "trench-a", d.GetTrenches()[0].GetName())
	require.True(t, d.GetTrenches()[0].GetRead())

	pools, err := client.ListPools(n.ctx(), &targetpoolv1.ListPoolsRequest{})
	require.NoError(t, err)
	require.Equal(t, uint64(7), pools.GetPools()[0].GetSlices()[0].GetResourceVersion())

	require.NoError(t, conn.Close())
	require.Eventually(t, func() bool { return len(describe(nil).GetReceivers()) == 1 }, patience, time.Millisecond, "who left is gone")
}
