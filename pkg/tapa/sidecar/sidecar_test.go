package sidecar

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"

	ambassadorv1 "github.com/nordix/meridio-nsp/api/ambassador/v1"
	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/stream"
	"github.com/nordix/meridio-nsp/pkg/tapa"
	"github.com/nordix/meridio-nsp/pkg/tapa/tap"
)

func dial(t *testing.T, socket string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func healthOf(t *testing.T, socket, service string) string {
	t.Helper()
	resp, err := grpc_health_v1.NewHealthClient(dial(t, socket)).Check(t.Context(),
		&grpc_health_v1.HealthCheckRequest{Service: service}, grpc.WaitForReady(true))
	if err != nil {
		return err.Error()
	}
	return resp.GetStatus().String()
}

func scrape(t *testing.T, s *running) string {
	t.Helper()
	resp, err := http.Get("http://" + s.listeners.metrics.Addr().String() + "/metrics")
	require.NoError(t, err)
	defer http.DefaultClient.CloseIdleConnections()
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return string(text)
}

// What pool and application want is opened, reported with its owners, and shown everywhere.
func TestSidecar(t *testing.T) {
	nsp, c := startNSP(t), newConnector()
	nsp.assign(streamOf("a", "one"))
	cfg := configFor(t, nsp)
	s := start(t, cfg, c)
	app := ambassadorv1.NewTapClient(dial(t, cfg.TapSocket))
	for _, name := range []string{"one", "two"} {
		_, err := app.Open(t.Context(), tap.Stream(stream.Key{Trench: "a", Conduit: "c", Name: name}), grpc.WaitForReady(true))
		require.NoError(t, err)
	}
	both := []targetpoolv1.Owner{targetpoolv1.Owner_OWNER_APPLICATION, targetpoolv1.Owner_OWNER_POOL}
	eventually(t, func() bool {
		r := nsp.reported()
		return slices.Equal(r["one"], both) && slices.Equal(r["two"], both[:1]) && len(r) == 2
	})
	require.Equal(t, "web-0", nsp.who.GetPod())
	require.Equal(t, "u1", nsp.who.GetPodUid())
	nsp.mu.Lock()
	last := nsp.reports[len(nsp.reports)-1]
	nsp.mu.Unlock()
	require.True(t, last.GetOwnersComplete())
	require.Equal(t, "red", last.GetNspNamespace())
	addrs, err := addresses()
	require.NoError(t, err)
	require.Equal(t, addrs, last.GetAddresses())

	eventually(t, func() bool {
		st, err := AskStatus(t.Context(), cfg.AdminSocket, time.Second)
		return err == nil && st.NSP.Connected && st.Connector.Connected && len(st.Streams) == 2 && st.Streams[1].Status == tapa.Open && st.Trench == "a"
	})
	for _, service := range []string{"", "Startup", "Readiness", "Liveness", "NSP", "Connector", "Streams", "Stream/a/c/one"} {
		eventually(t, func() bool { return healthOf(t, cfg.HealthSocket, service) == "SERVING" })
	}
	text := scrape(t, s)
	for _, line := range []string{
		`tapa_stream_status{conduit="c",status="OPEN",stream="one",trench="a"} 1`,
		`tapa_stream_status{conduit="c",status="PENDING",stream="one",trench="a"} 0`,
		`tapa_stream_owner{conduit="c",owner="pool",stream="two",trench="a"} 0`,
		"tapa_nsp_up 1", "tapa_connector_up 1", `tapa_operations_total{operation="open",result="ok"} 2`, "tapa_connector_sessions_total 1",
	} {
		require.Contains(t, text, line)
	}

	s.stop()
	require.Equal(t, map[string]bool{"a/one": true, "a/two": true}, c.names(), "the application wants both")
}

// At the end what only the pool wants is closed; the next sidecar has what the application wanted.
func TestStopAndStart(t *testing.T) {
	nsp, c := startNSP(t), newConnector()
	nsp.assign(streamOf("a", "one"), streamOf("a", "two"))
	cfg := configFor(t, nsp)
	s := start(t, cfg, c)
	require.NoError(t, s.reconciler.Open(stream.Key{Namespace: "red", Trench: "a", Conduit: "c", Name: "two"}))
	eventually(t, func() bool { return len(c.names()) == 2 })
	s.stop()
	require.Equal(t, map[string]bool{"a/two": true}, c.names())
	nsp.stop()
	defer nsp.start()
	c.open = map[stream.Key]tapa.Status{} // The TAPA was restarted too.
	start(t, cfg, c)
	eventually(t, func() bool { return maps.Equal(c.names(), map[string]bool{"a/two": true}) })
}

// The NSP is restarted fifty times while the list changes; streams stay open throughout, and the last list counts. // P14, P15
func TestFiftyRestarts(t *testing.T) {
	nsp, c := startNSP(t), newConnector()
	nsp.assign(streamOf("a", "stays"))
	start(t, configFor(t, nsp), c)
	eventually(t, func() bool { return c.names()["a/stays"] })
	for i := range 50 {
		nsp.stop()
		nsp.assign(streamOf("a", "stays"), streamOf("a", fmt.Sprintf("s%d", i)))
		nsp.start()
	}
	eventually(t, func() bool { return maps.Equal(c.names(), map[string]bool{"a/stays": true, "a/s49": true}) })
	c.mu.Lock()
	defer c.mu.Unlock()
	require.Equal(t, c.opens-2, c.closes, "each was opened once and closed once")
}

// A stream of another namespace than the NSP's is refused, the others count.
func TestRefusedAssignment(t *testing.T) {
	nsp, c := startNSP(t), newConnector()
	nsp.assign(&targetpoolv1.Stream{Namespace: "blue", Trench: "a", Conduit: "c", Name: "one"}, streamOf("a", ""), streamOf("a", "two"))
	s := start(t, configFor(t, nsp), c)
	eventually(t, func() bool { return maps.Equal(c.names(), map[string]bool{"a/two": true}) })
	require.Contains(t, scrape(t, s), "tapa_assignments_refused_total 2")
}

// Where another process has the application's socket the sidecar waits for it, works meanwhile, and says that it is not ready.
func TestSocketInUse(t *testing.T) {
	nsp, c := startNSP(t), newConnector()
	nsp.assign(streamOf("a", "one"))
	cfg := configFor(t, nsp)
	l, err := net.Listen("unix", cfg.TapSocket)
	require.NoError(t, err)
	start(t, cfg, c)
	eventually(t, func() bool { return c.names()["a/one"] })
	require.Equal(t, "NOT_SERVING", healthOf(t, cfg.HealthSocket, "Startup"))
	require.Equal(t, "SERVING", healthOf(t, cfg.HealthSocket, "Liveness"))
	require.NoError(t, l.Close())
	eventually(t, func() bool { return healthOf(t, cfg.HealthSocket, "Startup") == "SERVING" })
}

// Connections that say nothing do not hold up the end.
func TestSilentClients(t *testing.T) {
	nsp, c := startNSP(t), newConnector()
	cfg := configFor(t, nsp)
	s := start(t, cfg, c)
	eventually(t, func() bool { return healthOf(t, cfg.HealthSocket, "Startup") == "SERVING" })
	for _, socket := range []string{cfg.TapSocket, cfg.HealthSocket, cfg.AdminSocket} {
		silent, err := net.Dial("unix", socket)
		require.NoError(t, err)
		defer silent.Close()
	}
	stopped := make(chan struct{})
	go func() { defer close(stopped); s.stop() }()
	select {
	case <-stopped:
	case <-time.After(patience):
		require.Fail(t, "the sidecar does not end")
	}
}

// A damaged state file closes nothing that is open.
func TestDamagedState(t *testing.T) {
	nsp, c := startNSP(t), newConnector()
	k := stream.Key{Namespace: "red", Trench: "a", Conduit: "c", Name: "one"}
	c.open[k] = tapa.Open
	cfg := configFor(t, nsp)
	require.NoError(t, os.WriteFile(cfg.StateFile, []byte("{"), 0o600))
	s := start(t, cfg, c)
	eventually(t, func() bool { return s.Status().NSP.Connected && len(s.Status().Streams) == 1 })
	require.Equal(t, []string{"application"}, s.Status().Streams[0].Owners)
	s.stop()
	require.Equal(t, map[string]bool{"a/one": true}, c.names())
	require.FileExists(t, cfg.StateFile+".damaged")
}

// A stream with a name that the NSP would refuse a report for is kept for the application, and left out there.
func TestReportLeavesOut(t *testing.T) {
	view := &tapa.View{Rows: []tapa.Row{
		{Stream: stream.Key{Namespace: "red", Trench: "a", Conduit: "c", Name: "-"}, Owners: tapa.Application},
		{Stream: stream.Key{Namespace: "red", Trench: "a", Conduit: "c", Name: "closing"}, Held: true},
		{Stream: stream.Key{Namespace: "red", Trench: "a", Conduit: "c", Name: "one"}, Owners: tapa.Pool},
	}}
	r := report(view, nil, "red")
	require.Len(t, r.GetOwners(), 1)
	require.Equal(t, "one", r.GetOwners()[0].GetStream().GetName())
}

// Changes of the addresses are told once each.
func TestWatchAddresses(t *testing.T) {
	told := make(chan []string, 10)
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	answers := [][]string{{"a"}, {"a"}, {"b"}}
	go func() {
		done <- watchAddresses(ctx, func() ([]string, error) {
			now := answers[0]
			if len(answers) > 1 {
				answers = answers[1:]
			}
			return now, nil
		}, time.Millisecond, slog.New(slog.DiscardHandler), func(a []string) { told <- a })
	}()
	require.Equal(t, []string{"a"}, <-told)
	require.Equal(t, []string{"b"}, <-told)
	cancel()
	require.NoError(t, <-done)
}

// A command line that makes no sense is refused in words.
func TestValidate(t *testing.T) {
	good := configFor(t, &fakeNSP{address: "x:1"})
	for says, spoil := range map[string]func(*Config){
		"--pod-name":          func(c *Config) { c.PodName = "" },
		"--pod-namespace":     func(c *Config) { c.PodNamespace = "" },
		"--namespace":         func(c *Config) { c.NSPNamespace = "a/b" },
		"--pod-ip":            func(c *Config) { c.PodIP = "one" },
		"--state-file":        func(c *Config) { c.StateFile = "" },
		"--shutdown-timeout":  func(c *Config) { c.ShutdownTimeout = -1 },
		"--operation-timeout": func(c *Config) { c.OperationTimeout = 0 },
	} {
		cfg := good
		spoil(&cfg)
		require.ErrorContains(t, cfg.Validate(), says)
	}
	only := Config{PodName: "web-0", PodNamespace: "red"}
	only.Complete()
	require.Equal(t, "nsp-service.red:7778", only.NSPAddress)
}
