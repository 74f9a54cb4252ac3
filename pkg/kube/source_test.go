package kube

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/pool"
	"github.com/nordix/meridio-nsp/test/cluster"
)

func (e *env) source(t *testing.T, namespaces ...string) (*Source, *sink, *logs) {
	t.Helper()
	log, lines := newLog()
	posted := &sink{}
	s := NewSource(SourceConfig{Client: e.client, Sink: posted, Namespaces: namespaces, Log: log})
	run(t, s.Run)
	return s, posted, lines
}

func TestSourceInitialStateAndDifferences(t *testing.T) {
	e := newEnv(t, readServices, readSlices)
	ctx := t.Context()
	service, err := e.cluster.Service(ctx, cluster.ServiceConfig{Namespace: e.ns, Name: "pool", Labels: poolLabels(), Selector: map[string]string{"app": "a"}})
	require.NoError(t, err)
	_, err = e.cluster.Service(ctx, cluster.ServiceConfig{Namespace: e.ns, Name: "ordinary", Selector: map[string]string{"app": "a"}})
	require.NoError(t, err)
	pod, err := e.cluster.Pod(ctx, cluster.PodConfig{Namespace: e.ns, Name: "p", Labels: map[string]string{"app": "a"}})
	require.NoError(t, err)
	ready, err := e.cluster.SetReady(ctx, e.ns, "p", true)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return e.readySlices(t) == 2 }, patience, tick) // one of each family

	s, posted, _ := e.source(t, e.ns)
	synced := as[engine.NamespaceSynced](t, posted.take(t, 1)[0])
	require.Equal(t, e.ns, synced.Namespace)
	require.Len(t, synced.Services, 1)
	require.Equal(t, "pool", synced.Services[0].Name)
	require.True(t, synced.Services[0].HasSelector)
	require.NotContains(t, synced.Services[0].Labels, "app")
	require.Len(t, synced.Slices, 2)
	for _, slice := range synced.Slices {
		require.Equal(t, string(service.UID), slice.OwnerUID)
		require.Equal(t, "pool", slice.Service)
		require.NotZero(t, slice.Version)
		require.Equal(t, &pool.TargetRef{Kind: "Pod", Namespace: e.ns, Name: "p", UID: string(pod.UID)}, slice.Endpoints[0].Target)
	}
	require.Equal(t, []NamespaceState{{Name: e.ns, Synced: true}}, []NamespaceState{{Name: s.Namespaces()[0].Name, Synced: s.Namespaces()[0].Synced, Err: s.Namespaces()[0].Err}})

	// P1: readiness only. Kubernetes counts transitions in seconds, and dates no two in the same one.
	require.Eventually(t, func() bool { return time.Now().Unix() > ready.Unix() }, patience, tick)
	patched, err := e.cluster.SetReady(ctx, e.ns, "p", false)
	require.NoError(t, err)
	for _, ev := range posted.take(t, 2) {
		slice := as[engine.SliceSet](t, ev).Slice
		require.False(t, *slice.Endpoints[0].Ready)
		require.WithinDuration(t, patched, slice.Changed, 2*time.Second)
	}

	// P23: the last pod goes.
	require.NoError(t, e.admin.CoreV1().Pods(e.ns).Delete(ctx, "p", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
	require.Eventually(t, func() bool { return emptied(posted.all()) }, patience, tick)
	posted.take(t, len(posted.all()))

	require.NoError(t, e.cluster.DeleteService(ctx, e.ns, "pool"))
	require.Eventually(t, func() bool { return len(posted.all()) >= 3 }, patience, tick)
	require.Contains(t, posted.all(), engine.Event(engine.ServiceGone{Ref: pool.Ref{Namespace: e.ns, Name: "pool"}}))
}

func (e *env) readySlices(t *testing.T) (n int) {
	list, err := e.admin.DiscoveryV1().EndpointSlices(e.ns).List(t.Context(), metav1.ListOptions{LabelSelector: marked})
	if err != nil {
		return 0
	}
	for _, s := range list.Items {
		if len(s.Endpoints) == 1 && *s.Endpoints[0].Conditions.Ready {
			n++
		}
	}
	return n
}

// emptied is whether the last word on two slices is that they are empty.
func emptied(events []engine.Event) bool {
	last := map[string]int{}
	for _, ev := range events {
		if set, ok := ev.(engine.SliceSet); ok {
			last[set.Slice.Name] = len(set.Slice.Endpoints)
		}
	}
	sum := 0
	for _, n := range last {
		sum += n
	}
	return len(last) == 2 && sum == 0
}

// P5: the marker goes from the Service, while its slices still bear it; and comes back.
func TestSourceMarkerRemoved(t *testing.T) {
	e := newEnv(t, readServices, readSlices)
	e.service(t, "pool")
	e.slice(t, e.ns, "x", "pool")
	_, posted, _ := e.source(t, e.ns)
	posted.take(t, 1)

	e.relabel(t, "pool", "null")
	require.Equal(t, engine.ServiceGone{Ref: pool.Ref{Namespace: e.ns, Name: "pool"}}, posted.take(t, 1)[0])
	e.relabel(t, "pool", pool.MarkerValue)
	require.Equal(t, "pool", as[engine.ServiceSet](t, posted.take(t, 1)[0]).Service.Name)
	e.relabel(t, "pool", "another-proxy")
	require.Equal(t, engine.ServiceGone{Ref: pool.Ref{Namespace: e.ns, Name: "pool"}}, posted.take(t, 1)[0])
}

// P7: a change that means nothing to pools posts nothing.
func TestSourceStatusChangesPostNothing(t *testing.T) {
	e := newEnv(t, readServices, readSlices)
	e.service(t, "pool")
	_, posted, _ := e.source(t, e.ns)
	posted.take(t, 1)

	ctx := t.Context()
	for i := range 1000 {
		patch := fmt.Sprintf(`{"status":{"conditions":[{"type":"example.com/T","status":"True","reason":"R","message":"%d","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`, i)
		_, err := e.admin.CoreV1().Services(e.ns).Patch(ctx, "pool", types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
		require.NoError(t, err)
	}
	_, err := e.admin.CoreV1().Services(e.ns).Patch(ctx, "pool", types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"meridio.nordix.org/draining":"keep"}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	require.Equal(t, "keep", as[engine.ServiceSet](t, posted.take(t, 1)[0]).Service.Annotations[pool.AnnotationDraining])
}

// D10: a slice and a Service are deleted while the watch is cut, and the history that would tell is gone.
func TestSourceDeletedWhileCut(t *testing.T) {
	e := newEnv(t, readServices, readSlices)
	if e.cluster.External() {
		t.Skip("restarts the API server")
	}
	ctx := t.Context()
	e.service(t, "stays")
	e.service(t, "goes")
	e.slice(t, e.ns, "stays", "stays")
	e.slice(t, e.ns, "goes", "goes")
	s, posted, lines := e.source(t, e.ns)
	posted.take(t, 1)

	e.gate.set(false)
	require.Eventually(t, func() bool { return s.Namespaces()[0].Err != nil }, patience, tick)
	require.IsType(t, engine.NamespaceUnavailable{}, posted.take(t, 1)[0])
	require.NoError(t, e.cluster.DeleteService(ctx, e.ns, "goes"))
	require.NoError(t, e.admin.DiscoveryV1().EndpointSlices(e.ns).Delete(ctx, "goes", metav1.DeleteOptions{}))
	made := e.slice(t, e.ns, "made", "stays")
	require.NoError(t, e.cluster.Compact(ctx))
	require.NoError(t, e.cluster.StopAPIServer())
	require.NoError(t, e.cluster.StartAPIServer(ctx))
	require.Empty(t, posted.all(), "the state is held")
	e.gate.set(true)

	got := posted.take(t, 3)
	require.Contains(t, got, engine.Event(engine.ServiceGone{Ref: pool.Ref{Namespace: e.ns, Name: "goes"}}))
	require.Contains(t, got, engine.Event(engine.SliceGone{Namespace: e.ns, Name: "goes"}))
	require.Contains(t, got, endpointSlices.set(convertSlice(nil, made)))
	require.Eventually(t, func() bool { return s.Namespaces()[0].Err == nil }, patience, tick)
	require.Equal(t, 1, lines.count("cannot be read"), "one line per change of fault")
	require.Equal(t, 1, lines.count("can be read again"))

	e.slice(t, e.ns, "later", "stays")
	require.Equal(t, "later", as[engine.SliceSet](t, posted.take(t, 1)[0]).Slice.Name)
}

func TestSourceRoleMissingThenGiven(t *testing.T) {
	e := newEnv(t, readServices, readSlices)
	other := e.cluster.Namespace(t)
	e.slice(t, other, "x", "pool")
	s, posted, lines := e.source(t, e.ns, other)

	got := posted.take(t, 2)
	require.Contains(t, got, engine.Event(engine.NamespaceSynced{Namespace: e.ns, Services: []pool.Service{}, Slices: []pool.Slice{}}),
		"the namespace without a Role holds up nobody")
	for _, ev := range got {
		if u, ok := ev.(engine.NamespaceUnavailable); ok {
			require.Equal(t, other, u.Namespace)
			require.True(t, apierrors.IsForbidden(u.Err))
			require.ErrorContains(t, u.Err, other)
		}
	}
	age := func() time.Duration { return s.Namespaces()[index(s, other)].Age }
	first := age()
	require.Eventually(t, func() bool { return age() > first+time.Second }, patience, tick, "it tries on, and its age grows")
	require.Empty(t, posted.all())
	require.Equal(t, 1, lines.count("cannot be read"))

	e.grant(t, other, readSlices) // half of it is no state
	require.Never(t, func() bool { return len(posted.all()) > 0 }, 2*time.Second, 100*time.Millisecond)
	e.grant(t, other, readServices, readSlices)
	synced := as[engine.NamespaceSynced](t, posted.take(t, 1)[0])
	require.Equal(t, other, synced.Namespace)
	require.Len(t, synced.Slices, 1)
	require.NoError(t, s.Namespaces()[index(s, other)].Err)
	require.Equal(t, 6, series(t, s))
}

func index(s *Source, name string) int {
	for i, n := range s.Namespaces() {
		if n.Name == name {
			return i
		}
	}
	return -1
}

func TestSourceNamespacesChange(t *testing.T) {
	e := newEnv(t, readServices, readSlices)
	e.service(t, "pool")
	s, posted, _ := e.source(t)
	require.Empty(t, s.Namespaces())

	s.SetNamespaces([]string{e.ns, e.ns})
	require.Len(t, as[engine.NamespaceSynced](t, posted.take(t, 1)[0]).Services, 1)
	s.SetNamespaces(nil)
	require.Equal(t, engine.NamespaceDropped{Namespace: e.ns}, posted.take(t, 1)[0])
	s.SetNamespaces([]string{e.ns})
	require.Len(t, as[engine.NamespaceSynced](t, posted.take(t, 1)[0]).Services, 1)
}

// Namespaces that come and go disturb no other, also where one comes without its Role and goes while it is being tried.
func TestSourceNamespacesDisturbNobody(t *testing.T) {
	e := newEnv(t, readServices, readSlices)
	without, with := e.cluster.Namespace(t), e.cluster.Namespace(t)
	e.grant(t, with, readServices, readSlices)
	e.service(t, "pool")
	s, posted, _ := e.source(t, e.ns)
	posted.take(t, 1)

	s.SetNamespaces([]string{e.ns, without})
	require.Equal(t, without, as[engine.NamespaceUnavailable](t, posted.take(t, 1)[0]).Namespace)
	e.slice(t, e.ns, "x", "pool")
	require.Equal(t, "x", as[engine.SliceSet](t, posted.take(t, 1)[0]).Slice.Name)

	// Sets that follow each other fast: the last one counts, and each that was left has been dropped.
	for range 10 {
		s.SetNamespaces([]string{e.ns, with})
		s.SetNamespaces([]string{e.ns, without})
	}
	s.SetNamespaces([]string{e.ns, with})
	require.Eventually(t, func() bool { return watches(posted.all(), without, with) }, patience, tick)
	posted.take(t, len(posted.all()))
	e.slice(t, with, "y", "pool")
	require.Equal(t, "y", as[engine.SliceSet](t, posted.take(t, 1)[0]).Slice.Name)
	e.slice(t, e.ns, "z", "pool")
	require.Equal(t, "z", as[engine.SliceSet](t, posted.take(t, 1)[0]).Slice.Name, "it was never begun anew")
}

// watches is whether the last word on one namespace is that it was dropped, and on the other that it was read.
func watches(events []engine.Event, dropped, read string) bool {
	last := map[string]engine.Event{}
	for _, ev := range events {
		switch ev := ev.(type) {
		case engine.NamespaceDropped:
			last[ev.Namespace] = ev
		case engine.NamespaceUnavailable:
			last[ev.Namespace] = ev
		case engine.NamespaceSynced:
			last[ev.Namespace] = ev
		}
	}
	_, gone := last[dropped].(engine.NamespaceDropped)
	_, synced := last[read].(engine.NamespaceSynced)
	return gone && synced && len(last) == 2
}

// The end of Run does not wait for an API server that is away.
func TestSourceEndsWhileUnreachable(t *testing.T) {
	e := newEnv(t, readServices, readSlices)
	e.gate.set(false)
	posted := &sink{}
	s := NewSource(SourceConfig{Client: e.client, Sink: posted, Namespaces: []string{e.ns}})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	require.IsType(t, engine.NamespaceUnavailable{}, posted.take(t, 1)[0])
	cancel()
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(patience):
		require.Fail(t, "Run does not end")
	}
}
