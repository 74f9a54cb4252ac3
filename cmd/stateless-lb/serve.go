package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/nordix/meridio-nsp/pkg/lb"
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
	var config net.ListenConfig
	for _, one := range []struct{ flag, network, address string }{
		{"health-socket", "unix", s.healthSocket}, {"health-address", "tcp", s.healthAddress}, {"metrics-address", "tcp", s.metricsAddress},
	} {
		if one.address == "" {
			continue
		}
		if one.network == "unix" {
			_ = os.Remove(one.address) // of a process that was killed
		}
		listener, err := config.Listen(ctx, one.network, one.address)
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", one.flag, err)
		}
		if one.flag == "metrics-address" {
			l.metrics = listener
		} else {
			l.health = append(l.health, listener)
		}
	}
	return l, nil
}

// serveHealth answers probes until ctx ends.
func serveHealth(ctx context.Context, b *lb.Balancer, on []net.Listener) error {
	h := health.NewServer()
	server := grpc.NewServer(grpc.ConnectionTimeout(5 * time.Second)) // a client that says nothing does not hold up the end
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
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(on); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving metrics: %w", err)
	}
	return nil
}
