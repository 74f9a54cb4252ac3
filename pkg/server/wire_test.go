package server

import (
	"context"
	"strconv"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

func wire(k stream.Key) *nspv1.Stream {
	return &nspv1.Stream{Name: k.Name, Conduit: &nspv1.Conduit{Name: k.Conduit, Trench: &nspv1.Trench{Name: k.Trench}}}
}

// registration is what a TAPA registers.
func registration(k stream.Key, identifier int, ips ...string) *nspv1.Target {
	return &nspv1.Target{
		Ips: ips, Context: map[string]string{"identifier": strconv.Itoa(identifier)}, Stream: wire(k),
	}
}

// with is a copy with something changed.
func with(t *nspv1.Target, edit func(*nspv1.Target)) *nspv1.Target {
	t = proto.CloneOf(t)
	edit(t)
	return t
}

func disabled(t *nspv1.Target) *nspv1.Target {
	return with(t, func(t *nspv1.Target) { t.Status = nspv1.Target_DISABLED })
}

// register registers as it is asked, once.
func (n *nsp) register(conn grpc.ClientConnInterface, t *nspv1.Target) {
	n.Helper()
	_, err := nspv1.NewTargetRegistryClient(conn).Register(n.ctx(), t)
	require.NoError(n, err)
}

// enable registers twice: the first one is stored DISABLED.
func (n *nsp) enable(conn grpc.ClientConnInterface, t *nspv1.Target) {
	n.Helper()
	n.register(conn, t)
	n.register(conn, t)
}

func (n *nsp) unregister(conn grpc.ClientConnInterface, t *nspv1.Target) {
	n.Helper()
	_, err := nspv1.NewTargetRegistryClient(conn).Unregister(n.ctx(), t)
	require.NoError(n, err)
}

type legacyWatch = grpc.ServerStreamingClient[nspv1.TargetResponse]

func (n *nsp) legacy(conn grpc.ClientConnInterface, filter *nspv1.Target) legacyWatch {
	n.Helper()
	ss, err := nspv1.NewTargetRegistryClient(conn).Watch(n.ctx(), filter)
	require.NoError(n, err)
	return ss
}

// next is the next list of a legacy watch.
func (n *nsp) next(ss legacyWatch) []*nspv1.Target {
	n.Helper()
	m, err := ss.Recv()
	require.NoError(n, err)
	return m.GetTargets()
}

// read is the first list of a new watch, as a TAPA reads.
func (n *nsp) read(conn grpc.ClientConnInterface, filter *nspv1.Target) []*nspv1.Target {
	n.Helper()
	ctx, cancel := context.WithCancel(n.ctx())
	defer cancel()
	ss, err := nspv1.NewTargetRegistryClient(conn).Watch(ctx, filter)
	require.NoError(n, err)
	return n.next(ss)
}

// equal compares lists of messages.
func equal[M proto.Message](n *nsp, want, have []M) {
	n.Helper()
	require.Len(n, have, len(want))
	for i := range want {
		if !proto.Equal(want[i], have[i]) {
			n.Fatalf("element %d\n have %v\n want %v", i, have[i], want[i])
		}
	}
}

// receiver is a load balancer in its plainest form.
type receiver struct {
	ss      grpc.ServerStreamingClient[targetpoolv1.TargetFeedWatchResponse]
	targets map[uint64]*targetpoolv1.Target
	version *targetpoolv1.Version
	// kind and changes are those of the last commit; pieces and bytes count all messages, biggest is the greatest of them.
	kind                   targetpoolv1.TargetFeedWatchResponse_Kind
	changes                []*targetpoolv1.Change
	pieces, bytes, biggest int
	heartbeats             []*targetpoolv1.Version
}

var conduitA = &targetpoolv1.Conduit{Trench: "trench-a", Name: "conduit-a"}

func (n *nsp) feed(conn grpc.ClientConnInterface, resume *targetpoolv1.Version) *receiver {
	n.Helper()
	return n.feedWith(n.ctx(), conn, resume)
}

func (n *nsp) feedWith(ctx context.Context, conn grpc.ClientConnInterface, resume *targetpoolv1.Version) *receiver {
	n.Helper()
	ss, err := targetpoolv1.NewTargetFeedClient(conn).Watch(ctx, &targetpoolv1.TargetFeedWatchRequest{Conduit: conduitA, Resume: resume})
	require.NoError(n, err)
	return &receiver{ss: ss, targets: map[uint64]*targetpoolv1.Target{}}
}

// commit reads up to the next commit and applies it.
func (r *receiver) commit() error {
	r.changes = nil
	for {
		m, err := r.ss.Recv()
		if err != nil {
			return err
		}
		if m.GetKind() == targetpoolv1.TargetFeedWatchResponse_KIND_HEARTBEAT {
			r.heartbeats = append(r.heartbeats, m.GetVersion())
			continue
		}
		size := proto.Size(m)
		r.pieces, r.bytes, r.biggest = r.pieces+1, r.bytes+size, max(r.biggest, size)
		r.changes = append(r.changes, m.GetChanges()...)
		if m.GetCommit() {
			r.apply(m)
			return nil
		}
	}
}

func (r *receiver) apply(m *targetpoolv1.TargetFeedWatchResponse) {
	r.kind, r.version = m.GetKind(), m.GetVersion()
	if r.kind == targetpoolv1.TargetFeedWatchResponse_KIND_SNAPSHOT {
		clear(r.targets)
	}
	for _, c := range r.changes {
		if c.GetTarget() == nil {
			delete(r.targets, c.GetId())
		} else {
			r.targets[c.GetId()] = c.GetTarget()
		}
	}
}

func (n *nsp) committed(r *receiver) {
	n.Helper()
	require.NoError(n, r.commit())
}

// until reads commits until the receiver's state is as wanted.
func (r *receiver) until(wanted func(map[uint64]*targetpoolv1.Target) bool) error {
	for !wanted(r.targets) || r.version == nil {
		if err := r.commit(); err != nil {
			return err
		}
	}
	return nil
}

// active counts the active targets.
func active(targets map[uint64]*targetpoolv1.Target) (count int) {
	for _, t := range targets {
		if t.GetState() == targetpoolv1.Target_STATE_ACTIVE {
			count++
		}
	}
	return count
}

type poolClient = grpc.BidiStreamingClient[targetpoolv1.TargetPoolWatchRequest, targetpoolv1.TargetPoolWatchResponse]

func (n *nsp) assignments(conn grpc.ClientConnInterface, w *targetpoolv1.Workload, r *targetpoolv1.Report) poolClient {
	n.Helper()
	ss, err := targetpoolv1.NewTargetPoolClient(conn).Watch(n.ctx())
	require.NoError(n, err)
	require.NoError(n, ss.Send(&targetpoolv1.TargetPoolWatchRequest{Workload: w, Report: r}))
	return ss
}
