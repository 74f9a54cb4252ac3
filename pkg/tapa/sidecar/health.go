package sidecar

import (
	"context"
	"net"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/nordix/meridio-nsp/pkg/listener"
	"github.com/nordix/meridio-nsp/pkg/tapa"
)

type servingStatus = grpc_health_v1.HealthCheckResponse_ServingStatus

// The services of gRPC health beside "", Startup, Readiness and Liveness. None of those depends on the NSP or on the connector:
// neither's outage may take the pod out of service.
const (
	healthNSP       = "NSP"       // the watch at the NSP is live
	healthConnector = "Connector" // it says what there is
	healthStreams   = "Streams"   // all streams that somebody wants are open
	// healthStream is followed by trench/conduit/stream.
	healthStream = "Stream/"
)

func (s *Sidecar) healthy(status servingStatus, services ...string) {
	for _, service := range services {
		s.health.SetServingStatus(service, status)
	}
}

func serving(is bool) servingStatus {
	if is {
		return grpc_health_v1.HealthCheckResponse_SERVING
	}
	return grpc_health_v1.HealthCheckResponse_NOT_SERVING
}

// follow keeps the health of connections and streams up to date. The watch at the NSP does not tell when it breaks, so that
// is looked at every second.
func (s *Sidecar) follow(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	known := map[string]bool{}
	for {
		view, changed := s.reconciler.View()
		s.healthy(serving(s.assigned.Status().Live), healthNSP)
		s.healthy(serving(view.Connected), healthConnector)
		s.streams(view, known)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-changed:
		}
	}
}

// streams sets the health of the streams; those that are gone become unknown.
func (s *Sidecar) streams(view *tapa.View, known map[string]bool) {
	all := true
	now := make(map[string]bool, len(view.Rows))
	for _, row := range view.Rows {
		open := row.Status == tapa.Open
		all = all && (open || row.Owners == 0)
		name := healthStream + row.Stream.Trench + "/" + row.Stream.Conduit + "/" + row.Stream.Name
		now[name], known[name] = true, true
		s.healthy(serving(open), name)
	}
	for name := range known {
		if !now[name] {
			delete(known, name)
			s.healthy(grpc_health_v1.HealthCheckResponse_SERVICE_UNKNOWN, name)
		}
	}
	s.healthy(serving(all), healthStreams)
}

// serveHealth answers probes on all listeners.
func serveHealth(ctx context.Context, h *health.Server, listeners ...net.Listener) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, l := range listeners {
		server := newGRPC()
		grpc_health_v1.RegisterHealthServer(server, h)
		group.Go(func() error { return listener.ServeGRPC(ctx, server, l) })
	}
	return group.Wait()
}
