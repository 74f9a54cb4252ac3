package probe

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
)

// TCP finds ready what accepts a connection.
func TCP(port uint16) Check {
	return func(ctx context.Context, addr netip.Addr) error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", netip.AddrPortFrom(addr, port).String())
		if err != nil {
			return err
		}
		return conn.Close()
	}
}

// HTTPConfig configures HTTP.
type HTTPConfig struct {
	// Scheme is http or https; certificates are not verified.
	Scheme string
	Port   uint16
	Path   string
	// Host is the header of that name; empty stands for the address.
	Host string
}

// maxBody is how much of an answer is read, so that its connection ends in order.
const maxBody = 10 << 10

// HTTP finds ready what answers a GET with a status from 200 to 399. A redirection is not followed: it is an answer.
func HTTP(cfg HTTPConfig) Check {
	client := &http.Client{
		Transport: &http.Transport{
			DisableKeepAlives: true,                                                        // a probe shows that new connections work
			TLSClientConfig:   &tls.Config{InsecureSkipVerify: true, ServerName: cfg.Host}, //nolint:gosec // as probes of pods: health, not identity
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return func(ctx context.Context, addr netip.Addr) error {
		url := cfg.Scheme + "://" + netip.AddrPortFrom(addr, cfg.Port).String() + cfg.Path
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		request.Host = cfg.Host
		answer, err := client.Do(request)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		_, _ = io.CopyN(io.Discard, answer.Body, maxBody)
		if answer.StatusCode < 200 || answer.StatusCode > 399 {
			return fmt.Errorf("answered %s", answer.Status)
		}
		return nil
	}
}

// GRPC finds ready what says of the service that it is SERVING; an empty service is the whole server.
func GRPC(port uint16, service string) Check {
	return func(ctx context.Context, addr netip.Addr) error {
		// A connection a probe, for the same reason as above.
		conn, err := grpc.NewClient("passthrough:///"+netip.AddrPortFrom(addr, port).String(),
			grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return err
		}
		defer conn.Close()
		answer, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: service})
		if err != nil {
			return err
		}
		if answer.Status != grpc_health_v1.HealthCheckResponse_SERVING {
			return fmt.Errorf("answered %s", answer.Status)
		}
		return nil
	}
}
