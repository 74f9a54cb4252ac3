package server

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/targetpool/client"
)

// stored are ENABLED registrations 1..count of x1, with so many addresses each, registered from the pod of the same number.
func stored(t *testing.T, count, addresses int) (entries []*registry.Entry) {
	for i := 1; i <= count; i++ {
		target := registry.Target{Scope: x1.Trench, Stream: x1}
		for a := range addresses {
			target.IPs = append(target.IPs, fmt.Sprintf("fd00:1234:5678:9abc:%x:%x:1234:%x/128", a+1, i>>16+1, i&0xffff))
		}
		k, err := registry.KeyOf(target, own)
		require.NoError(t, err)
		entries = append(entries, &registry.Entry{
			Key: k, ID: uint64(i), IPs: target.IPs, Status: registry.Enabled,
			Context: map[string]string{"identifier": strconv.Itoa(i)},
			Caller:  registry.Caller{Peer: addr(podAddr(i))},
		})
	}
	return entries
}

// P12: a snapshot that is larger than a message may be comes in pieces and is committed at once.
func TestGreatSnapshot(t *testing.T) {
	const count = 20_000
	n := start(t, setup{entries: stored(t, count, 5)})
	raw := n.feed(n.dial(), nil)
	n.committed(raw)
	require.Len(t, raw.targets, count)
	require.Greater(t, raw.bytes, 4<<20, "this test needs more than one message can hold")
	require.Less(t, raw.biggest, 1<<20)

	commits := make(chan client.Update, 100)
	c, err := client.New(client.Config{Address: n.addr, Credentials: insecure.NewCredentials()})
	require.NoError(t, err)
	lb, err := c.WatchFeed(client.FeedConfig{Conduit: conduitA, Handler: func(u client.Update) { commits <- u }})
	require.NoError(t, err)
	stop := background(lb.Run)
	first := <-commits
	require.NoError(t, stop())
	require.True(t, first.First)
	require.Len(t, first.Set, count)
	require.Empty(t, commits)
}

// readiness is the slice of x1 in which all pods are ready or none.
func readiness(pods int, is bool) []member {
	all := make([]member, pods)
	for i := range all {
		all[i] = member{i: i + 1, ready: is}
	}
	return all
}

// One change costs the same few bytes whatever the number of targets.
func TestOneChangeIsSmall(t *testing.T) {
	const count = 2_000
	n := start(t, setup{entries: stored(t, count, 2)})
	pods := readiness(count, true)
	n.engine.Post(service(x1), slice(x1, 1, pods...))
	n.settle()
	lb := n.feed(n.dial(), nil)
	n.committed(lb)
	require.Equal(t, count, active(lb.targets))
	before := len(n.seen.sizes(targetpoolv1.TargetFeed_Watch_FullMethodName))

	pods[76].ready = false
	n.engine.Post(slice(x1, 2, pods...))
	n.committed(lb)
	require.Equal(t, count-1, active(lb.targets))
	require.Len(t, lb.changes, 1)
	require.Equal(t, "red/pod-77", lb.changes[0].GetTarget().GetPod())
	sizes := n.seen.sizes(targetpoolv1.TargetFeed_Watch_FullMethodName)[before:]
	require.Len(t, sizes, 1)
	require.Less(t, sizes[0], 300)
}

// D7: a receiver that does not read delays nobody and costs little; when it reads again it gets what is, not all that was.
func TestStalledReceiver(t *testing.T) {
	const count, changes = 40, 500
	n := start(t, setup{entries: stored(t, count, 6)})
	n.engine.Post(service(x1), slice(x1, 1, readiness(count, true)...))
	n.settle()
	slow := n.feed(n.dial(grpc.WithInitialWindowSize(64<<10), grpc.WithInitialConnWindowSize(64<<10)), nil)
	final := func(targets map[uint64]*targetpoolv1.Target) bool { return active(targets) == 1 }
	var fast [3]*receiver
	var group sync.WaitGroup
	for i := range fast {
		r := n.feed(n.dial(), nil)
		n.committed(r)
		fast[i] = r
		group.Go(func() {
			if err := r.until(final); err != nil {
				t.Errorf("a receiver that reads: %v", err)
			}
		})
	}
	for i := range changes {
		n.engine.Post(slice(x1, 2+i, readiness(count, i%2 == 1)...))
		n.settle() // a revision of its own
	}
	last := readiness(count, false)
	last[0].ready = true
	n.engine.Post(slice(x1, 2+changes, last...))
	group.Wait() // while the slow one has not read a byte
	require.Positive(t, n.server.Lags()[targetpoolv1.TargetFeed_Watch_FullMethodName], "somebody is behind")

	full := n.seen.sizes(targetpoolv1.TargetFeed_Watch_FullMethodName)[0] // about a snapshot
	require.NoError(t, slow.until(final))
	require.Equal(t, fast[0].version.GetRevision(), slow.version.GetRevision())
	require.Len(t, slow.targets, count)
	require.Less(t, slow.pieces, changes/5, "changes were conflated")
	require.GreaterOrEqual(t, n.server.Coalesced(), uint64(changes), "and are counted")
	require.Eventually(t, func() bool { return n.server.Lags()[targetpoolv1.TargetFeed_Watch_FullMethodName] == 0 }, patience, time.Millisecond)
	require.Less(t, slow.bytes, full*changes/5, "what waits for a slow receiver is bounded")
	for id, want := range fast[0].targets {
		require.Equal(t, want.GetState(), slow.targets[id].GetState())
	}
}

// P8: receivers come and go while there is something to send; nothing stays behind.
func TestSubscribeAndUnsubscribe(t *testing.T) {
	const rounds, workers = 1_000, 8
	n := start(t, setup{entries: stored(t, 20, 1)})
	n.engine.Post(service(x1), slice(x1, 1, readiness(20, true)...))
	conn := n.dial()
	n.read(conn, &nspv1.Target{}) // connected
	before := goleak.IgnoreCurrent()

	stop := background(func(ctx context.Context) error {
		for v := 2; ctx.Err() == nil; v++ {
			n.engine.Post(slice(x1, v, readiness(20, v%2 == 0)...))
			n.settle()
		}
		return nil
	})
	var group sync.WaitGroup
	for w := range workers {
		group.Go(func() {
			for i := range rounds / workers {
				n.comeAndGo(conn, w+i)
			}
		})
	}
	group.Wait()
	require.NoError(t, stop())
	require.Eventually(t, func() bool { return n.seen.watching() == 0 }, patience, 5*time.Millisecond)
	require.Eventually(t, func() bool { return goleak.Find(before) == nil }, patience, 5*time.Millisecond)
}

// comeAndGo opens a watch of one kind, reads nothing, a message or two, and leaves.
func (n *nsp) comeAndGo(conn grpc.ClientConnInterface, i int) {
	ctx, cancel := context.WithCancel(n.Context())
	defer cancel()
	var recv func() error
	var err error
	switch i % 3 {
	case 0:
		var ss grpc.ServerStreamingClient[targetpoolv1.TargetFeedWatchResponse]
		ss, err = targetpoolv1.NewTargetFeedClient(conn).Watch(ctx, &targetpoolv1.TargetFeedWatchRequest{Conduit: conduitA})
		recv = func() error { _, err := ss.Recv(); return err }
	case 1:
		var ss legacyWatch
		ss, err = nspv1.NewTargetRegistryClient(conn).Watch(ctx, &nspv1.Target{Stream: wire(x1)})
		recv = func() error { _, err := ss.Recv(); return err }
	default:
		var ss poolClient
		ss, err = targetpoolv1.NewTargetPoolClient(conn).Watch(ctx)
		if err == nil {
			err = ss.Send(&targetpoolv1.TargetPoolWatchRequest{Workload: pod("somebody")})
		}
		recv = func() error { _, err := ss.Recv(); return err }
	}
	for range i % 2 {
		if err == nil {
			err = recv()
		}
	}
	if err != nil {
		n.Errorf("watch %d: %v", i, err)
	}
}

// P9: a quiet watch repeats the version that its receiver must have.
func TestHeartbeats(t *testing.T) {
	n := start(t, setup{heartbeat: 10 * time.Millisecond, entries: stored(t, 3, 1), unsynced: true})
	conn := n.dial()
	lb, tapa := n.feed(conn, nil), n.assignments(conn, pod("web-0"), nil)

	// Nothing to tell yet: alive, and no version.
	early, err := lb.ss.Recv()
	require.NoError(t, err)
	require.Equal(t, targetpoolv1.TargetFeedWatchResponse_KIND_HEARTBEAT, early.GetKind())
	require.Nil(t, early.GetVersion())
	quiet, err := tapa.Recv()
	require.NoError(t, err)
	require.Nil(t, quiet.GetVersion())
	require.Nil(t, quiet.GetAssignments())

	n.engine.Post(namespaceSynced)
	n.committed(lb)
	beat, err := lb.ss.Recv()
	require.NoError(t, err)
	require.Equal(t, targetpoolv1.TargetFeedWatchResponse_KIND_HEARTBEAT, beat.GetKind())
	require.Equal(t, lb.version.String(), beat.GetVersion().String())

	var list *targetpoolv1.TargetPoolWatchResponse
	for list.GetAssignments() == nil {
		list, err = tapa.Recv()
		require.NoError(t, err)
	}
	again, err := tapa.Recv()
	require.NoError(t, err)
	require.Nil(t, again.GetAssignments())
	require.Equal(t, list.GetVersion().String(), again.GetVersion().String())

	// Who resumes and missed nothing is told so.
	back := n.feed(conn, lb.version)
	beat, err = back.ss.Recv()
	require.NoError(t, err)
	require.Equal(t, targetpoolv1.TargetFeedWatchResponse_KIND_HEARTBEAT, beat.GetKind())
	require.Equal(t, lb.version.String(), beat.GetVersion().String())
}

func TestResumeGetsWhatWasMissed(t *testing.T) {
	n := start(t, setup{entries: stored(t, 50, 1)})
	conn := n.dial()
	lb := n.feed(conn, nil)
	n.committed(lb)
	n.enable(conn, registration(x2, 1, "172.16.0.1/24"))
	n.unregister(conn, registration(x1, 0, entryIPs(t, 7)...))

	back := n.feed(conn, lb.version)
	n.committed(back)
	require.Equal(t, targetpoolv1.TargetFeedWatchResponse_KIND_DELTA, back.kind)
	gone := slices.IndexFunc(back.changes, func(c *targetpoolv1.Change) bool { return c.GetTarget() == nil })
	require.Len(t, back.changes, 2)
	require.EqualValues(t, 7, back.changes[gone].GetId())
	require.Equal(t, "x2", back.changes[1-gone].GetTarget().GetStream())
}

func entryIPs(t *testing.T, i int) []string { return stored(t, i, 1)[i-1].IPs }
