package client

import (
	"context"
	"log/slog"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/test/bufconn"

	pb "github.com/nordix/meridio-nsp/api/targetpool/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// call is one stream that reached the fake server. The test plays the server.
type call[Req, Resp any] struct {
	ctx context.Context
	// requests are all that came, the first included.
	requests chan *Req
	send     func(*Resp) error
	end      chan error
}

// finish ends the stream with an error, or cleanly.
func (c *call[Req, Resp]) finish(err error) { c.end <- err }

func (c *call[Req, Resp]) wait() error {
	select {
	case <-c.ctx.Done():
		return nil
	case err := <-c.end:
		return err
	}
}

type (
	feedCall = call[pb.TargetFeedWatchRequest, pb.TargetFeedWatchResponse]
	poolCall = call[pb.TargetPoolWatchRequest, pb.TargetPoolWatchResponse]
)

type fake struct {
	pb.UnimplementedTargetFeedServer
	feeds chan *feedCall
	pools chan *poolCall
}

func newFake() *fake {
	return &fake{feeds: make(chan *feedCall, 100), pools: make(chan *poolCall, 100)}
}

func (f *fake) Watch(req *pb.TargetFeedWatchRequest, stream grpc.ServerStreamingServer[pb.TargetFeedWatchResponse]) error {
	c := &feedCall{ctx: stream.Context(), send: stream.Send, end: make(chan error, 1), requests: make(chan *pb.TargetFeedWatchRequest, 1)}
	c.requests <- req
	f.feeds <- c
	return c.wait()
}

type fakePool struct {
	pb.UnimplementedTargetPoolServer
	*fake
}

func (f fakePool) Watch(stream grpc.BidiStreamingServer[pb.TargetPoolWatchRequest, pb.TargetPoolWatchResponse]) error {
	c := &poolCall{ctx: stream.Context(), send: stream.Send, end: make(chan error, 1), requests: make(chan *pb.TargetPoolWatchRequest, 100)}
	go func() {
		defer close(c.requests)
		for {
			req, err := stream.Recv()
			if err != nil {
				return
			}
			c.requests <- req
		}
	}()
	f.pools <- c
	return c.wait()
}

// serve serves the fake until the function returned is called, which cuts all connections.
func (f *fake) serve(l net.Listener, options ...grpc.ServerOption) (stop func()) {
	options = append(options, grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 9 * time.Second, PermitWithoutStream: true}))
	s := grpc.NewServer(options...)
	pb.RegisterTargetFeedServer(s, f)
	pb.RegisterTargetPoolServer(s, fakePool{fake: f})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	return func() {
		s.Stop()
		<-done
	}
}

func loopback(t testing.TB, address string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", address)
	require.NoError(t, err)
	return l
}

func testConfig(address string) Config {
	return Config{
		Address:     address,
		Credentials: insecure.NewCredentials(),
		Backoff:     Backoff{Base: time.Millisecond, Max: 20 * time.Millisecond},
		Log:         slog.New(slog.DiscardHandler),
	}
}

// inMemory makes a configuration for a server in the same synctest bubble, with the default times.
func inMemory(l *bufconn.Listener) Config {
	c := testConfig("passthrough:///memory")
	c.Backoff = Backoff{}
	c.DialOptions = []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		return l.DialContext(ctx)
	})}
	return c
}

// bubble runs a test with a fake clock and an in-memory server.
func bubble(t *testing.T, test func(t *testing.T, f *fake, config Config)) {
	synctest.Test(t, func(t *testing.T) {
		f, l := newFake(), bufconn.Listen(1<<20)
		stop := f.serve(l)
		defer stop()
		test(t, f, inMemory(l))
	})
}

var testConduit = &pb.Conduit{Namespace: "red", Trench: "trench-a", Name: "conduit-1"}

// follow runs a Feed until the test ends. Updates come out of the channel.
func follow(t testing.TB, config Config) (*Feed, chan Update) {
	t.Helper()
	c, err := New(config)
	require.NoError(t, err)
	updates := make(chan Update, 1000)
	feed, err := c.WatchFeed(FeedConfig{Conduit: testConduit, Handler: func(u Update) { updates <- u }})
	require.NoError(t, err)
	runUntilCleanup(t, feed.Run)
	return feed, updates
}

func runUntilCleanup(t testing.TB, run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
}

// next takes one value from a channel. The timeout only ends a test that fails.
func next[T any](t testing.TB, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(20 * time.Second):
		require.FailNow(t, "nothing came")
		panic("unreachable")
	}
}

// nextFeed is the next feed stream, with its request.
func nextFeed(t testing.TB, f *fake) (*feedCall, *pb.TargetFeedWatchRequest) {
	t.Helper()
	c := next(t, f.feeds)
	return c, <-c.requests
}

func version(epoch string, revision uint64) *pb.Version {
	return &pb.Version{Epoch: epoch, Revision: revision}
}

func target(stream string, identifier uint32, addresses ...string) *pb.Target {
	return &pb.Target{Stream: stream, Identifier: identifier, Addresses: addresses, State: pb.Target_STATE_ACTIVE, Reason: "Ready"}
}

func set(id uint64, t *pb.Target) *pb.Change { return &pb.Change{Id: id, Target: t} }

func snapshot(v *pb.Version, changes ...*pb.Change) *pb.TargetFeedWatchResponse {
	return &pb.TargetFeedWatchResponse{Kind: pb.TargetFeedWatchResponse_KIND_SNAPSHOT, Version: v, Commit: v != nil, Changes: changes}
}

func delta(v *pb.Version, changes ...*pb.Change) *pb.TargetFeedWatchResponse {
	return &pb.TargetFeedWatchResponse{Kind: pb.TargetFeedWatchResponse_KIND_DELTA, Version: v, Commit: v != nil, Changes: changes}
}

func heartbeat(v *pb.Version) *pb.TargetFeedWatchResponse {
	return &pb.TargetFeedWatchResponse{Kind: pb.TargetFeedWatchResponse_KIND_HEARTBEAT, Version: v}
}

// play sends messages in order.
func play[Req, Resp any](t testing.TB, c *call[Req, Resp], messages ...*Resp) {
	t.Helper()
	for _, m := range messages {
		require.NoError(t, c.send(m))
	}
}

func names(targets []*Target) []string {
	out := []string{}
	for _, t := range targets {
		out = append(out, t.Key.Stream+" "+t.Key.Addresses)
	}
	return out
}
