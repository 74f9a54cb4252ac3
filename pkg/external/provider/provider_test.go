package provider

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	resolverv1 "github.com/nordix/meridio-nsp/api/resolver/v1"
	"github.com/nordix/meridio-nsp/pkg/external"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a provider that does as told, one order after the other: a message, or an error that ends the stream.
type fake struct {
	resolverv1.UnimplementedResolverServer
	orders chan any
	opened chan string
}

func (f *fake) Watch(r *resolverv1.WatchRequest, stream grpc.ServerStreamingServer[resolverv1.WatchResponse]) error {
	select {
	case f.opened <- r.GetLocator():
	case <-stream.Context().Done():
		return nil
	}
	for {
		select {
		case <-stream.Context().Done():
			return nil
		case order := <-f.orders:
			switch order := order.(type) {
			case error:
				return order
			case *resolverv1.WatchResponse:
				if err := stream.Send(order); err != nil {
					return err
				}
			case nil:
				return nil
			}
		}
	}
}

// scene is a source that follows a provider on a unix socket.
type scene struct {
	*testing.T
	*fake
	socket  string
	server  *grpc.Server
	serving sync.WaitGroup
	mu      sync.Mutex
	reports []string // not awaited yet
}

func newScene(t *testing.T, patience time.Duration) *scene {
	t.Helper()
	s := &scene{T: t, fake: &fake{orders: make(chan any), opened: make(chan string, 1)},
		socket: filepath.Join(t.TempDir(), "s")}
	s.start()
	conn, err := grpc.NewClient("unix://"+s.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	source := New(Config{Conn: conn, Name: "azure", Locator: "/subscriptions/e3f0", Patience: patience,
		MinPause: time.Millisecond, MaxPause: 10 * time.Millisecond})
	running.Go(func() { source.Run(ctx, s.report) })
	t.Cleanup(func() { cancel(); running.Wait(); conn.Close(); s.stop() })
	return s
}

func (s *scene) start() {
	listener, err := net.Listen("unix", s.socket)
	require.NoError(s, err)
	s.server = grpc.NewServer()
	resolverv1.RegisterResolverServer(s.server, s.fake)
	s.serving.Go(func() { _ = s.server.Serve(listener) })
}

func (s *scene) stop() { s.server.Stop(); s.serving.Wait() }

func show(r external.Report) string {
	if r.Failure != nil {
		return r.Failure.Reason + ": " + r.Failure.Message
	}
	var parts []string
	for _, e := range r.Endpoints {
		parts = append(parts, fmt.Sprintf("%s %t %t %t %s", e.Addr, e.Ready, e.Serving, e.Terminating, e.Identity))
	}
	return strings.Join(parts, ", ")
}

func (s *scene) report(r external.Report) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reports = append(s.reports, show(r))
}

// await waits for a report that says so, after the one awaited before.
func (s *scene) await(want string) {
	s.Helper()
	require.Eventually(s, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		i := slices.IndexFunc(s.reports, func(got string) bool { return strings.Contains(got, want) && (want != "" || got == "") })
		s.reports = s.reports[i+1:]
		return i >= 0
	}, 5*time.Second, time.Millisecond, "%s", want)
}

func answer(readiness resolverv1.Readiness, addrs ...string) *resolverv1.WatchResponse {
	r := &resolverv1.WatchResponse{}
	for _, a := range addrs {
		r.Endpoints = append(r.Endpoints, &resolverv1.Endpoint{Address: a, Readiness: readiness, Identity: "spiffe://a/b"})
	}
	return r
}

func TestFollows(t *testing.T) {
	s := newScene(t, time.Minute)
	require.Equal(t, "/subscriptions/e3f0", <-s.opened)
	s.orders <- answer(resolverv1.Readiness_READINESS_READY, "192.0.2.1", "2001:db8::1")
	s.await("192.0.2.1 true true false spiffe://a/b, 2001:db8::1 true true false spiffe://a/b")
	s.orders <- answer(resolverv1.Readiness_READINESS_DRAINING, "192.0.2.1")
	s.await("192.0.2.1 false true true")
	s.orders <- answer(resolverv1.Readiness_READINESS_UNSPECIFIED, "192.0.2.1")
	s.await("192.0.2.1 false false false")
	s.orders <- answer(0)
	s.await("") // nothing is an answer
}

func TestNonsenseIsNoAnswer(t *testing.T) {
	s := newScene(t, time.Minute)
	<-s.opened
	for says, nonsense := range map[string]*resolverv1.WatchResponse{
		"is no address":        answer(resolverv1.Readiness_READINESS_READY, "192.0.2.1", "vm-1.example"),
		"the validity":         {Validity: &durationpb.Duration{Seconds: -1}},
		"longer than 2048":     {Endpoints: []*resolverv1.Endpoint{{Address: "192.0.2.1", Identity: strings.Repeat("x", 2049)}}},
		`"" is no address`:     {Endpoints: []*resolverv1.Endpoint{{}}},
		"validity is no durat": {Validity: &durationpb.Duration{Seconds: 1, Nanos: -1}},
	} {
		s.orders <- nonsense
		s.await(says)
	}
	s.orders <- answer(resolverv1.Readiness_READINESS_READY, "192.0.2.1")
	s.await("192.0.2.1 true")
}

func TestRefusalsAreTold(t *testing.T) {
	s := newScene(t, time.Minute)
	for want, err := range map[string]error{
		external.ReasonLocatorRefused + ": Provider azure answers NotFound: no such set":  status.Error(codes.NotFound, "no such set"),
		external.ReasonProviderUnavailable + ": Provider azure answers ResourceExhausted": status.Error(codes.ResourceExhausted, "429"),
		external.ReasonProviderInvalid: status.Error(codes.Internal, "panic"),
		"has ended the stream":         nil,
	} {
		<-s.opened
		if err == nil {
			s.orders <- nil
		} else {
			s.orders <- err
		}
		s.await(want)
	}
}

func TestSilence(t *testing.T) {
	s := newScene(t, 20*time.Millisecond)
	<-s.opened
	s.await("says nothing") // slow
	s.orders <- &resolverv1.WatchResponse{Validity: durationpb.New(20 * time.Millisecond),
		Endpoints: answer(resolverv1.Readiness_READINESS_READY, "192.0.2.1").Endpoints}
	s.await("192.0.2.1")
	s.await("says nothing") // and then not again in time
	s.orders <- answer(resolverv1.Readiness_READINESS_READY, "192.0.2.2")
	s.await("192.0.2.2")
}

func TestAwayAndBack(t *testing.T) {
	s := newScene(t, time.Minute)
	<-s.opened
	s.orders <- answer(resolverv1.Readiness_READINESS_READY, "192.0.2.1")
	s.await("192.0.2.1")
	s.stop()
	s.await(external.ReasonProviderUnavailable)
	s.start()
	<-s.opened
	s.orders <- answer(resolverv1.Readiness_READINESS_READY, "192.0.2.2")
	s.await("192.0.2.2")
}
