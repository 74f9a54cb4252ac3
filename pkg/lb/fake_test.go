package lb

import (
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
)

// fakeNSP says what a test wants, as both processes of the NSP.
type fakeNSP struct {
	nspv1.UnimplementedConfigurationManagerServer
	nspv1.UnimplementedTargetRegistryServer
	t       *testing.T
	address string
	server  *grpc.Server
	serving sync.WaitGroup

	mu       sync.Mutex
	changed  chan struct{}
	epoch    string
	revision uint64
	vips     []*nspv1.Vip
	conduit  *nspv1.Conduit
	streams  []*nspv1.Stream
	flows    []*nspv1.Flow
	targets  map[uint64]*targetpoolv1.Target
	legacy   []*nspv1.Target
	sources  []*targetpoolv1.StreamSources
}

func startFake(t *testing.T) *fakeNSP {
	n := &fakeNSP{
		t: t, changed: make(chan struct{}), epoch: "e1", targets: map[uint64]*targetpoolv1.Target{}, address: "127.0.0.1:0",
		conduit: &nspv1.Conduit{Name: "load-balancer", Trench: &nspv1.Trench{Name: "trench-a"}},
	}
	n.start()
	t.Cleanup(n.stop)
	return n
}

func (n *fakeNSP) start() {
	var l net.Listener
	require.Eventually(n.t, func() (ok bool) {
		var err error
		l, err = net.Listen("tcp", n.address)
		return err == nil
	}, 5*time.Second, 10*time.Millisecond)
	n.address = l.Addr().String()
	n.server = grpc.NewServer()
	nspv1.RegisterConfigurationManagerServer(n.server, n)
	nspv1.RegisterTargetRegistryServer(n.server, n)
	targetpoolv1.RegisterTargetFeedServer(n.server, &fakeFeed{n: n})
	server := n.server
	n.serving.Go(func() { _ = server.Serve(l) })
}

func (n *fakeNSP) stop() {
	n.server.Stop()
	n.serving.Wait()
}

func (n *fakeNSP) set(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
	n.revision++
	close(n.changed)
	n.changed = make(chan struct{})
}

// watch sends what get says at once and after every change.
func watch[T any](n *fakeNSP, stream grpc.ServerStreamingServer[T], get func() *T) error {
	for {
		n.mu.Lock()
		m, changed := get(), n.changed
		n.mu.Unlock()
		if err := stream.Send(m); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (n *fakeNSP) WatchVip(_ *nspv1.Vip, s grpc.ServerStreamingServer[nspv1.VipResponse]) error {
	return watch(n, s, func() *nspv1.VipResponse { return &nspv1.VipResponse{Vips: n.vips} })
}

func (n *fakeNSP) WatchConduit(_ *nspv1.Conduit, s grpc.ServerStreamingServer[nspv1.ConduitResponse]) error {
	return watch(n, s, func() *nspv1.ConduitResponse { return &nspv1.ConduitResponse{Conduits: []*nspv1.Conduit{n.conduit}} })
}

func (n *fakeNSP) WatchStream(_ *nspv1.Stream, s grpc.ServerStreamingServer[nspv1.StreamResponse]) error {
	return watch(n, s, func() *nspv1.StreamResponse { return &nspv1.StreamResponse{Streams: n.streams} })
}

func (n *fakeNSP) WatchFlow(_ *nspv1.Flow, s grpc.ServerStreamingServer[nspv1.FlowResponse]) error {
	return watch(n, s, func() *nspv1.FlowResponse { return &nspv1.FlowResponse{Flows: n.flows} })
}

func (n *fakeNSP) Watch(_ *nspv1.Target, s grpc.ServerStreamingServer[nspv1.TargetResponse]) error {
	return watch(n, s, func() *nspv1.TargetResponse { return &nspv1.TargetResponse{Targets: n.legacy} })
}

// fakeFeed sends everything as a snapshot, which the client compares.
type fakeFeed struct {
	targetpoolv1.UnimplementedTargetFeedServer
	n *fakeNSP
}

func (f *fakeFeed) Watch(_ *targetpoolv1.TargetFeedWatchRequest, s grpc.ServerStreamingServer[targetpoolv1.TargetFeedWatchResponse]) error {
	return watch(f.n, s, func() *targetpoolv1.TargetFeedWatchResponse {
		m := &targetpoolv1.TargetFeedWatchResponse{
			Kind: targetpoolv1.TargetFeedWatchResponse_KIND_SNAPSHOT, Commit: true,
			Version: &targetpoolv1.Version{Epoch: f.n.epoch, Revision: f.n.revision}, Sources: f.n.sources,
		}
		for id, t := range f.n.targets {
			m.Changes = append(m.Changes, &targetpoolv1.Change{Id: id, Target: proto.CloneOf(t)})
		}
		return m
	})
}

// target sets the state of a target.
func (n *fakeNSP) target(id int, state targetpoolv1.Target_State, addresses ...string) {
	n.set(func() {
		n.targets[uint64(id)] = &targetpoolv1.Target{
			Stream: "stream-a", Identifier: uint32(id), Addresses: addresses, State: state, Caused: timestamppb.Now(),
		}
	})
}
