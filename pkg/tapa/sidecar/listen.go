package sidecar

import (
	"context"
	"fmt"
	"net"
	"net/http"

	"github.com/nordix/meridio-nsp/pkg/listener"
	"github.com/nordix/meridio-nsp/pkg/tapa/tap"
)

// listeners are those that must be there at the start.
type listeners struct {
	health         []net.Listener
	admin, metrics net.Listener
}

func (l *listeners) close() {
	for _, one := range append(l.health, l.admin, l.metrics) {
		if one != nil {
			_ = one.Close()
		}
	}
}

// listen opens what is configured.
func (s *Sidecar) listen(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			s.listeners.close()
		}
	}()
	if s.cfg.HealthSocket != "" {
		l, err := tap.Listen(ctx, s.cfg.HealthSocket)
		if err != nil {
			return fmt.Errorf("--health-socket: %w", err)
		}
		s.listeners.health = append(s.listeners.health, l)
	}
	if s.cfg.HealthAddress != "" {
		l, err := listenTCP(ctx, s.cfg.HealthAddress)
		if err != nil {
			return fmt.Errorf("--health-address: %w", err)
		}
		s.listeners.health = append(s.listeners.health, l)
	}
	if s.cfg.AdminSocket != "" {
		if s.listeners.admin, err = tap.Listen(ctx, s.cfg.AdminSocket); err != nil {
			return fmt.Errorf("--admin-socket: %w", err)
		}
	}
	if s.cfg.MetricsAddress != "" {
		if s.listeners.metrics, err = listenTCP(ctx, s.cfg.MetricsAddress); err != nil {
			return fmt.Errorf("--metrics-address: %w", err)
		}
	}
	return nil
}

func listenTCP(ctx context.Context, address string) (net.Listener, error) {
	var lc net.ListenConfig
	return lc.Listen(ctx, "tcp", address)
}

// serveHTTP serves until ctx ends; no listener is no error.
func serveHTTP(ctx context.Context, l net.Listener, h http.Handler) error {
	if l == nil {
		return nil
	}
	return listener.ServeHTTP(ctx, h, l)
}
