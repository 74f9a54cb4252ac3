package server

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/pool"
	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// narrow sets max-targets of x1, after the harness has answered the question for it.
func (n *nsp) narrow(most uint32) {
	n.engine.Post(service(x1))
	n.settle()
	n.settle()
	n.engine.Post(engine.TrenchConfigured{Trench: x1.Trench, MaxTargets: map[stream.Key]uint32{x1: most}})
	n.settle()
}

func (n *nsp) reserve(ctx context.Context, i int, wait bool) (uint32, error) {
	resp, err := targetpoolv1.NewReservationClient(n.dial(from(i))).Reserve(ctx, &targetpoolv1.ReserveRequest{
		Stream: wireStream(x1), Ips: []string{heldBy(i).IPs[0]}, Wait: wait,
	})
	return resp.GetIdentifier(), err
}

// heldBy is what the TAPA of pod i would register.
func heldBy(i int) registry.Target {
	return registry.Target{Stream: x1, IPs: []string{podAddr(i + 256)}, Status: registry.Enabled}
}

// Max-targets is two, and three pods come: the third waits, is named, and gets what the first leaves. // D9
func TestReserveAndWait(t *testing.T) {
	n := start(t, setup{})
	n.narrow(2)
	n.engine.Post(service(x1), slice(x1, 1, ready(2), ready(3), ready(4)))
	for i, want := range []uint32{1, 2} {
		id, err := n.reserve(n.ctx(), i+2, false)
		require.NoError(t, err)
		require.Equal(t, want, id)
	}
	_, err := n.reserve(n.ctx(), 4, false)
	require.Equal(t, codes.ResourceExhausted, status.Code(err))

	got := make(chan uint32, 1)
	go func() {
		id, _ := n.reserve(n.ctx(), 4, true)
		got <- id
	}()
	require.Eventually(t, func() bool {
		details, err := n.engine.Pools(n.ctx(), "")
		return err == nil && len(details[0].Waiting.First) == 1 && details[0].Waiting.First[0] == "pod-4"
	}, patience, time.Millisecond)
	waiting := func() []*targetpoolv1.WaitingInfo {
		d, err := targetpoolv1.NewInspectorClient(n.dial()).Describe(n.ctx(), &targetpoolv1.DescribeRequest{})
		require.NoError(t, err)
		return d.GetWaiting()
	}
	require.Len(t, waiting(), 1)
	require.Equal(t, own+"/pod-4", waiting()[0].GetPod())
	require.Equal(t, x1.Name, waiting()[0].GetStream().GetName())
	require.True(t, waiting()[0].GetPreferred())
	require.Empty(t, got)
	require.NoError(t, n.registry.Unregister(n.ctx(), heldBy(2), registry.Caller{}))
	require.EqualValues(t, 1, <-got)
	details, err := n.engine.Pools(n.ctx(), "")
	require.NoError(t, err)
	require.Zero(t, details[0].Waiting.Total)
	require.Empty(t, waiting())
}

// A caller whose deadline passed takes no slot. // P25
func TestReserveEndsWithItsDeadline(t *testing.T) {
	n := start(t, setup{})
	n.narrow(2)
	for i := range 2 {
		_, err := n.reserve(n.ctx(), i+2, false)
		require.NoError(t, err)
	}
	ctx, cancel := context.WithTimeout(n.ctx(), 50*time.Millisecond)
	defer cancel()
	_, err := n.reserve(ctx, 4, true)
	require.Equal(t, codes.DeadlineExceeded, status.Code(err))
	require.Eventually(t, func() bool { // the server may learn of it a moment later
		n.seen.mu.Lock()
		defer n.seen.mu.Unlock()
		const method = targetpoolv1.Reservation_Reserve_FullMethodName
		return n.seen.called[method+" DeadlineExceeded"]+n.seen.called[method+" Canceled"] == 1
	}, patience, time.Millisecond)
	require.NoError(t, n.registry.Unregister(n.ctx(), heldBy(2), registry.Caller{}))
	id, err := n.reserve(n.ctx(), 5, false)
	require.NoError(t, err)
	require.EqualValues(t, 1, id)
}

// Whoever waits does not hold up the end of the server.
func TestReserveEndsWithTheServer(t *testing.T) {
	n := start(t, setup{})
	n.narrow(1)
	_, err := n.reserve(n.ctx(), 2, false)
	require.NoError(t, err)
	failed := make(chan error, 1)
	go func() {
		_, err := n.reserve(n.ctx(), 3, true)
		failed <- err
	}()
	require.Eventually(t, func() bool { return n.queued.Load() == 1 }, patience, time.Millisecond)
	require.NoError(t, n.stop())
	require.Equal(t, codes.Unavailable, status.Code(<-failed))
}

func TestReserveRefuses(t *testing.T) {
	n := start(t, setup{})
	c := targetpoolv1.NewReservationClient(n.dial())
	for _, bad := range []*targetpoolv1.ReserveRequest{
		{}, {Stream: wireStream(x1)}, {Stream: wireStream(x1), Ips: []string{"nonsense"}},
		{Stream: &targetpoolv1.Stream{Namespace: "blue", Trench: "t", Conduit: "c", Name: "s"}, Ips: []string{"10.0.0.1"}},
	} {
		_, err := c.Reserve(n.ctx(), bad)
		require.Equal(t, codes.InvalidArgument, status.Code(err), "%v", bad)
	}
}

// A sidecar that believes to speak to the NSP of another namespace is refused, and its pod is named.
func TestMisdirectedSidecarIsShown(t *testing.T) {
	n := start(t, setup{})
	n.engine.Post(service(x1), slice(x1, 1, ready(2), ready(3)))
	n.settle()
	watch := func(namespace string) targetpoolv1.TargetPool_WatchClient {
		w, err := targetpoolv1.NewTargetPoolClient(n.dial(from(2))).Watch(n.ctx())
		require.NoError(t, err)
		require.NoError(t, w.Send(&targetpoolv1.TargetPoolWatchRequest{
			Workload: &targetpoolv1.Workload{Namespace: own, Pod: "pod-2"}, Report: &targetpoolv1.Report{NspNamespace: namespace},
		}))
		return w
	}
	_, err := watch("blue").Recv()
	require.Equal(t, codes.FailedPrecondition, status.Code(err))
	unwatched := func() engine.Names {
		details, err := n.engine.Pools(n.ctx(), "")
		require.NoError(t, err)
		require.Equal(t, pool.Ref{Namespace: own, Name: "x1"}, details[0].Pool.Ref)
		return details[0].Unwatched
	}
	require.Equal(t, engine.Names{First: []string{`pod-2 (its sidecar is configured for the NSP of namespace "blue")`, "pod-3"}, Total: 2}, unwatched())
	w := watch(own)
	_, err = w.Recv()
	require.NoError(t, err)
	require.Equal(t, engine.Names{First: []string{"pod-3"}, Total: 1}, unwatched())
	require.NoError(t, w.CloseSend())
	require.NoError(t, n.stop())
	require.Eventually(t, func() bool { return unwatched().Total == 2 }, patience, time.Millisecond)
}
