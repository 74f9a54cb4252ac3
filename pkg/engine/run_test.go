package engine

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/pkg/feed"
	"github.com/nordix/meridio-nsp/pkg/registry"
)

// start runs an engine until the end of the test, or until stop.
func start(t *testing.T, cfg Config, entries ...*registry.Entry) (e *Engine, stop func()) {
	e = New(cfg, entries)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- e.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-done)
	})
	t.Cleanup(stop)
	return e, stop
}

func TestReadYourWrites(t *testing.T) {
	e, _ := start(t, Config{Namespace: own})
	b := newBook()
	e.Post(TrenchConfigured{Trench: "t1"})
	for i := range 100 {
		a := target(x1, i)
		e.Registered(t.Context(), []registry.Change{b.register(a), b.register(a)})
		w, err := e.List(t.Context(), anyOf(x1))
		require.NoError(t, err)
		got, ok := ids(w)
		require.True(t, ok)
		require.Len(t, got, i+1)
		w.Close()
	}
	rows, err := e.Targets(t.Context(), Filter{Trench: "t1"})
	require.NoError(t, err)
	require.Len(t, rows, 100)
}

func TestStoppedEngine(t *testing.T) {
	e, stop := start(t, Config{Namespace: own})
	stop()
	_, err := e.Feed(t.Context(), x1.Of())
	require.ErrorIs(t, err, ErrStopped)
	e.Post(TrenchConfigured{Trench: "t1"})
	e.Registered(t.Context(), []registry.Change{newBook().register(target(x1, 1))})
	require.Empty(t, e.inbox)
}

// Whoever waits when the engine ends is told so.
func TestStopAnswersWhoWaits(t *testing.T) {
	e := New(Config{Namespace: own}, nil)
	errs := make(chan error)
	for range 10 {
		go func() {
			w, err := e.List(t.Context(), anyOf(x1))
			if w != nil {
				w.Close()
			}
			errs <- err
		}()
	}
	require.Eventually(t, func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return len(e.inbox) == 10
	}, 10*time.Second, time.Millisecond)
	e.stop()
	for range 10 {
		require.ErrorIs(t, <-errs, ErrStopped)
	}
}

// A question whose caller gave up leaves no watcher behind. // P8 P25
func TestCallerGivesUp(t *testing.T) {
	e := New(Config{Namespace: own}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := e.List(ctx, anyOf(x1))
	require.ErrorIs(t, err, context.Canceled)
	_, err = e.Assignments(ctx, w1)
	require.ErrorIs(t, err, context.Canceled)
	e.turn(e.take())
	require.Zero(t, e.out.lists.Len())
	require.Zero(t, e.out.assignments.Len())
}

func TestPoolsForPeople(t *testing.T) {
	e, _ := start(t, Config{Namespace: own, Namespaces: []string{own}})
	pools := func() []PoolDetail {
		out, err := e.Pools(t.Context(), own)
		require.NoError(t, err)
		return out
	}
	e.Post(NamespaceSynced{Namespace: own}, TrenchConfigured{Trench: "t1"})
	e.Post(service("s", x1), service("r", x2), slice("x", "s", 1, ready("u1"), notReady("u2")))
	w, err := e.Assignments(t.Context(), w1)
	require.NoError(t, err)
	b := newBook()
	e.Registered(t.Context(), []registry.Change{b.register(target(x1, 1)), b.register(target(x1, 1))})
	all := pools()
	require.Len(t, all, 2)
	require.Equal(t, "s", all[1].Pool.Name)
	require.Equal(t, Counts{Registered: 1, Active: 1}, all[1].Targets)
	require.Equal(t, []bool{true, false}, []bool{all[1].Members[0].Watched, all[1].Members[1].Watched})
	w.Close()
	require.False(t, pools()[1].Members[0].Watched)
	none, err := e.Pools(t.Context(), "app")
	require.NoError(t, err)
	require.Empty(t, none)
}

// What is told while a namespace cannot be read is marked from the first message on.
func TestStaleIsMarked(t *testing.T) {
	e, _ := start(t, Config{Namespace: own, Namespaces: []string{own}})
	topic, err := e.Feed(t.Context(), x1.Of())
	require.NoError(t, err)
	cursor := topic.Follow()
	e.Post(TrenchConfigured{Trench: "t1"}, NamespaceUnavailable{Namespace: own})
	for ok := false; !ok; {
		var more <-chan struct{}
		if _, ok, more = cursor.Next(); !ok {
			<-more
		}
	}
	require.True(t, e.Stale())
	e.Post(NamespaceSynced{Namespace: own})
	_, err = e.Pools(t.Context(), "")
	require.NoError(t, err)
	require.False(t, e.Stale())
}

func TestReporter(t *testing.T) {
	e, _ := start(t, Config{Namespace: own})
	claims := func() int {
		n, err := ask(t.Context(), e, func() int { return len(e.state.claims.byID) })
		require.NoError(t, err)
		return n
	}
	e.Post(service("s", x1), slice("x", "s", 1, ready("u1")))
	r := e.Reporter(w1)
	r.Report(Report{HasOwners: true})
	require.Zero(t, claims(), "not proven")
	r.Report(Report{Proven: true})
	require.Equal(t, 1, claims())
	r.Close()
	r.Close()
	require.Equal(t, 1, claims(), "a broken connection says nothing")
	e.Post(sliceGone("x"))
	require.Zero(t, claims())
	r.Report(Report{Proven: true})
	require.Zero(t, claims(), "a report that comes late")
}

// truth is what was true at each revision.
type truth struct {
	mu    sync.Mutex
	rows  map[uint64]map[uint64]string
	lists map[uint64]string
}

func (h *truth) note(e *Engine) {
	h.mu.Lock()
	defer h.mu.Unlock()
	rows, list := map[uint64]string{}, ""
	for _, r := range e.out.lists.Targets(Filter{Trench: "t1"}) {
		rows[r.Entry.ID] = fmt.Sprint(r.State, r.Reason)
		if enabled(x1).shows(r) {
			list += fmt.Sprint(r.Entry.ID, " ")
		}
	}
	h.rows[e.state.rev], h.lists[e.state.rev] = rows, list
}

// seen is one state that a receiver held.
type seen struct {
	rev  uint64
	rows map[uint64]string
	list string
}

// Many post, many watch, come and go; whatever a receiver holds was true at the revision it was told. // D7 P8
func TestReceiversHoldTheTruth(t *testing.T) {
	h := &truth{rows: map[uint64]map[uint64]string{}, lists: map[uint64]string{}}
	var e *Engine
	cfg := Config{Namespace: own, Namespaces: []string{own}}
	cfg.Committed = func(Commit) { h.note(e) }
	e = New(cfg, nil)
	run, stopRun := context.WithCancel(t.Context())
	var owner, posters, watchers sync.WaitGroup
	owner.Go(func() { _ = e.Run(run) })
	watching, stopWatching := context.WithCancel(t.Context())

	e.Post(NamespaceSynced{Namespace: own}, TrenchConfigured{Trench: "t1"}, service("s", x1))
	for i := range 8 {
		posters.Go(func() { post(t.Context(), e, i) })
	}
	var mu sync.Mutex
	var all []seen
	for i := range 16 {
		watchers.Go(func() {
			s := watch(watching, e, rand.New(rand.NewPCG(uint64(i), 0)))
			mu.Lock()
			defer mu.Unlock()
			all = append(all, s...)
		})
	}
	posters.Wait()
	last, err := ask(t.Context(), e, func() uint64 { return e.state.rev })
	require.NoError(t, err)
	stopWatching()
	watchers.Wait()
	stopRun()
	owner.Wait()

	require.NotEmpty(t, all)
	for _, s := range all {
		if s.rows != nil {
			require.Equal(t, h.rows[s.rev], s.rows, "feed at revision %d", s.rev)
		} else {
			require.Equal(t, h.lists[s.rev], s.list, "list at revision %d", s.rev)
		}
	}
	require.Len(t, h.rows[last], 8)
	require.Zero(t, e.out.lists.Len())
	require.Zero(t, e.out.assignments.Len())
}

// post plays a pod whose readiness flaps, whose TAPA comes and goes, and whose sidecar reports. Each has a slice of its own.
func post(ctx context.Context, e *Engine, i int) {
	r := rand.New(rand.NewPCG(uint64(i), 1))
	b := newBook()
	b.nextID = uint64(1 + 1000*i)
	a, name := target(x1, i+1), fmt.Sprint("y", i)
	uid := fmt.Sprint("u", i+1)
	reporter := e.Reporter(Workload{Namespace: own, Pod: "pod-" + uid})
	defer reporter.Close()
	for version := range 200 {
		switch r.IntN(6) {
		case 0, 1:
			e.Post(slice(name, "s", version, ready(uid)))
		case 2:
			e.Post(slice(name, "s", version, notReady(uid)))
		case 3:
			c, known := b.unregister(a.key())
			if known {
				e.Registered(ctx, []registry.Change{c})
			}
		case 4:
			reporter.Report(Report{Proven: true, Addrs: a.prefixAddrs()})
		default:
			e.Registered(ctx, []registry.Change{b.register(a), b.register(a)})
		}
	}
	e.Registered(ctx, []registry.Change{b.register(a), b.register(a)})
}

// watch subscribes, reads now and then, and ends its watches, over and over.
func watch(ctx context.Context, e *Engine, r *rand.Rand) (all []seen) {
	for ctx.Err() == nil {
		topic, err := e.Feed(ctx, x1.Of())
		if err != nil {
			break
		}
		list, err := e.List(ctx, enabled(x1))
		if err != nil {
			break
		}
		assigned, err := e.Assignments(ctx, w1)
		if err != nil {
			list.Close()
			break
		}
		cursor, has := topic.Follow(), map[uint64]string{}
		for range r.IntN(20) {
			b, ok, more := cursor.Next()
			if ok {
				apply(has, b)
				all = append(all, seen{rev: b.Revision, rows: maps.Clone(has)})
			}
			if l, rev, ok, _ := list.Next(); ok {
				s := seen{rev: rev}
				for row := range l.Rows() {
					s.list += fmt.Sprint(row.Entry.ID, " ")
				}
				all = append(all, s)
			}
			_, _, _, _ = assigned.Next()
			if r.IntN(2) == 0 {
				select {
				case <-more:
				case <-ctx.Done():
				}
			}
		}
		list.Close()
		assigned.Close()
	}
	return all
}

func apply(has map[uint64]string, b feed.Batch[uint64, Item]) {
	if b.Snapshot {
		clear(has)
	}
	for _, c := range b.Changes {
		if c.Gone {
			delete(has, c.Key)
		} else {
			has[c.Key] = fmt.Sprint(c.Value.Row.State, c.Value.Row.Reason)
		}
	}
}
