package nsp

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	"github.com/nordix/meridio-nsp/pkg/config"
	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/test/play"
)

// site is one address at which now this, now that process serves the trench of the recorded registries, without API server.
type site struct {
	*testing.T
	port int
	conn *grpc.ClientConn
	// unstorable says that processes end with something that they could not store.
	unstorable bool
}

func newSite(t *testing.T) *site {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &site{T: t, port: l.Addr().(*net.TCPAddr).Port}
	require.NoError(t, l.Close())
	s.conn, err = grpc.NewClient("127.0.0.1:"+strconv.Itoa(s.port), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1, MaxDelay: 10 * time.Millisecond}}))
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.conn.Close() })
	return s
}

// configured has a registry file know the configuration of the trench, as one has that was served before.
func configured(t *testing.T, path string) {
	t.Helper()
	var book config.Book
	book.Read(map[string]string{
		"trench":   "name: trench-a",
		"conduits": "items: [{name: conduit-a, trench: trench-a}]",
		"streams":  "items: [{name: stream-a, conduit: conduit-a}, {name: stream-b, conduit: conduit-a}]",
	})
	change(t, path, registry.Batch{Documents: map[string][]byte{(&trench{cfg: goodTrench()}).document(): book.Document()}})
}

// serve runs a trench process until the returned function is called.
func (s *site) serve(datasource string) (stop func()) {
	cfg := goodTrench()
	cfg.Port, cfg.MetricsAddress, cfg.HealthSocket, cfg.Kubeconfig, cfg.Datasource = s.port, "", "", cluster(s.T), datasource
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.Context()))
	ended := make(chan error, 1)
	go func() { ended <- RunTrench(ctx, cfg, slog.New(slog.DiscardHandler)) }()
	stop = sync.OnceFunc(func() {
		cancel()
		err := <-ended
		if s.unstorable && errors.Is(err, registry.ErrStore) {
			err = nil
		}
		require.NoError(s, err)
	})
	s.Cleanup(stop)
	return stop
}

func target(ip, identifier string) *nspv1.Target {
	return &nspv1.Target{
		Ips: []string{ip}, Context: map[string]string{"identifier": identifier},
		Stream: &nspv1.Stream{Name: "stream-a", Conduit: &nspv1.Conduit{Name: "conduit-a", Trench: &nspv1.Trench{Name: "trench-a"}}},
	}
}

func (s *site) open(ip, identifier string) {
	s.Helper()
	for range 2 {
		_, err := nspv1.NewTargetRegistryClient(s.conn).Register(within(s.T, patience), target(ip, identifier))
		require.NoError(s, err)
	}
}

// updates are all that a load balancer was told.
type updates struct {
	mu             sync.Mutex
	first, removed []string
}

func (u *updates) add(l play.LegacyUpdate) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.first == nil && l.Stream == "stream-a" {
		u.first = l.Added
	}
	u.removed = append(u.removed, l.Removed...)
}

func (s *site) sees(lb *play.LegacyLB, targets ...string) {
	s.Helper()
	err := lb.WaitFor(within(s.T, patience), func(lb *play.LegacyLB) bool {
		active := lb.Active("stream-a")
		for _, one := range targets {
			if !active[one] {
				return false
			}
		}
		return lb.Live() && len(active) == len(targets) && len(lb.Active("stream-b")) == 1
	})
	require.NoError(s, err, "%v", lb.Active("stream-a"))
}

// An old load balancer goes through an upgrade, a downgrade and another upgrade. It is told all targets at once after each, and
// misses none but the one that goes meanwhile. Meridio 1.x is played by a process that gets its registry from a 1.x file, and
// leaves it as one.
func TestUpDownUp(t *testing.T) {
	const a, b, came, late = "172.16.0.10/24,fd00:0:0:1::10/64", "172.16.0.11/24,fd00:0:0:1::11/64", "172.16.0.20/24", "172.16.0.21/24"
	s := newSite(t)
	volume := upgraded(t, "small.db")
	configured(t, volume+beside)
	var told updates
	lb := play.NewLegacyLB(s.conn, "trench-a", "conduit-a", "stream-a", "stream-b")
	lb.OnUpdate = told.add
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- lb.Run(ctx) }()
	leave := sync.OnceFunc(func() { cancel(); require.NoError(t, <-ended) })
	defer leave()

	stop := s.serve(volume)
	s.sees(lb, a, b)
	s.open(came, "50")
	s.sees(lb, a, b, came)
	stop()
	_, err := Export(t.Context(), ExportConfig{To: volume, Force: true, Datasource: volume})
	require.NoError(t, err)

	old := filepath.Join(t.TempDir(), "old.db")
	configured(t, old)
	report, _, err := Import(t.Context(), ImportConfig{From: volume, Datasource: old, Namespace: "red"})
	require.NoError(t, err)
	require.Equal(t, 7, report.Added)
	stop = s.serve(old)
	s.open(late, "51")
	s.sees(lb, a, b, came, late)
	_, err = nspv1.NewTargetRegistryClient(s.conn).Unregister(within(t, patience), target(came, "50"))
	require.NoError(t, err)
	s.sees(lb, a, b, late)
	stop()
	_, err = Export(t.Context(), ExportConfig{To: volume, Force: true, Datasource: old})
	require.NoError(t, err)

	before := fingerprint(t, volume)
	stop = s.serve(volume)
	s.open("172.16.0.22/24", "52") // what it has seen of the last process is no proof
	s.sees(lb, a, b, late, "172.16.0.22/24")
	stop()
	leave()
	require.ElementsMatch(t, []string{a, b}, told.first, "all at once")
	require.Equal(t, []string{came}, told.removed)
	require.Equal(t, before, fingerprint(t, volume))
}
