package engine

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

func usagesOf(s *state) map[string]Usage {
	all := map[string]Usage{}
	for _, u := range s.usages() {
		all[u.Stream.Name] = u
	}
	return all
}

// Only streams that are configured are counted, whatever clients register in.
func TestUsages(t *testing.T) { // A client must not be able to make metrics grow.
	n := newNSP(t)
	x3 := key("t1", "c1", "x3")
	n.do(NamespaceSynced{Namespace: own}, TrenchConfigured{Trench: "t1", MaxTargets: map[stream.Key]uint32{x1: 3, x2: 0}})
	n.register(target(x1, 1))
	n.change(n.book.register(target(x1, 2))) // DISABLED holds nothing
	n.register(target(x3, 1))
	n.register(target(key("made-up", "c1", "x9"), 1))
	want := map[string]Usage{"x1": {Stream: x1, Held: 1, Limit: 3}, "x2": {Stream: x2, Limit: 100}}
	require.Equal(t, want, usagesOf(n.s))

	n.change(n.book.register(target(x1, 2)))
	require.Equal(t, 2, usagesOf(n.s)["x1"].Held)
	n.unregister(target(x1, 1))
	require.Equal(t, 1, usagesOf(n.s)["x1"].Held)
	n.unregister(target(x1, 2))
	require.Equal(t, want["x2"], usagesOf(n.s)["x2"])
	require.Zero(t, usagesOf(n.s)["x1"].Held)
}

// What is measured is what the cluster caused, and nothing that a client did.
func TestCommitsSayWhatTheClusterCaused(t *testing.T) {
	var mu sync.Mutex
	var events, causes []time.Time
	e, _ := start(t, Config{Namespace: own, Committed: func(c Commit) {
		mu.Lock()
		defer mu.Unlock()
		events, causes = append(events, c.Events...), append(causes, c.Causes...)
	}})
	told := func() (int, []time.Time) {
		_, err := e.Pools(t.Context(), "")
		require.NoError(t, err)
		_, err = e.Pools(t.Context(), "") // the turn of the first question is over
		require.NoError(t, err)
		mu.Lock()
		defer mu.Unlock()
		n, c := len(events), causes
		events, causes = nil, nil
		return n, c
	}
	b := newBook()
	e.Post(NamespaceSynced{Namespace: own}, TrenchConfigured{Trench: "t1"}, service("web", x1))
	e.Post(slice("web-1", "web", 10, ready("u1"), ready("u2")))
	n, c := told()
	require.Zero(t, n, "a slice that concerns no target")
	require.Empty(t, c)
	for i := 1; i <= 2; i++ {
		a := target(x1, i)
		e.Registered(t.Context(), []registry.Change{b.register(a), b.register(a)})
	}
	n, c = told()
	require.Zero(t, n)
	require.Empty(t, c, "a registration is caused by its client")

	e.Post(slice("web-1", "web", 20, notReady("u1"), ready("u2")))
	n, c = told()
	require.Equal(t, 1, n)
	require.Equal(t, []time.Time{time.Unix(20, 0)}, c, "one target changed")

	e.Post(slice("web-1", "web", 30, notReady("u1"), ready("u2")))
	n, c = told()
	require.Zero(t, n, "nothing changed")
	require.Empty(t, c)

	undated := slice("web-1", "web", 40, ready("u1"), notReady("u2"))
	undated.Slice.Changed = time.Time{}
	e.Post(undated)
	n, c = told()
	require.Equal(t, 1, n)
	require.Empty(t, c, "the cluster did not say when")
}
