// Package server answers gRPC calls from engine and registry. It knows no rule of its own beyond who may call what.
package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/feed"
	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// DefaultHeartbeat is how often a quiet watch repeats its version. A receiver that misses three takes its connection for dead.
const DefaultHeartbeat = 5 * time.Second

// HealthServices are the names under which health is asked, as in Meridio 1.x; the empty one is the whole.
var HealthServices = []string{"", "Startup", "Readiness", "Liveness"}

// Registry is what the server needs of the registry.
type Registry interface {
	Register(ctx context.Context, t registry.Target, c registry.Caller) error
	Unregister(ctx context.Context, t registry.Target, c registry.Caller) error
}

// Targets is what nsp.v1.TargetRegistry is watched by.
type Targets interface {
	// List watches the registrations that a filter selects. Its first value reflects every registration that was acknowledged
	// before. The watcher must be closed.
	List(ctx context.Context, f engine.Filter) (*feed.Watcher[engine.Filter, *engine.List], error)
}

// Observer is told what the server does, for metrics. Its methods must not block.
type Observer interface {
	// Watching is called when a watch of the method begins; what it returns is called at the end.
	Watching(method string) func()
	// Sent is called for each message of a watch.
	Sent(method string, bytes int)
	// Called is called when a call ends; code is the name of a gRPC code.
	Called(method, code string, took time.Duration)
}

// Config is what a server needs.
type Config struct {
	// Engine has pools, and serves TargetPool, TargetFeed and Inspector; nil leaves them out.
	Engine *engine.Engine
	// Targets and Registry serve nsp.v1.TargetRegistry; nil leaves it out.
	Targets  Targets
	Registry Registry
	// Reservations serves Reservation; nil leaves it out.
	Reservations Reserver
	// Configuration serves nsp.v1.ConfigurationManager; nil leaves it out.
	Configuration *Configuration
	// Configurations are served by it where there is no Configuration: those of the trenches of a namespace, to ExternalTargets. They
	// have no way to the process of a trench, which does not know them. nil leaves it out.
	Configurations *Configurations
	// Relay serves the trench processes of TrenchProcesses from Engine; nil leaves it out.
	Relay           RelayRegistry
	TrenchProcesses []auth.ServiceAccount
	// LoadBalancers may watch feeds; where there are none, every account of the NSP's namespace may. Inspectors may look into
	// everything. Both count where callers have accounts.
	LoadBalancers []LoadBalancer
	Inspectors    []auth.ServiceAccount
	// Permitted says whether an account of another namespace may have to do with a stream, or, where the key names no more than
	// the namespace, with any of this NSP; the error is auth.Deny(auth.NoGrant, ...). nil permits nothing.
	Permitted func(auth.ServiceAccount, stream.Key) error
	// ExternalTargets know whose identity is that of an ExternalTarget; nil knows none. PermittedTarget says of one of them what
	// Permitted says of an account.
	ExternalTargets *auth.Targets
	PermittedTarget func(auth.Target, stream.Key) error
	// LegacyRegistration says who may register under auth.Legacy; empty is LegacyAllow.
	LegacyRegistration LegacyRegistration
	// LegacyRegistered is called when somebody who proves no pod was let through, for metrics; optional.
	LegacyRegistered func()
	// Opened is closed when calls may be answered; those that come before wait, except for health. nil is at once.
	Opened <-chan struct{}
	// Namespaces are those that are watched, for people who look in; nil leaves them out.
	Namespaces func() []NamespaceState
	// Namespace is the NSP's own, Cluster the name of its cluster; empty where that has none.
	Namespace, Cluster string
	// Epoch names this run of the process in versions.
	Epoch string
	Auth  auth.Mode
	// Tokens verifies what callers show as authorization; nil looks at none.
	Tokens *auth.Tokens
	Limits Limits
	// Refused is told of each refusal, for metrics; optional. It must not block.
	Refused func(auth.Reason)
	// Heartbeat is how often a quiet watch repeats its version; 0 means DefaultHeartbeat.
	Heartbeat time.Duration
	// Credentials of the listener; nil is plaintext.
	Credentials credentials.TransportCredentials
	// Grace is how long calls may take to end when the server stops.
	Grace    time.Duration
	Observer Observer
	Log      *slog.Logger
}

// Server serves health and what its configuration has.
type Server struct {
	cfg    Config
	grpc   *grpc.Server
	health *health.Server
	// began is the origin of the clock of heartbeats.
	began time.Time
	// stopping is closed when watches shall end.
	stopping chan struct{}

	audience    audience
	slow        slow
	watches     counted[watchingAs]
	connections counted[netip.Addr]
	proofs      proofs
	sessions    auth.Sessions
	arrivals    arrivals
	// unaries are the methods that take one message.
	unaries map[string]bool
	// loud keeps a crowd of refused callers from filling the log, mistaken one whose calls make no sense.
	loud, mistaken rate.Sometimes
}

// New makes a server; it is not ready before Ready.
func New(cfg Config) *Server {
	cfg.Heartbeat = cmp.Or(cfg.Heartbeat, DefaultHeartbeat)
	s := &Server{
		cfg: cfg, health: health.NewServer(), began: time.Now(), stopping: make(chan struct{}),
		loud: rate.Sometimes{First: 20, Interval: time.Second}, mistaken: rate.Sometimes{First: 200, Interval: time.Second},
	}
	s.setHealth(grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	opts := []grpc.ServerOption{
		grpc.ForceServerCodecV2(newCodec()),
		grpc.InTapHandle(s.begun),
		grpc.ChainUnaryInterceptor(s.unary),
		grpc.ChainStreamInterceptor(s.stream),
		// Quiet 1.x clients ping every 20 s, and a client of ours may every 10 s: gRPC's default of 5 minutes would throw them out.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		// A receiver that is gone without a word is found in half a minute.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 20 * time.Second, Timeout: 10 * time.Second}),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxHeaderListSize(maxHeaders),
		// Small buffers: most of ten thousand connections say little. Those for writing are shared.
		grpc.ReadBufferSize(1 << 10), grpc.WriteBufferSize(8 << 10),
	}
	if n := cfg.Limits.RequestBytes; n > 0 {
		opts = append(opts, grpc.MaxRecvMsgSize(n))
	}
	if cfg.Credentials != nil {
		opts = append(opts, grpc.Creds(newOrderly(cfg.Credentials)))
	}
	s.grpc = grpc.NewServer(opts...)
	s.register()
	return s
}

// register adds the services that the configuration has.
func (s *Server) register() {
	if s.cfg.Engine != nil {
		targetpoolv1.RegisterTargetPoolServer(s.grpc, &targetPool{server: s})
		targetpoolv1.RegisterTargetFeedServer(s.grpc, &targetFeed{server: s})
		targetpoolv1.RegisterInspectorServer(s.grpc, &inspector{server: s})
	}
	if s.cfg.Targets != nil {
		nspv1.RegisterTargetRegistryServer(s.grpc, &targetRegistry{server: s})
	}
	if s.cfg.Reservations != nil {
		targetpoolv1.RegisterReservationServer(s.grpc, &reservation{server: s})
	}
	if s.cfg.Relay != nil {
		targetpoolv1.RegisterRelayServer(s.grpc, &relay{server: s})
	}
	if s.cfg.Configuration != nil || s.cfg.Configurations != nil {
		nspv1.RegisterConfigurationManagerServer(s.grpc, &configurationManager{server: s})
	}
	grpc_health_v1.RegisterHealthServer(s.grpc, s.health)
	s.unaries = make(map[string]bool)
	for service, info := range s.grpc.GetServiceInfo() {
		for _, m := range info.Methods {
			s.unaries["/"+service+"/"+m.Name] = !m.IsClientStream && !m.IsServerStream
		}
	}
}

// maxStreams bounds the calls that one connection may have open.
const maxStreams = 1000

// maxHeaders bounds the headers of a call, in bytes: a token is most of them.
const maxHeaders = 32 << 10

// Health answers probes elsewhere too, as on a unix socket.
func (s *Server) Health() grpc_health_v1.HealthServer { return s.health }

// Ready says that the server's state has been read.
func (s *Server) Ready() { s.setHealth(grpc_health_v1.HealthCheckResponse_SERVING) }

func (s *Server) setHealth(st grpc_health_v1.HealthCheckResponse_ServingStatus) {
	for _, name := range HealthServices {
		s.health.SetServingStatus(name, st)
	}
}

// Serve answers on the listener until ctx ends, or the listener fails. Then watches are told to connect again, other calls may finish
// within the grace, and the rest is cut.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	reviewing, stop := context.WithCancel(ctx)
	var reviewed sync.WaitGroup
	defer reviewed.Wait()
	defer stop()
	reviewed.Go(func() { s.review(reviewing) })
	served := make(chan error, 1)
	go func() {
		served <- s.grpc.Serve(limitedListener{l, s})
		stop()
	}()
	<-reviewing.Done()
	s.health.Shutdown()
	close(s.stopping)
	s.arrivals.stop()
	cut := time.AfterFunc(s.cfg.Grace, s.grpc.Stop)
	defer cut.Stop()
	s.grpc.GracefulStop()
	if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serving gRPC on %s: %w", l.Addr(), err)
	}
	return nil
}

func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	arrived(ctx)
	start := time.Now()
	caller := s.caller(ctx)
	var resp any
	err := s.enter(ctx, info.FullMethod, caller)
	if err == nil {
		resp, err = next(auth.With(ctx, caller), req)
	}
	return resp, s.end(ctx, info.FullMethod, caller, start, err)
}

func (s *Server) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	start := time.Now()
	caller := s.caller(ss.Context())
	err := s.enter(ss.Context(), info.FullMethod, caller)
	if err == nil {
		err = s.watching(srv, ss, info.FullMethod, caller, next)
	}
	return s.end(ss.Context(), info.FullMethod, caller, start, err)
}

// watching runs a stream, which ends at the latest when what its caller has proven does, or the pod that the caller is.
func (s *Server) watching(srv any, ss grpc.ServerStream, method string, c auth.Caller, next grpc.StreamHandler) error {
	done, err := s.beginWatch(c)
	if err != nil {
		return err
	}
	defer done()
	defer s.cfg.Observer.Watching(method)()
	ctx := auth.With(ss.Context(), c)
	if !c.Expires.IsZero() {
		var cancel context.CancelFunc
		ended := errTokenEnded
		if c.Target.UID != "" {
			ended = errCertificateEnded
		}
		ctx, cancel = context.WithDeadlineCause(ctx, c.Expires, ended)
		defer cancel()
	}
	if c.Pod.UID != "" {
		var end context.CancelCauseFunc
		ctx, end = context.WithCancelCause(ctx)
		defer end(nil)
		defer s.proofs.hold(ss.Context(), c, end)()
	}
	if c.Target.UID != "" {
		var end context.CancelCauseFunc
		ctx, end = context.WithCancelCause(ctx)
		defer end(nil)
		defer s.cfg.ExternalTargets.Hold(c.Identity, c.Target, end)()
	}
	call := &callStream{ServerStream: ss, ctx: ctx, method: method, observer: s.cfg.Observer, stopping: s.stopping}
	defer s.slow.watch(call)()
	err = next(srv, call)
	if cause := context.Cause(ctx); errors.Is(cause, auth.ErrUnproven) || errors.Is(cause, auth.ErrDenied) {
		return cause
	}
	return err
}

// enter lets a call in that is allowed, when the server is open.
func (s *Server) enter(ctx context.Context, method string, c auth.Caller) error {
	if err := admit(&s.cfg, method, c); err != nil {
		return err
	}
	if s.cfg.Opened == nil || strings.HasPrefix(method, healthPrefix) {
		return nil
	}
	select {
	case <-s.cfg.Opened:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for the NSP to have read its state: %w", ctx.Err())
	case <-s.stopping:
		return errStopping
	}
}

// healthPrefix begins the methods of health.
const healthPrefix = "/grpc.health.v1.Health/"

// end turns the error of a call into its status, counts it, and logs it: what the caller did is debug, what we failed at is
// an error. Of many refusals some are logged, and of many mistakes.
func (s *Server) end(ctx context.Context, method string, c auth.Caller, start time.Time, err error) error {
	st := toStatus(err)
	code := status.Code(st)
	s.cfg.Observer.Called(method, code.String(), time.Since(start))
	if err == nil {
		return nil
	}
	attrs := []any{"method", method, "peer", c.Addr, "code", code.String(), "error", brief(err.Error())}
	if !c.SPIFFEID.IsZero() {
		attrs = append(attrs, "spiffe_id", c.SPIFFEID.String())
	}
	if c.Account != (auth.ServiceAccount{}) {
		attrs = append(attrs, "account", c.Account.String(), "pod", c.Pod.Name)
	}
	if c.Target.UID != "" {
		attrs = append(attrs, "externaltarget", c.Target.String())
	}
	log := func() { s.cfg.Log.Log(ctx, levelOf(code), "call failed", attrs...) }
	switch why := reasonOf(err); {
	case why != "":
		s.refused(why)
		s.loud.Do(log)
	case levelOf(code) == slog.LevelWarn:
		s.mistaken.Do(log)
	default:
		log()
	}
	return st
}

// reasonOf is why somebody was refused, empty where an error is no refusal.
func reasonOf(err error) auth.Reason {
	if refusal, ok := errors.AsType[*auth.Refusal](err); ok {
		return refusal.Reason
	}
	if errors.Is(err, registry.ErrForeign) {
		return auth.OtherPod
	}
	if errors.Is(err, registry.ErrTooMany) {
		return auth.TooManyTargets
	}
	return ""
}

func (s *Server) refused(why auth.Reason) {
	if s.cfg.Refused != nil {
		s.cfg.Refused(why)
	}
}
