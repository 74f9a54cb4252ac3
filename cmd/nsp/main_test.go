package main

import (
	"bytes"
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/cli"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The exit codes, by short names.
const (
	exitOK     = cli.ExitOK
	exitFailed = cli.ExitFailed
	exitUsage  = cli.ExitUsage
)

// ran is what a command did.
type ran struct {
	code           int
	stdout, stderr string
}

func command(t *testing.T, args ...string) ran {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code := execute(t.Context(), append([]string{"nsp"}, args...), &stdout, &stderr)
	return ran{code, stdout.String(), stderr.String()}
}

// fails asserts that a command ends with the code and says all the words.
func fails(t *testing.T, code int, args []string, words ...string) {
	t.Helper()
	r := command(t, args...)
	require.Equal(t, code, r.code, r.stderr)
	require.Empty(t, r.stdout)
	for _, w := range words {
		require.Contains(t, r.stderr, w)
	}
}

// fake answers as an NSP would.
type fake struct {
	targetpoolv1.UnimplementedInspectorServer
	targetpoolv1.UnimplementedTargetFeedServer
	targetpoolv1.UnimplementedTargetPoolServer

	pools   []*targetpoolv1.PoolInfo
	targets []*targetpoolv1.TargetInfo
	// asked is the stream of the last ListTargets.
	asked *targetpoolv1.Stream
	// err is the answer to everything, if set.
	err error
	// silent lets everything hang.
	silent bool
	// feed and lists are what watches send at once.
	feed  []*targetpoolv1.TargetFeedWatchResponse
	lists []*targetpoolv1.TargetPoolWatchResponse
}

func (f *fake) answer(ctx context.Context) error {
	if f.silent {
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err() // the client may not have given up yet
	}
	return f.err
}

func (f *fake) ListPools(ctx context.Context, req *targetpoolv1.ListPoolsRequest) (*targetpoolv1.ListPoolsResponse, error) {
	out := &targetpoolv1.ListPoolsResponse{}
	for _, p := range f.pools {
		if req.GetNamespace() == "" || req.GetNamespace() == p.GetNamespace() {
			out.Pools = append(out.Pools, p)
		}
	}
	return out, f.answer(ctx)
}

func (f *fake) ListTargets(ctx context.Context, req *targetpoolv1.ListTargetsRequest) (*targetpoolv1.ListTargetsResponse, error) {
	f.asked = req.GetStream()
	return &targetpoolv1.ListTargetsResponse{Targets: f.targets}, f.answer(ctx)
}

// feedServer and poolServer tell the two methods named Watch apart.
type (
	feedServer struct{ *fake }
	poolServer struct{ *fake }
)

func (f feedServer) Watch(_ *targetpoolv1.TargetFeedWatchRequest, ss grpc.ServerStreamingServer[targetpoolv1.TargetFeedWatchResponse]) error {
	for _, m := range f.feed {
		if err := ss.Send(m); err != nil {
			return err
		}
	}
	if f.err == nil {
		<-ss.Context().Done()
	}
	return f.err
}

func (f poolServer) Watch(ss grpc.BidiStreamingServer[targetpoolv1.TargetPoolWatchRequest, targetpoolv1.TargetPoolWatchResponse]) error {
	for _, m := range f.lists {
		if err := ss.Send(m); err != nil {
			return err
		}
	}
	if f.err == nil {
		<-ss.Context().Done()
	}
	return f.err
}

// serve starts the fake and returns its address.
func serve(t *testing.T, f *fake, opts ...grpc.ServerOption) string {
	s := grpc.NewServer(opts...)
	targetpoolv1.RegisterInspectorServer(s, f)
	targetpoolv1.RegisterTargetFeedServer(s, feedServer{f})
	targetpoolv1.RegisterTargetPoolServer(s, poolServer{f})
	return serveOn(t, s, "tcp", "127.0.0.1:0")
}

func serveOn(t *testing.T, s *grpc.Server, network, address string) string {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), network, address)
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		require.NoError(t, <-ended)
	})
	return l.Addr().String()
}

func streamNamed(name string) *targetpoolv1.Stream {
	return &targetpoolv1.Stream{Namespace: "red", Trench: "trench-a", Conduit: "lb", Name: name}
}

var causedAt = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

func example() *fake {
	return &fake{
		pools: []*targetpoolv1.PoolInfo{
			{
				Namespace: "red", Name: "web", Uid: "s1", Stream: streamNamed("http"), Accepted: true, Reason: "Accepted", Assignment: "membership",
				Draining: "remove", PanicThreshold: 30,
				Members: []*targetpoolv1.MemberInfo{
					{Namespace: "red", Pod: "web-0", Uid: "u0", Addresses: []string{"10.0.0.1", "fd00::1"}, Condition: "Ready", State: "ACTIVE", Assigned: true, Watched: true,
						Component: &targetpoolv1.Component{Cluster: "west", Namespace: "red", Service: "web"}},
					{Namespace: "red", Pod: "web-1", Uid: "u1", Addresses: []string{"10.0.0.2"}, Condition: "NotReady", State: "INACTIVE", Assigned: true},
					{Namespace: "red", Pod: "web-2", Uid: "u2", Addresses: []string{"10.0.0.3"}, Condition: "Ready", State: "ACTIVE", Withheld: true},
				},
				Problems: []string{"slice red/web-x: endpoint 3 has no address"},
			},
			{
				Namespace: "blue", Name: "db", Uid: "s2", Stream: streamNamed("sql"), Reason: "NotPermitted",
				Message: "namespace blue may not join red/trench-a/lb/sql", Assignment: "ready", Draining: "keep", Panic: true, PanicThreshold: 50,
			},
			{Namespace: "red", Name: "odd", Uid: "s3", Reason: "IncompleteLabels", Message: "label meridio.nordix.org/stream is empty"},
		},
		targets: []*targetpoolv1.TargetInfo{
			{
				Id: 1, Type: "DEFAULT", Stream: streamNamed("http"), Ips: []string{"172.16.0.1/24", "fd00:1::1/64"}, Identifier: "7", Status: "ENABLED",
				State: targetpoolv1.Target_STATE_ACTIVE, Reason: "Ready", Caused: timestamppb.New(causedAt), Pod: "red/web-0", PodUid: "u0", Binding: "Claim", Listed: true,
				Components: []*targetpoolv1.Component{
					{Cluster: "east", Namespace: "red", Service: "web"}, {Cluster: "west", Namespace: "red", Service: "web"},
				},
			},
			{
				Id: 2, Type: "DEFAULT", Stream: streamNamed("http"), Ips: []string{"172.16.0.2/24"}, Identifier: "7", Status: "DISABLED", Blocked: true,
				State: targetpoolv1.Target_STATE_INACTIVE, Reason: "WaitingForIdentifier",
			},
			{Id: 3, Type: "FRONTEND", Stream: &targetpoolv1.Stream{Namespace: "red"}, Ips: []string{"lb-0"}, Identifier: "lb-0", Status: "ENABLED"},
		},
	}
}
