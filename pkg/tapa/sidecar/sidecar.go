// Package sidecar puts the sidecar together: what the NSP assigns and the application asks for goes to a Reconciler, and
// what becomes of it to the NSP, the application, probes, metrics and people.
package sidecar

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	ambassadorv1 "github.com/nordix/meridio-nsp/api/ambassador/v1"
	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/listener"
	"github.com/nordix/meridio-nsp/pkg/stream"
	"github.com/nordix/meridio-nsp/pkg/tapa"
	"github.com/nordix/meridio-nsp/pkg/tapa/tap"
	"github.com/nordix/meridio-nsp/pkg/targetpool/client"
)

// Sidecar is the process in the pod.
type Sidecar struct {
	cfg        Config
	log        *slog.Logger
	reconciler *tapa.Reconciler
	assigned   *client.Assignments
	metrics    *metrics
	health     *health.Server
	// addresses are the latest ones.
	addresses chan []string
	listeners listeners
}

// State is who wants which stream, which this sidecar alone has in its hands.
type State struct {
	file  *tapa.File
	saved tapa.State
}

// OpenState reads the state file. The error wraps filelock.ErrInUse where another sidecar has it; this one must then do nothing, and
// so the state is opened before the connector.
func OpenState(path string, log *slog.Logger) (*State, error) {
	file, saved, damaged, err := tapa.OpenFile(path)
	if err != nil {
		return nil, err
	}
	switch {
	case damaged != nil:
		log.Error("who wants which stream is learned anew from what is open", "error", damaged)
	case saved.Lost:
		log.Info("there is no state file yet", "file", path)
	}
	return &State{file, saved}, nil
}

// Close lets another sidecar have the state file.
func (s *State) Close() { s.file.Close() }

// New makes a sidecar with a connector. The state must stay open until the sidecar has ended.
func New(cfg Config, state *State, connector tapa.Connector, log *slog.Logger) (*Sidecar, error) {
	s := &Sidecar{cfg: cfg, log: log, metrics: newMetrics(), health: health.NewServer(), addresses: make(chan []string, 1)}
	s.reconciler = tapa.New(tapa.Config{
		Connector: connector, Store: state.file, Saved: state.saved, OperationTimeout: cfg.OperationTimeout, Observer: s.metrics, Log: log,
	})
	c, err := client.New(client.Config{Address: cfg.NSPAddress, Credentials: cfg.Credentials, PerRPC: cfg.PerRPC, Log: log})
	if err != nil {
		return nil, err
	}
	s.assigned, err = c.WatchAssignments(client.AssignmentsConfig{Workload: cfg.workload(), Handler: s.assign})
	if err != nil {
		return nil, err
	}
	s.metrics.watch(s.reconciler, s.assigned)
	s.healthy(grpc_health_v1.HealthCheckResponse_NOT_SERVING, "", "Startup", "Readiness")
	s.healthy(grpc_health_v1.HealthCheckResponse_SERVING, "Liveness")
	return s, nil
}

// assign takes in what the pools want.
func (s *Sidecar) assign(l client.AssignmentList) {
	keys := make([]stream.Key, 0, len(l.Items))
	for _, item := range l.Items {
		w := item.GetStream()
		k := stream.Key{
			Namespace: cmp.Or(w.GetNamespace(), s.cfg.NSPNamespace), Trench: w.GetTrench(), Conduit: w.GetConduit(), Name: w.GetName(),
		}
		if k.Namespace != s.cfg.NSPNamespace || k.Validate() != nil {
			s.log.Warn("an assignment is refused: the stream is not one of --namespace", "stream", k.String(), "nspNamespace", s.cfg.NSPNamespace)
			s.metrics.refused.Inc()
			continue
		}
		keys = append(keys, k)
	}
	s.log.Info("assigned", "streams", len(keys), "revision", l.Version.Revision)
	s.reconciler.SetPool(keys)
}

// Run runs until ctx ends. Then it closes what only the pools want, within the shutdown timeout, and leaves the rest.
func (s *Sidecar) Run(ctx context.Context) error {
	if err := s.listen(ctx); err != nil {
		return err
	}
	defer s.listeners.close()
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	group, running := errgroup.WithContext(running)
	for _, run := range s.parts() {
		group.Go(func() error { return run(running) })
	}
	watching, end := context.WithCancel(running)
	watched := make(chan struct{})
	group.Go(func() error { defer close(watched); return s.assigned.Run(watching) })
	select {
	case <-ctx.Done():
	case <-running.Done():
	}
	end()
	<-watched
	s.drain(running)
	stop()
	return group.Wait()
}

// drain closes what only the pools want.
func (s *Sidecar) drain(ctx context.Context) {
	s.healthy(grpc_health_v1.HealthCheckResponse_NOT_SERVING, "", "Readiness")
	ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.ShutdownTimeout, fmt.Errorf("not within --shutdown-timeout, %s", s.cfg.ShutdownTimeout))
	defer cancel()
	began := time.Now()
	if err := s.reconciler.Drain(ctx); err != nil {
		s.log.Warn("not all streams of the pools are closed", "error", err)
		return
	}
	s.log.Info("the streams of the pools are closed", "took", time.Since(began).Round(time.Millisecond).String())
}

func (s *Sidecar) parts() []func(context.Context) error {
	return []func(context.Context) error{
		s.reconciler.Run, s.serveTap, s.report, s.follow,
		func(ctx context.Context) error { return watchAddresses(ctx, addresses, lookAgain, s.log, s.found) },
		func(ctx context.Context) error { return serveHealth(ctx, s.health, s.listeners.health...) },
		func(ctx context.Context) error { return serveHTTP(ctx, s.listeners.admin, s.adminHandler()) },
		func(ctx context.Context) error { return serveHTTP(ctx, s.listeners.metrics, s.metrics.handler()) },
	}
}

// found keeps the latest addresses for report.
func (s *Sidecar) found(addresses []string) {
	select {
	case <-s.addresses:
	default:
	}
	s.addresses <- addresses
}

// report tells the NSP what the pod is like, whenever that changes.
func (s *Sidecar) report(ctx context.Context) error {
	addrs, err := addresses()
	if err != nil {
		s.log.Warn("the interface addresses cannot be reported yet", "error", err)
	}
	for {
		view, changed := s.reconciler.View()
		s.assigned.Report(report(view, addrs, s.cfg.NSPNamespace))
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case addrs = <-s.addresses:
		}
	}
}

// report is what a sidecar says of its pod. A stream with a name that Meridio's API would refuse is nobody's there.
func report(view *tapa.View, addresses []string, namespace string) *targetpoolv1.Report {
	r := &targetpoolv1.Report{Addresses: addresses, NspNamespace: namespace, OwnersComplete: true}
	for _, row := range view.Rows {
		if row.Owners == 0 || row.Stream.Validate() != nil {
			continue
		}
		o := &targetpoolv1.StreamOwners{Stream: &targetpoolv1.Stream{
			Namespace: row.Stream.Namespace, Trench: row.Stream.Trench, Conduit: row.Stream.Conduit, Name: row.Stream.Name,
		}}
		if row.Owners.Has(tapa.Application) {
			o.Owners = append(o.Owners, targetpoolv1.Owner_OWNER_APPLICATION)
		}
		if row.Owners.Has(tapa.Pool) {
			o.Owners = append(o.Owners, targetpoolv1.Owner_OWNER_POOL)
		}
		r.Owners = append(r.Owners, o)
	}
	return r
}

// serveTap serves the application's socket. Where something is in the way it says what, and tries again.
func (s *Sidecar) serveTap(ctx context.Context) error {
	var l net.Listener
	for said := ""; ; {
		var err error
		if l, err = tap.Listen(ctx, s.cfg.TapSocket); err == nil {
			break
		}
		if ctx.Err() != nil {
			return nil
		}
		if err.Error() != said {
			s.log.Error("the application's socket cannot be served, it is tried again", "error", err)
		}
		said = err.Error()
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
	}
	s.healthy(grpc_health_v1.HealthCheckResponse_SERVING, "", "Startup", "Readiness")
	s.log.Info("the application is served", "socket", s.cfg.TapSocket)
	server := newGRPC()
	ambassadorv1.RegisterTapServer(server, tap.New(s.reconciler, s.cfg.NSPNamespace))
	grpc_health_v1.RegisterHealthServer(server, s.health)
	return listener.ServeGRPC(ctx, server, l)
}

func newGRPC() *grpc.Server {
	return grpc.NewServer(
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.ConnectionTimeout(listener.GreetWithin))
}
