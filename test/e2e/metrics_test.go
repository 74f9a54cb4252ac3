package e2e

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/test/play"
)

const feedMethod = "/targetpool.v1.TargetFeed/Watch"

// meter reads one series of a process.
type meter struct {
	*relayScene
	of     *play.NSP
	series string
}

// value is not ok where there is no such series.
func (m meter) value() (n float64, ok bool) {
	resp, err := http.Get(m.of.MetricsURL())
	if err != nil {
		return 0, false
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if text, found := strings.CutPrefix(lines.Text(), m.series+" "); found {
			n, err := strconv.ParseFloat(text, 64)
			return n, err == nil
		}
	}
	return 0, false
}

func (m meter) read() float64 {
	m.Helper()
	n, ok := m.value()
	require.True(m, ok, "there is no %s", m.series)
	return n
}

// becomes waits until the series satisfies a condition.
func (m meter) becomes(what string, ok func(now float64) bool) {
	m.Helper()
	require.Eventuallyf(m, func() bool {
		now, there := m.value()
		return there && ok(now)
	}, patience, 10*time.Millisecond, "%s %s", m.series, what)
}

func (m meter) is(n float64) {
	m.Helper()
	m.becomes(fmt.Sprint("becomes ", n), func(now float64) bool { return now == n })
}

// grows calls f, after which the series is to be greater.
func (m meter) grows(f func()) {
	m.Helper()
	before := m.read()
	f()
	m.becomes("grows", func(now float64) bool { return now > before })
}

func (s *relayScene) meter(format string, args ...any) meter {
	return meter{s, s.nsp, fmt.Sprintf(format, args...)}
}

// turn waits until the cluster dates a change otherwise than the last one, which it does in whole seconds, and changes readiness.
func (s *relayScene) turn(pod string, ready bool) {
	s.Helper()
	last := time.Now().Unix()
	require.Eventually(s, func() bool { return time.Now().Unix() > last }, patience, time.Millisecond)
	s.ready(pod, ready)
}

// stranger registers a target that is no pod's at the trench process.
func (s *relayScene) stranger(number int, trench string, st nspv1.Target_Status) error {
	s.Helper()
	conn, err := s.trench.Dial()
	require.NoError(s, err)
	defer conn.Close()
	in := legacyStreamA()
	in.Conduit.Trench.Name = trench
	_, err = nspv1.NewTargetRegistryClient(conn).Register(s.within(), &nspv1.Target{
		Ips: []string{fmt.Sprintf("172.16.9.%d/24", number)}, Stream: in, Status: st, Context: map[string]string{"identifier": "10"}, // which no TAPA here draws
	})
	return err
}

// What is measured moves when that happens which it counts, on real processes.
func TestMetricsMove(t *testing.T) {
	s := newRelayScene(t, "--entry-timeout=4s")
	s.service("web", "stream-a")
	s.oldTAPA("web-1", 1)
	s.has(1)

	for _, from := range []string{"cluster", "event"} {
		ready := from == "event"
		s.meter("nsp_readiness_propagation_seconds_count{from=%q}", from).grows(func() { s.turn("web-1", ready) })
	}
	s.has(1)
	age := s.meter("nsp_namespace_state_age_seconds{namespace=%q}", s.namespace)
	before := age.read()
	age.becomes("grows by itself", func(now float64) bool { return now > before+1 })
	before = age.read()
	s.ready("web-1", false)
	age.becomes("falls when the API server says something", func(now float64) bool { return now < before })
	configured := s.meter("nsp_configuration_state_age_seconds{trench=%q}", "trench-a")
	before = configured.read()
	configured.becomes("grows by itself", func(now float64) bool { return now > before })

	watchers := s.meter("nsp_watchers{method=%q}", feedMethod)
	lb, err := play.NewLB(s.client(), "trench-a", "conduit-a")
	require.NoError(t, err)
	stop := s.background(lb.Run)
	watchers.is(1)
	stop()
	watchers.is(0)
	for _, queue := range []string{"nsp_engine_backlog", "nsp_status_queue"} {
		s.meter("%s", queue).is(0) // when nothing happens
	}
	s.meterRegistry()
	s.meterStalled()
}

// meterRegistry is of operations, identifiers, leases and refusals.
func (s *relayScene) meterRegistry() {
	s.Helper()
	held := s.meter("nsp_stream_identifiers{conduit=%q,stream=%q,trench=%q}", "conduit-a", "stream-a", "trench-a")
	require.InDelta(s, 10, s.meter("nsp_stream_max_targets{conduit=%q,stream=%q,trench=%q}", "conduit-a", "stream-a", "trench-a").read(), 0)
	one, blocked := held.read(), s.meter("nsp_registry_blocked")
	s.meter("nsp_registry_operations_total{result=%q}", "ok").grows(func() {
		for range 2 { // the first one stores it, the second one enables it
			require.NoError(s, s.stranger(1, "trench-a", nspv1.Target_ENABLED))
		}
	})
	held.is(one + 1)
	require.Zero(s, blocked.read())
	for range 2 {
		require.NoError(s, s.stranger(2, "trench-a", nspv1.Target_ENABLED))
	}
	blocked.is(1)
	s.meter("nsp_pool_unmatched_targets{namespace=%q,service=%q}", s.namespace, "web").is(2)
	s.meter("nsp_registry_expired_total").grows(func() {}) // nobody refreshes them
	held.is(one)
	blocked.is(0)

	require.NoError(s, play.Configure(s.Context(), s.cluster.Client(), s.namespace, "trench-a", "conduit-a", map[string]int{"stream-a": 1}))
	s.meter("nsp_stream_max_targets{conduit=%q,stream=%q,trench=%q}", "conduit-a", "stream-a", "trench-a").is(1)
	_, _ = s.reserve(s.Context(), 5, false) // unless web-1 has it already
	ctx, stop := context.WithCancel(s.Context())
	gone := make(chan error, 1)
	go func() { _, err := s.reserve(ctx, 3, true); gone <- err }()
	s.meter("nsp_registry_queued").is(1)
	stop()
	require.Error(s, <-gone)
	require.NoError(s, play.Configure(s.Context(), s.cluster.Client(), s.namespace, "trench-a", "conduit-a", map[string]int{"stream-a": 10}))
	s.meter("nsp_stream_max_targets{conduit=%q,stream=%q,trench=%q}", "conduit-a", "stream-a", "trench-a").is(10)

	refused := s.meter("nsp_refused_total{reason=%q}", "other-trench")
	refused.of = s.trench
	refused.grows(func() {
		require.Equal(s, codes.PermissionDenied, status.Code(s.stranger(1, "trench-b", nspv1.Target_DISABLED)))
	})
}

// meterStalled has changes that a load balancer which does not read for a while never sees.
func (s *relayScene) meterStalled() {
	s.Helper()
	const window = 64 << 10 // else it grows to what this test takes long to fill
	conn, err := grpc.NewClient(s.nsp.Address(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStaticStreamWindowSize(window), grpc.WithStaticConnWindowSize(window))
	require.NoError(s, err)
	defer conn.Close()
	watch, err := targetpoolv1.NewTargetFeedClient(conn).Watch(s.within(), &targetpoolv1.TargetFeedWatchRequest{
		Conduit: &targetpoolv1.Conduit{Namespace: s.namespace, Trench: "trench-a", Name: "conduit-a"},
	})
	require.NoError(s, err)
	_, err = watch.Recv() // and that was it
	require.NoError(s, err)
	coalesced, lag := s.meter("nsp_coalesced_changes_total"), s.meter("nsp_watch_lag_seconds{method=%q}", feedMethod)
	great := &nspv1.Target{Stream: legacyStreamA(), Context: map[string]string{"identifier": "10"}}
	for i := range 1000 {
		great.Ips = append(great.Ips, fmt.Sprintf("172.17.%d.%d/16", i/250, i%250+1))
	}
	targets := nspv1.NewTargetRegistryClient(conn)
	until := s.within()
	change := func() {
		for _, great.Status = range []nspv1.Target_Status{nspv1.Target_DISABLED, nspv1.Target_ENABLED} {
			_, err := targets.Register(until, great)
			require.NoError(s, err)
		}
	}
	for lag.read() == 0 { // until what is on the way has filled its window
		require.NoError(s, until.Err(), "nobody is behind")
		change()
	}
	before := coalesced.read()
	change()
	change()
	for coalesced.read() == before { // which is known when it reads on
		_, err := watch.Recv()
		require.NoError(s, err, "nothing coalesces")
	}
}
