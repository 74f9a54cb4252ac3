package nsp

import (
	"context"
	"io"
	"log/slog"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	"github.com/nordix/meridio-nsp/pkg/config"
	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/registry/sqlite"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// patience bounds what should take milliseconds.
const patience = time.Minute

func goodTrench() TrenchConfig {
	return TrenchConfig{ProcessConfig: good().ProcessConfig, ConfigMapName: "meridio-configuration-trench-a"}
}

func TestTrenchConfigurations(t *testing.T) {
	c := goodTrench()
	require.NoError(t, c.Validate())
	for value, says := range map[string]string{
		"": "", "allow": "", "deny": "", "own-namespace": "which tells no namespaces", "some": "choose one of",
	} {
		c.LegacyRegistration = value
		if says == "" {
			require.NoError(t, c.Validate())
		} else {
			require.ErrorContains(t, c.Validate(), says)
		}
	}
	c = goodTrench()
	c.ConfigMapName, c.Port = "", 0
	err := c.Validate()
	require.ErrorContains(t, err, "--config-map-name")
	require.ErrorContains(t, err, "--port")
	for mapName, trench := range map[string]string{
		"meridio-configuration-trench-a": "trench-a", "meridio-configuration": "", "other": "",
		"meridio-configuration-meridio-configuration": "meridio-configuration",
	} {
		c.ConfigMapName = mapName
		require.Equal(t, trench, c.trenchName(), mapName)
	}
}

// posts are what the engine was told of trenches, the last of each.
type posts map[string]map[stream.Key]uint32

func (p posts) post(events ...engine.Event) {
	for _, e := range events {
		c := e.(engine.TrenchConfigured)
		p[c.Trench] = c.MaxTargets
	}
}

func TestOwnTrench(t *testing.T) {
	told := posts{}
	o := newOwnTrench("red", "suffix", told.post)
	o.want("trench-a")
	o.want("suffix")
	o.want("other")
	require.Empty(t, told, "nothing is told before it is known")

	read := func(text string, last *config.Config) *config.Config {
		c, _ := config.Parse(map[string]string{"trench": "name: trench-a", "streams": text}, last)
		o.configure(c)
		return c
	}
	unread := read("items: [", nil)
	require.ElementsMatch(t, []string{"suffix", "other"}, slices.Collect(maps.Keys(told)), "of streams that were never read nothing is said")
	five := map[stream.Key]uint32{{Namespace: "red", Trench: "trench-a", Conduit: "c", Name: "s"}: 5}
	last := read("items: [{name: s, conduit: c, max-targets: 5}]", unread)
	require.Equal(t, posts{"trench-a": five, "suffix": {}, "other": {}}, told)
	read("items: [", last)
	require.Equal(t, five, told["trench-a"])

	o.want("late")
	require.Contains(t, told, "late")
	o.configure(&config.Config{Streams: last.Streams})
	require.Len(t, told["suffix"], 1, "without the key trench the ConfigMap's name counts")
	require.Empty(t, told["trench-a"])
	o.configure(nil)
	require.Empty(t, told["suffix"])
	o.drop("late")
	delete(told, "late")
	o.configure(last)
	require.NotContains(t, told, "late")
}

// startTrench runs a trench process whose API server does not answer.
func startTrench(t *testing.T, dir string, edits ...func(*TrenchConfig)) *grpc.ClientConn {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	require.NoError(t, l.Close())
	cfg := goodTrench()
	cfg.Port, cfg.MetricsAddress, cfg.HealthSocket, cfg.Kubeconfig = port, "", "", cluster(t)
	cfg.Datasource = filepath.Join(dir, "registry.db")
	for _, edit := range edits {
		edit(&cfg)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- RunTrench(ctx, cfg, slog.New(slog.NewTextHandler(io.Discard, nil))) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
	})
	conn, err := grpc.NewClient("127.0.0.1:"+strconv.Itoa(port), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func healthOf(t *testing.T, conn *grpc.ClientConn) grpc_health_v1.HealthCheckResponse_ServingStatus {
	resp, err := grpc_health_v1.NewHealthClient(conn).Check(within(t, patience), &grpc_health_v1.HealthCheckRequest{Service: "Readiness"})
	require.NoError(t, err)
	return resp.GetStatus()
}

// An empty answer would be an order to close, so there is none.
func TestTrenchThatHasReadNothingAnswersNothing(t *testing.T) {
	conn := startTrench(t, t.TempDir())
	require.Equal(t, grpc_health_v1.HealthCheckResponse_NOT_SERVING, healthOf(t, conn))
	w, err := nspv1.NewConfigurationManagerClient(conn).WatchStream(within(t, 100*time.Millisecond), &nspv1.Stream{})
	require.NoError(t, err)
	_, err = w.Recv()
	require.Equal(t, codes.DeadlineExceeded, status.Code(err))
}

// configuredDir has the registry of a process that has read its ConfigMap.
func configuredDir(t *testing.T) string {
	dir := t.TempDir()
	var book config.Book
	book.Read(map[string]string{
		"trench": "name: trench-a", "conduits": "items: [{name: c, trench: trench-a}]", "streams": "items: [{name: s, conduit: c}]",
	})
	store, err := sqlite.Open(t.Context(), sqlite.Config{Path: filepath.Join(dir, "registry.db"), Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	document := (&trench{cfg: goodTrench()}).document()
	require.NoError(t, store.Write(t.Context(), registry.Batch{Documents: map[string][]byte{document: book.Document()}}))
	require.NoError(t, store.Close())
	return dir
}

// Where nobody may register as in Meridio 1.x, everybody may watch still.
func TestTrenchRefusesLegacyRegistrations(t *testing.T) {
	targets := nspv1.NewTargetRegistryClient(startTrench(t, configuredDir(t), func(c *TrenchConfig) { c.LegacyRegistration = "deny" }))
	_, err := targets.Register(within(t, patience), &nspv1.Target{Type: nspv1.Target_FRONTEND, Ips: []string{"fe-1"}})
	require.Equal(t, codes.PermissionDenied, status.Code(err))
	require.ErrorContains(t, err, "--legacy-registration")
	w, err := targets.Watch(within(t, patience), &nspv1.Target{Type: nspv1.Target_FRONTEND, Status: nspv1.Target_ANY})
	require.NoError(t, err)
	list, err := w.Recv()
	require.NoError(t, err)
	require.Empty(t, list.GetTargets())
}

// What the last run read counts as read.
func TestTrenchRestartsWithoutAPIServer(t *testing.T) {
	conn := startTrench(t, configuredDir(t))
	ctx := within(t, patience)
	c := &nspv1.Conduit{Name: "c", Trench: &nspv1.Trench{Name: "trench-a"}}
	w, err := nspv1.NewConfigurationManagerClient(conn).WatchStream(ctx, &nspv1.Stream{Conduit: c})
	require.NoError(t, err)
	list, err := w.Recv()
	require.NoError(t, err)
	require.Equal(t, "s", list.GetStreams()[0].GetName())
	require.Equal(t, grpc_health_v1.HealthCheckResponse_SERVING, healthOf(t, conn))

	targets := nspv1.NewTargetRegistryClient(conn)
	active, err := targets.Watch(ctx, &nspv1.Target{Status: nspv1.Target_ENABLED, Stream: list.GetStreams()[0]})
	require.NoError(t, err)
	first, err := active.Recv()
	require.NoError(t, err)
	require.Empty(t, first.GetTargets())
	for range 2 {
		_, err = targets.Register(ctx, &nspv1.Target{
			Ips: []string{"172.16.0.1/24"}, Context: map[string]string{"identifier": "100"}, Stream: list.GetStreams()[0],
		})
		require.NoError(t, err)
	}
	second, err := active.Recv()
	require.NoError(t, err)
	require.Len(t, second.GetTargets(), 1, "ENABLED twice is active: there are no pools")

	other, err := targets.Watch(ctx, &nspv1.Target{Status: nspv1.Target_ENABLED, Stream: &nspv1.Stream{Conduit: &nspv1.Conduit{Trench: &nspv1.Trench{Name: "other"}}}})
	require.NoError(t, err)
	none, err := other.Recv()
	require.NoError(t, err)
	require.Empty(t, none.GetTargets(), "of another trench nothing is known, and that is told")
}
