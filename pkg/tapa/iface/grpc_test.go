package iface

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
)

// server is an NSP that lists what the test says.
type server struct {
	nspv1.UnimplementedTargetRegistryServer
	nspv1.UnimplementedConfigurationManagerServer
	mu      sync.Mutex
	targets []*nspv1.Target
	filter  *nspv1.Target
	// refusal is the answer to every Register, if it is set.
	refusal error
	// end ends WatchStream.
	end chan struct{}
}

func (s *server) Register(_ context.Context, t *nspv1.Target) (*emptypb.Empty, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refusal != nil {
		return nil, s.refusal
	}
	s.targets = append(s.targets, t)
	return &emptypb.Empty{}, nil
}

func (s *server) Watch(filter *nspv1.Target, out grpc.ServerStreamingServer[nspv1.TargetResponse]) error {
	s.mu.Lock()
	s.filter = filter
	r := &nspv1.TargetResponse{Targets: s.targets}
	s.mu.Unlock()
	if err := out.Send(r); err != nil {
		return err
	}
	<-out.Context().Done()
	return nil
}

func (s *server) WatchVip(_ *nspv1.Vip, out grpc.ServerStreamingServer[nspv1.VipResponse]) error {
	if err := out.Send(&nspv1.VipResponse{Vips: []*nspv1.Vip{{Address: "20.0.0.1/32"}, {Address: "fax"}, {Address: "2000::9/120"}}}); err != nil {
		return err
	}
	<-out.Context().Done()
	return nil
}

func (s *server) WatchStream(_ *nspv1.Stream, out grpc.ServerStreamingServer[nspv1.StreamResponse]) error {
	c := &nspv1.Conduit{Name: "c"}
	r := &nspv1.StreamResponse{Streams: []*nspv1.Stream{{Name: "one", Conduit: c, MaxTargets: 3}, {Name: "two", Conduit: c}}}
	if err := out.Send(r); err != nil {
		return err
	}
	<-s.end
	return nil
}

func serve(t *testing.T) (*server, string, func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s, g := &server{end: make(chan struct{})}, grpc.NewServer()
	nspv1.RegisterTargetRegistryServer(g, s)
	nspv1.RegisterConfigurationManagerServer(g, s)
	done := make(chan struct{})
	go func() { defer close(done); _ = g.Serve(l) }()
	stop := sync.OnceFunc(func() { g.Stop(); <-done })
	t.Cleanup(stop)
	return s, l.Addr().String(), stop
}

// Only an ENABLED entry with just these addresses is the target's; who cannot be reached is dialled anew.
func TestRegistry(t *testing.T) {
	s, address, stop := serve(t)
	cfg := config(t)
	cfg.Server, cfg.Credentials = address, insecure.NewCredentials()
	n, err := newNSP(cfg)
	require.NoError(t, err)
	defer n.close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	id, err := n.enabled(ctx, one, self)
	require.NoError(t, err)
	require.Zero(t, id)
	require.NoError(t, n.enable(ctx, one, self[:1], 3))
	disabled := target(one, self, 4)
	disabled.Status = nspv1.Target_DISABLED
	s.mu.Lock()
	s.targets = append(s.targets, disabled)
	s.mu.Unlock()
	id, err = n.enabled(ctx, one, self)
	require.NoError(t, err)
	require.Zero(t, id)
	require.NoError(t, n.enable(ctx, one, self, 5))
	id, err = n.enabled(ctx, one, self)
	require.NoError(t, err)
	require.Equal(t, uint32(5), id)
	s.mu.Lock()
	require.Equal(t, nspv1.Target_ANY, s.filter.GetStatus())
	require.Equal(t, "one", s.filter.GetStream().GetName())
	s.mu.Unlock()

	before := n.conn
	stop()
	err = n.unregister(ctx, one, self, 5)
	require.Equal(t, codes.Unavailable, status.Code(err), err)
	require.NotSame(t, before, n.conn)
	require.ErrorContains(t, err, address)
}

// A certificate that does not count any more is on a connection that would last for ever; one that may not do something is good.
func TestRegistryConnectsWithTheNextCertificate(t *testing.T) {
	s, address, _ := serve(t)
	cfg := config(t)
	cfg.Server, cfg.Credentials = address, insecure.NewCredentials()
	n, err := newNSP(cfg)
	require.NoError(t, err)
	defer n.close()
	for code, kept := range map[codes.Code]bool{codes.Unauthenticated: false, codes.PermissionDenied: true} {
		before, err := n.dialled()
		require.NoError(t, err)
		s.mu.Lock()
		s.refusal = status.Error(code, "no")
		s.mu.Unlock()
		require.Equal(t, code, status.Code(n.enable(t.Context(), one, self, 1)))
		require.Equal(t, kept, before == n.conn, code)
	}
}

// Settings are told when all is known; a VIP that cannot be read spoils only itself. The watch ends with either of its parts. // P3
func TestManager(t *testing.T) {
	server, address, _ := serve(t)
	m := &manager{address: func(string) string { return address }, credentials: insecure.NewCredentials()}
	var told *settings
	err := m.watch(t.Context(), "a", func(s *settings) {
		told = s
		close(server.end)
	})
	require.ErrorContains(t, err, "EOF")
	require.Equal(t, prefixList("20.0.0.1/32", "2000::/120"), told.VIPs)
	require.Equal(t, map[string]uint32{"c/one": 3, "c/two": 100}, told.Limits)
	cfg := Config{Namespace: "red"}.withDefaults()
	require.Equal(t, "nsp-service-a.red:7778", cfg.trenchServer("a"))
}
