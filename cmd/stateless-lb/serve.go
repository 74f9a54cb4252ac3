package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/nordix/meridio-nsp/pkg/lb"
	"github.com/nordix/meridio-nsp/pkg/listener"
)

// listeners are open before anything runs, so that an address that is taken is an error at once.
type listeners struct {
	health  []net.Listener
	metrics net.Listener
}

func (l *listeners) close() {
	for _, one := range append(l.health, l.metrics) {
		if one != nil {
			_ = one.Close()
		}
	}
}

func (s *settings) listen(ctx context.Context) (_ *listeners, err error) {
	l := &listeners{}
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	if s.healthSocket != "" {
		one, err := listener.Unix(ctx, s.healthSocket)
		if err != nil {
			return nil, fmt.Errorf("--health-socket: %w", err)
		}
		l.health = append(l.health, one)
	}
	var config net.ListenConfig
	if s.healthAddress != "" {
		one, err := config.Listen(ctx, "tcp", s.healthAddress)
		if err != nil {
			return nil, fmt.Errorf("--health-address: %w", err)
		}
		l.health = append(l.health, one)
	}
	if s.metricsAddress != "" {
		if l.metrics, err = config.Listen(ctx, "tcp", s.metricsAddress); err != nil {
			return nil, fmt.Errorf("--metrics-address: %w", err)
		}
	}
	return l, nil
}

// serveHealth answers probes until ctx ends.
func serveHealth(ctx context.Context, b *lb.Balancer, on []net.Listener) error {
	h := health.NewServer()
	server := grpc.NewServer(grpc.ConnectionTimeout(listener.GreetWithin))
	grpc_health_v1.RegisterHealthServer(server, h)
	failed := make(chan error, len(on))
	var served sync.WaitGroup
	for _, l := range on {
		served.Go(func() { failed <- server.Serve(l) })
	}
	defer func() {
		server.Stop()
		served.Wait()
	}()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	ready := false
	for {
		ready = tellHealth(h, b.Status(), ready)
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return fmt.Errorf("answering probes: %w", err)
		case <-tick.C:
		}
	}
}

// tellHealth sets all services. Who was ready once stays so: the kernel forwards whatever becomes of the rest.
func tellHealth(h *health.Server, s lb.Status, ready bool) bool {
	ready = ready || s.Programmed
	for service, is := range map[string]bool{
		"": true, "Startup": true, "Liveness": true, "Readiness": ready, "NSPCli": s.Connected,
		"Stream": ready && len(s.Targets) > 0, "Flow": ready && len(s.StreamOf) > 0,
	} {
		status := grpc_health_v1.HealthCheckResponse_NOT_SERVING
		if is {
			status = grpc_health_v1.HealthCheckResponse_SERVING
		}
		h.SetServingStatus(service, status)
	}
	return ready
}

// serveMetrics answers Prometheus until ctx ends.
func serveMetrics(ctx context.Context, from prometheus.Gatherer, on net.Listener) error {
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(from, promhttp.HandlerOpts{}))
	return listener.ServeHTTP(ctx, mux, on)
}
