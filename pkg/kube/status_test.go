package kube

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/pool"
)

// interval is short, to spare the tests the waiting.
const interval = 50 * time.Millisecond

func (e *env) status(t *testing.T) (*Status, *logs) {
	t.Helper()
	log, lines := newLog()
	s := NewStatus(StatusConfig{Client: e.client, Interval: interval, Log: log})
	run(t, s.Run)
	return s, lines
}

func (e *env) get(t *testing.T, name string) *corev1.Service {
	t.Helper()
	s, err := e.admin.CoreV1().Services(e.ns).Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	return s
}

// await waits for reason and message of a condition.
func (e *env) await(t *testing.T, name, kind, reason, message string) *corev1.Service {
	t.Helper()
	var s *corev1.Service
	require.Eventually(t, func() bool {
		s = e.get(t, name)
		c := find(s.Status.Conditions, kind)
		return c != nil && c.Reason == reason && c.Message == message
	}, patience, tick, "%s: %s", reason, message)
	return s
}

func (e *env) events(t *testing.T, service, reason string) []eventsv1.Event {
	t.Helper()
	list, err := e.admin.EventsV1().Events(e.ns).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	var found []eventsv1.Event
	for _, ev := range list.Items {
		if ev.Regarding.Name == service && ev.Reason == reason {
			found = append(found, ev)
		}
	}
	return found
}

func poolOf(s *corev1.Service, message string, active int) map[pool.Ref]*engine.PoolStatus {
	p := accepted(pool.Counts{Members: 2, Ready: 2, Active: 2})
	p.Ref, p.UID, p.Message = pool.Ref{Namespace: s.Namespace, Name: s.Name}, string(s.UID), message
	return map[pool.Ref]*engine.PoolStatus{p.Ref: {Pool: p, Targets: engine.Counts{Registered: 2, Active: active}}}
}

func gone(s *corev1.Service) map[pool.Ref]*engine.PoolStatus {
	return map[pool.Ref]*engine.PoolStatus{{Namespace: s.Namespace, Name: s.Name}: nil}
}

func TestStatusLife(t *testing.T) {
	e := newEnv(t, readServices, writeStatus, writeEvents)
	service := e.service(t, "pool")
	s, _ := e.status(t)
	s.Pools(poolOf(service, "first", 2))
	first := e.await(t, "pool", ConditionAccepted, "Accepted", "first")
	programmed := find(first.Status.Conditions, ConditionProgrammed)
	require.Equal(t, metav1.ConditionTrue, programmed.Status)
	require.False(t, programmed.LastTransitionTime.IsZero())
	require.Equal(t, service.Spec, first.Spec)
	require.Eventually(t, func() bool { return len(e.events(t, "pool", "Accepted")) == 1 }, patience, tick)
	require.Equal(t, corev1.EventTypeNormal, e.events(t, "pool", "Accepted")[0].Type)

	// The same again, to this one and one that was started anew, writes nothing (P7).
	restarted, _ := e.status(t)
	for range 20 {
		s.Pools(poolOf(service, "first", 2))
		restarted.Pools(poolOf(service, "first", 2))
	}
	other := e.service(t, "other") // served after the first, as there is one queue
	s.Pools(poolOf(other, "other", 0))
	e.await(t, "other", ConditionProgrammed, ReasonPartly, "0 of 2 members are active")
	restarted.Pools(poolOf(other, "other again", 0)) // not before, as the two do not wait for each other
	e.await(t, "other", ConditionAccepted, "Accepted", "other again")
	require.Equal(t, first.ResourceVersion, e.get(t, "pool").ResourceVersion)

	// A message changes without a transition; a status with one.
	s.Pools(poolOf(service, "second", 2))
	second := e.await(t, "pool", ConditionAccepted, "Accepted", "second")
	require.Equal(t, find(first.Status.Conditions, ConditionAccepted).LastTransitionTime, find(second.Status.Conditions, ConditionAccepted).LastTransitionTime)

	refused := poolOf(service, "labels are missing", 0)
	for _, status := range refused {
		status.Pool.Accepted, status.Pool.Reason = false, pool.ReasonIncompleteLabels
	}
	s.Pools(refused)
	e.await(t, "pool", ConditionProgrammed, ReasonNotAccepted, "not accepted: IncompleteLabels")
	require.Eventually(t, func() bool { return len(e.events(t, "pool", pool.ReasonIncompleteLabels)) == 1 }, patience, tick)
	require.Equal(t, corev1.EventTypeWarning, e.events(t, "pool", pool.ReasonIncompleteLabels)[0].Type)
	require.Len(t, e.events(t, "pool", "Accepted"), 1)
	require.Positive(t, series(t, s))
}

// With the marker gone the conditions go, those of others stay, and one event says who serves the Service now.
func TestStatusMarkerRemoved(t *testing.T) {
	e := newEnv(t, readServices, writeStatus, writeEvents)
	service := e.service(t, "pool")
	_, err := e.admin.CoreV1().Services(e.ns).Patch(t.Context(), "pool", "application/merge-patch+json",
		[]byte(`{"status":{"conditions":[{"type":"example.com/T","status":"True","reason":"R","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`), metav1.PatchOptions{}, "status")
	require.NoError(t, err)
	s, _ := e.status(t)
	s.Pools(poolOf(service, "first", 2))
	require.Len(t, e.await(t, "pool", ConditionAccepted, "Accepted", "first").Status.Conditions, 3)

	e.relabel(t, "pool", "null")
	s.Pools(gone(service))
	require.Eventually(t, func() bool { return len(e.get(t, "pool").Status.Conditions) == 1 }, patience, tick)
	require.Equal(t, "example.com/T", e.get(t, "pool").Status.Conditions[0].Type)
	require.Eventually(t, func() bool { return len(e.events(t, "pool", "MarkerRemoved")) == 1 }, patience, tick)
	note := e.events(t, "pool", "MarkerRemoved")[0].Note
	require.Contains(t, note, "streams of its pods are closed")
	require.Contains(t, note, "headless")

	s.Pools(gone(service))
	e.relabel(t, "pool", pool.MarkerValue)
	s.Pools(poolOf(service, "back", 2))
	e.await(t, "pool", ConditionAccepted, "Accepted", "back")
	require.Len(t, e.events(t, "pool", "MarkerRemoved"), 1)
}

// P5: a marker that was taken away while no NSP ran takes the conditions with it at the next start, and no others.
func TestStatusMarkerRemovedWhileAway(t *testing.T) {
	e := newEnv(t, readServices, writeStatus, writeEvents)
	left, stays := e.service(t, "left"), e.service(t, "stays")
	log, _ := newLog()
	before := NewStatus(StatusConfig{Client: e.client, Interval: interval, Log: log})
	stop := run(t, before.Run)
	for _, service := range []*corev1.Service{left, stays} {
		before.Pools(poolOf(service, "first", 2))
		e.await(t, service.Name, ConditionAccepted, "Accepted", "first")
	}
	stop()
	e.relabel(t, "left", "null")

	e.gate.set(false)
	log, lines := newLog()
	s := NewStatus(StatusConfig{Client: e.client, Namespaces: []string{e.ns}, Interval: interval, Log: log})
	run(t, s.Run)
	require.Eventually(t, func() bool { return lines.count("fault=Unreachable") == 1 }, patience, tick)
	e.gate.set(true)
	require.Eventually(t, func() bool { return len(e.get(t, "left").Status.Conditions) == 0 }, patience, tick)
	require.Eventually(t, func() bool { return len(e.events(t, "left", "MarkerRemoved")) == 1 }, patience, tick)
	require.Len(t, e.get(t, "stays").Status.Conditions, 2)
}

// Likewise in a namespace that joins while it runs, once it can be read.
func TestNamespaceThatJoinsIsSwept(t *testing.T) {
	e := newEnv(t, readServices, writeStatus, writeEvents)
	left := e.service(t, "left")
	before, _ := e.status(t)
	before.Pools(poolOf(left, "first", 2))
	e.await(t, "left", ConditionAccepted, "Accepted", "first")
	e.relabel(t, "left", "null")

	s, lines := e.status(t)
	e.grant(t, e.ns, writeStatus, writeEvents)
	s.SetNamespaces([]string{e.ns, e.ns})
	require.Eventually(t, func() bool { return lines.count("fault=Forbidden") == 1 }, patience, tick)
	s.SetNamespaces([]string{e.ns}) // it is being looked through
	e.grant(t, e.ns, readServices, writeStatus, writeEvents)
	require.Eventually(t, func() bool { return len(e.get(t, "left").Status.Conditions) == 0 }, patience, tick)
	require.Equal(t, 1, lines.count("fault=Forbidden"))
}

// What pools do is measured, as long as they are pools.
func TestPoolMetrics(t *testing.T) {
	s := NewStatus(StatusConfig{})
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "red", Name: "pool"}}
	status := poolOf(service, "", 1)
	for _, is := range status {
		is.Pool.Panic, is.Strangers.Total = true, 3
	}
	s.Pools(status)
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(s))
	families, err := registry.Gather()
	require.NoError(t, err)
	got := map[string]float64{}
	for _, f := range families {
		got[f.GetName()] = f.GetMetric()[0].GetGauge().GetValue()
	}
	require.InDelta(t, 1, got["nsp_pool_panic"], 0)
	require.InDelta(t, 3, got["nsp_pool_unmatched_targets"], 0)
	require.Equal(t, 10, series(t, s))
	s.Pools(gone(service))
	require.Zero(t, series(t, s))
}

// What the engine says of a Service counts, however late an older list says otherwise.
func TestLeftoverIsNoLastWord(t *testing.T) {
	s := NewStatus(StatusConfig{})
	ref := pool.Ref{Namespace: "red", Name: "pool"}
	want := &engine.PoolStatus{}
	s.Pools(map[pool.Ref]*engine.PoolStatus{ref: want})
	s.leftover(ref)
	require.Same(t, want, s.entries[ref].want)
}

// A Service that another NSP took over keeps what that one wrote.
func TestStatusTakenOver(t *testing.T) {
	e := newEnv(t, readServices, writeStatus, writeEvents)
	service, left := e.service(t, "pool"), e.service(t, "left")
	s, _ := e.status(t)
	s.Pools(poolOf(service, "ours", 2))
	s.Pools(poolOf(left, "ours", 2))
	e.await(t, "pool", ConditionAccepted, "Accepted", "ours")
	e.await(t, "left", ConditionAccepted, "Accepted", "ours")
	theirs, _ := e.status(t)
	theirs.Pools(poolOf(service, "theirs", 2))
	e.await(t, "pool", ConditionAccepted, "Accepted", "theirs")

	s.Pools(gone(service))
	s.Pools(gone(left))
	require.Eventually(t, func() bool { return len(e.get(t, "left").Status.Conditions) == 0 }, patience, tick)
	require.Len(t, e.get(t, "pool").Status.Conditions, 2)
	require.Empty(t, e.events(t, "left", "MarkerRemoved"), "the marker is there")
}

// P24: a write that fails is tried until it is acknowledged, with the latest content.
func TestStatusRetried(t *testing.T) {
	e := newEnv(t, readServices)
	service := e.service(t, "pool")
	s, lines := e.status(t)
	s.Pools(poolOf(service, "first", 2))
	require.Eventually(t, func() bool { return lines.count("cannot be written") == 1 }, patience, tick)
	require.Equal(t, 1, lines.count("fault=Forbidden"))
	s.Pools(poolOf(service, "latest", 2))
	require.Empty(t, e.get(t, "pool").Status.Conditions)

	e.grant(t, e.ns, readServices, writeStatus, writeEvents)
	e.await(t, "pool", ConditionAccepted, "Accepted", "latest")
	require.Equal(t, 1, lines.count("cannot be written"), "one line, however many tries")

	e.gate.set(false) // likewise when the API server is away
	s.Pools(poolOf(service, "while away", 2))
	require.Eventually(t, func() bool { return lines.count("fault=Unreachable") == 1 }, patience, tick)
	e.gate.set(true)
	e.await(t, "pool", ConditionAccepted, "Accepted", "while away")
}

// A Service made anew under its name gets nothing that was meant for the old one.
func TestStatusOfServiceMadeAnew(t *testing.T) {
	e := newEnv(t, readServices, writeStatus, writeEvents)
	old := e.service(t, "pool")
	s, _ := e.status(t)
	s.Pools(poolOf(old, "old", 2))
	e.await(t, "pool", ConditionAccepted, "Accepted", "old")
	require.NoError(t, e.cluster.DeleteService(t.Context(), e.ns, "pool"))
	anew := e.service(t, "pool")
	s.Pools(poolOf(old, "late", 2))
	other := e.service(t, "other")
	s.Pools(poolOf(other, "other", 2))
	e.await(t, "other", ConditionAccepted, "Accepted", "other")
	require.Empty(t, e.get(t, "pool").Status.Conditions)
	s.Pools(poolOf(anew, "anew", 2))
	e.await(t, "pool", ConditionAccepted, "Accepted", "anew")
	require.NoError(t, e.cluster.DeleteService(t.Context(), e.ns, "pool"))
	s.Pools(gone(anew))
	require.Eventually(t, func() bool { s.mu.Lock(); defer s.mu.Unlock(); return len(s.entries) == 1 }, patience, tick, "forgotten")
}

// Flapping counts are written at the given pace, and the last word is written.
func TestStatusPace(t *testing.T) {
	e := newEnv(t, readServices, writeStatus, writeEvents)
	service := e.service(t, "pool")
	log, _ := newLog()
	s := NewStatus(StatusConfig{Client: e.client, Interval: time.Second, Log: log})
	run(t, s.Run)
	begin := time.Now()
	seen := map[string]bool{}
	for i := 0; time.Since(begin) < 2500*time.Millisecond; i++ {
		s.Pools(poolOf(service, "flap", i%3))
		seen[e.get(t, "pool").ResourceVersion] = true
	}
	took := time.Since(begin)
	s.Pools(poolOf(service, "last", 2))
	e.await(t, "pool", ConditionAccepted, "Accepted", "last")
	require.LessOrEqual(t, len(seen), 2+int(took.Seconds()), "the Service as made, and a write a second")
	require.GreaterOrEqual(t, len(seen), 2)
}

// A ClusterIP Service is told to be load balanced by kube-proxy again, or by the proxy that it names.
func TestMarkerRemovedNote(t *testing.T) {
	require.NotContains(t, markerRemoved(&corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: "10.0.0.1"}}), "headless")
	named := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{pool.LabelMarker: "other"}}}
	require.Contains(t, markerRemoved(named), "left to the proxy other")
}
