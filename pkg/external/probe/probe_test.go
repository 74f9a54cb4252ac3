package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"pgregory.net/rapid"

	"github.com/nordix/meridio-nsp/pkg/external"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	a = netip.MustParseAddr("192.0.2.1")
	b = netip.MustParseAddr("2001:db8::1")
)

// readiness is what is reported, an r or n for each address.
func readiness(r external.Report) (text string) {
	for _, e := range r.Endpoints {
		text += map[bool]string{true: "r", false: "n"}[e.Ready]
	}
	return text
}

// watch runs the source in a bubble and returns what it reports at which second.
func watch(t *testing.T, cfg Config, length time.Duration) (reports []string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), length)
		defer cancel()
		start := time.Now()
		New(cfg).Run(ctx, func(r external.Report) {
			reports = append(reports, fmt.Sprintf("%.0f %s", time.Since(start).Seconds(), readiness(r)))
		})
	})
	return reports
}

func TestWithoutProbeAllAreReady(t *testing.T) {
	require.Equal(t, []string{"0 rr"}, watch(t, Config{Addresses: []netip.Addr{a, b}}, time.Hour))
}

func TestThresholds(t *testing.T) {
	// One character a probe, once a second; after the last all is well.
	script := map[netip.Addr]string{a: "..xx.xxx.x..", b: "............"}
	var mu sync.Mutex
	n := map[netip.Addr]int{}
	check := func(_ context.Context, addr netip.Addr) error {
		mu.Lock()
		defer mu.Unlock()
		n[addr]++
		if i := n[addr] - 1; i < len(script[addr]) && script[addr][i] == 'x' {
			return errors.New("sick")
		}
		return nil
	}
	reports := watch(t, Config{Addresses: []netip.Addr{a, b}, Check: check, Interval: time.Second, Timeout: time.Second,
		UpAfter: 2, DownAfter: 3}, 20*time.Second)
	require.Equal(t, "0 nn", reports[0])
	// Both get up at 1, one goes down with the third failure in a row at 7, and up with the second success in a row at 11.
	require.Equal(t, []string{"1 rr", "7 nr", "11 rr"}, reports[len(reports)-3:])
}

func TestAProbeThatHangsIsAFailure(t *testing.T) {
	hang := func(ctx context.Context, _ netip.Addr) error { <-ctx.Done(); return ctx.Err() }
	reports := watch(t, Config{Addresses: []netip.Addr{a}, Check: hang, Interval: 5 * time.Second, Timeout: 2 * time.Second}, time.Minute)
	require.Equal(t, []string{"2 n"}, reports)
}

// TestTallyModel compares with a look at the last results.
func TestTallyModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		up, down := rapid.IntRange(1, 4).Draw(t, "up"), rapid.IntRange(1, 4).Draw(t, "down")
		tally := tally{upAfter: up, downAfter: down}
		ready := false
		var results []bool
		for range rapid.IntRange(0, 40).Draw(t, "n") {
			results = append(results, rapid.Bool().Draw(t, "ok"))
			need := map[bool]int{false: up, true: down}[ready]
			against := 0
			for i := len(results) - 1; i >= 0 && results[i] != ready; i-- {
				against++
			}
			before := ready
			if against >= need {
				ready = !ready
			}
			require.Equal(t, before != ready, tally.count(results[len(results)-1]))
			require.Equal(t, ready, tally.ready)
		}
	})
}

func port(t *testing.T, address string) uint16 {
	t.Helper()
	ap, err := netip.ParseAddrPort(address)
	require.NoError(t, err)
	return ap.Port()
}

var loopback = netip.MustParseAddr("127.0.0.1")

func TestTCP(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	check := TCP(port(t, listener.Addr().String()))
	require.NoError(t, check(t.Context(), loopback))
	require.NoError(t, listener.Close())
	require.Error(t, check(t.Context(), loopback))
}

func TestHTTP(t *testing.T) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Host == "named.example.com" && r.URL.Path == "/host":
			w.WriteHeader(http.StatusNoContent)
		case r.URL.Path == "/moved":
			http.Redirect(w, r, "/broken", http.StatusFound)
		case r.URL.RequestURI() == "/live?x=1":
			_, _ = w.Write(make([]byte, 1<<20))
		default:
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	plain, secure := httptest.NewServer(handler), httptest.NewTLSServer(handler)
	defer plain.Close()
	defer secure.Close()
	for scheme, server := range map[string]*httptest.Server{"http": plain, "https": secure} {
		for path, ok := range map[string]bool{"/live?x=1": true, "/moved": true, "/host": true, "/broken": false} {
			check := HTTP(HTTPConfig{Scheme: scheme, Port: port(t, server.Listener.Addr().String()), Path: path, Host: "named.example.com"})
			require.Equal(t, ok, check(t.Context(), loopback) == nil, scheme+path)
		}
	}
	require.Error(t, HTTP(HTTPConfig{Scheme: "http", Port: 1, Path: "/"})(t.Context(), loopback))
}

func TestGRPC(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server, healthy := grpc.NewServer(), health.NewServer()
	grpc_health_v1.RegisterHealthServer(server, healthy)
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	healthy.SetServingStatus("db", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	p := port(t, listener.Addr().String())
	require.NoError(t, GRPC(p, "")(t.Context(), loopback))
	require.ErrorContains(t, GRPC(p, "db")(t.Context(), loopback), "NOT_SERVING")
	require.Error(t, GRPC(p, "unknown")(t.Context(), loopback))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.Error(t, GRPC(1, "")(ctx, loopback))
}
