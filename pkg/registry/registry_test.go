package registry_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/registry/memory"
	"github.com/nordix/meridio-nsp/pkg/registry/sqlite"
)

var nobody registry.Caller

// batches counts what a store is given.
type batches struct {
	mu   sync.Mutex
	all  []registry.Batch
	fail error
}

func (b *batches) see(batch registry.Batch) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fail == nil {
		b.all = append(b.all, batch)
	}
	return b.fail
}

func (b *batches) setFail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fail = err
}

func (b *batches) take() []registry.Batch {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := b.all
	b.all = nil
	return all
}

func watched() (*memory.Store, *batches) {
	s, b := memory.New(), new(batches)
	s.Fail = b.see
	return s, b
}

// TestDurableThenVisibleThenAnswered: when the sink is told the store has it, and when Register returns the sink was told.
func TestDurableThenVisibleThenAnswered(t *testing.T) {
	store := memory.New()
	var told atomic.Int32
	r := run(t, registry.Config{Store: store, Sink: sinkFunc(func(_ context.Context, changes []registry.Change) {
		saved, err := store.Load(t.Context())
		if err == nil && len(changes) == 1 && len(saved.Entries) == int(told.Load()+1) {
			told.Add(1)
		}
	})})
	for i, target := range numbered(20) {
		require.NoError(t, r.Register(t.Context(), target, nobody))
		require.EqualValues(t, i+1, told.Load())
	}
}

func TestRefreshWritesNothing(t *testing.T) { // P13
	store, written := watched()
	sink := new(record)
	r := run(t, registry.Config{Store: store, Sink: sink})
	one := target("s", 7, "10.0.0.1")
	require.NoError(t, r.Register(t.Context(), one, nobody))
	require.NoError(t, r.Register(t.Context(), one, nobody))
	require.Len(t, written.take(), 2)
	sink.take()
	for range 100 {
		require.NoError(t, r.Register(t.Context(), one, nobody))
	}
	require.Empty(t, written.take())
	require.Len(t, sink.all(), 100)
	for _, c := range sink.all() {
		require.Same(t, c.Old, c.New)
		require.True(t, c.Registered)
	}
}

func TestUnregister(t *testing.T) {
	sink := new(record)
	r := run(t, registry.Config{Store: memory.New(), Sink: sink})
	one := target("s", 7, "10.0.0.1")
	require.NoError(t, r.Unregister(t.Context(), one, nobody), "unknown")
	require.NoError(t, r.Unregister(t.Context(), registry.Target{IPs: []string{"a;b"}}, nobody), "impossible")
	require.Empty(t, sink.all())
	require.NoError(t, r.Register(t.Context(), one, nobody))
	other := target("s", 9, "10.0.0.1/32") // only the key counts
	require.NoError(t, r.Unregister(t.Context(), other, nobody))
	require.Empty(t, sink.state())
	require.ErrorIs(t, r.Register(t.Context(), registry.Target{}, nobody), registry.ErrInvalid)
}

// TestAbandonedCall // P25: the caller gave up while the store was busy with others, then unregistered: no ghost.
func TestAbandonedCall(t *testing.T) {
	for name, again := range map[string]bool{"then unregister": true, "dropped": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memory.New()
				entered, release := make(chan struct{}), make(chan struct{})
				var once sync.Once
				store.Fail = func(registry.Batch) error {
					once.Do(func() { close(entered); <-release })
					return nil
				}
				sink := new(record)
				r := run(t, registry.Config{Store: store, Sink: sink})
				var g sync.WaitGroup
				g.Go(func() { _ = r.Register(t.Context(), target("s", 1, "10.0.0.1"), nobody) })
				<-entered
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				ghost := target("s", 2, "10.0.0.2")
				require.ErrorIs(t, r.Register(ctx, ghost, nobody), context.DeadlineExceeded)
				if again {
					g.Go(func() { _ = r.Unregister(t.Context(), ghost, nobody) })
				}
				synctest.Wait()
				close(release)
				g.Wait()
				require.Equal(t, map[string]registry.Status{"10.0.0.1/32": registry.Disabled}, sink.state())
			})
		})
	}
}

// TestAbandonedInFlight // P25: the caller gives up while his own transaction runs; a later Unregister wins all the same.
func TestAbandonedInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		store.Fail = func(registry.Batch) error { time.Sleep(10 * time.Second); return nil }
		sink := new(record)
		r := run(t, registry.Config{Store: store, Sink: sink})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		ghost := target("s", 2, "10.0.0.2")
		require.ErrorIs(t, r.Register(ctx, ghost, nobody), context.DeadlineExceeded)
		require.NoError(t, r.Unregister(t.Context(), ghost, nobody))
		require.Empty(t, sink.state())
	})
}

// TestStoreFailure: what needs the store fails and has no effect; what does not goes on.
func TestStoreFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, written := watched()
		sink := new(record)
		r := run(t, registry.Config{Store: store, Sink: sink})
		known, fresh := target("s", 1, "10.0.0.1"), target("s", 2, "10.0.0.2")
		for range 2 {
			require.NoError(t, r.Register(t.Context(), known, nobody))
			require.NoError(t, r.Register(t.Context(), target("s", 4, "10.0.0.3"), nobody))
		}
		sink.take()
		full := errors.New("disk full")
		written.setFail(full)
		changed := target("s", 3, "10.0.0.3")
		for range 3 { // longer than a lease, with refreshes of both kinds in one batch
			time.Sleep(40 * time.Second)
			var g sync.WaitGroup
			g.Go(func() { require.NoError(t, r.Register(t.Context(), known, nobody)) })
			for _, one := range []registry.Target{fresh, changed} {
				g.Go(func() {
					err := r.Register(t.Context(), one, nobody)
					require.ErrorIs(t, err, registry.ErrStore)
					require.ErrorIs(t, err, full)
				})
			}
			g.Wait()
		}
		require.ErrorIs(t, r.Unregister(t.Context(), known, nobody), registry.ErrStore)
		for _, c := range sink.all() {
			require.Same(t, c.Old, c.New)
			require.EqualValues(t, 1, c.New.Identifier)
		}
		require.Len(t, sink.all(), 3)
		written.setFail(nil)
		require.NoError(t, r.Register(t.Context(), fresh, nobody))
		require.NoError(t, r.Unregister(t.Context(), known, nobody))
	})
}

// TestFailedRegisterKeepsLease: a known target whose change cannot be stored is alive nevertheless.
func TestFailedRegisterKeepsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, written := watched()
		sink := new(record)
		r := run(t, registry.Config{Store: store, Sink: sink})
		require.NoError(t, r.Register(t.Context(), target("s", 1, "10.0.0.1"), nobody))
		time.Sleep(40 * time.Second)
		written.setFail(errors.New("disk full"))
		require.Error(t, r.Register(t.Context(), target("s", 2, "10.0.0.1"), nobody))
		written.setFail(nil)
		time.Sleep(40 * time.Second)
		synctest.Wait()
		require.Len(t, sink.state(), 1)
	})
}

// TestLostStore // P20: a store that lost everything is given everything.
func TestLostStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, written := watched()
		r := run(t, registry.Config{Store: store})
		everyone(t, numbered(10), func(one registry.Target) error { return r.Register(t.Context(), one, nobody) })
		r.SaveDocument("trench-a", []byte("config"))
		time.Sleep(time.Second)
		synctest.Wait()
		written.take()
		var lost sync.Once
		store.Fail = func(b registry.Batch) (err error) {
			lost.Do(func() { err = fmt.Errorf("%w: file damaged", registry.ErrLost) })
			return errors.Join(err, written.see(b))
		}
		require.NoError(t, r.Register(t.Context(), target("s", 99, "10.9.9.9"), nobody))
		writes := written.take()
		last := writes[len(writes)-1]
		require.Len(t, last.Put, 11)
		require.Equal(t, map[string][]byte{"trench-a": []byte("config")}, last.Documents)
	})
}

// TestLostStoreThatFails: what was lost is owed until it was written, also where the first attempt fails. // P20
func TestLostStoreThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, written := watched()
		r := run(t, registry.Config{Store: store})
		everyone(t, numbered(10), func(one registry.Target) error { return r.Register(t.Context(), one, nobody) })
		full := errors.New("disk full")
		for _, err := range []error{fmt.Errorf("%w: file damaged", registry.ErrLost), full, full} {
			store.Fail = failing(err, full)
			require.ErrorIs(t, r.Register(t.Context(), target("s", 98, "10.9.9.8"), nobody), full)
		}
		store.Fail = written.see
		require.NoError(t, r.Register(t.Context(), target("s", 99, "10.9.9.9"), nobody))
		writes := written.take()
		require.Len(t, writes[len(writes)-1].Put, 11, "all but what failed")
	})
}

// TestRestart: all is back as it was, with a full lease.
func TestRestart(t *testing.T) { // P18
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		r, stop := start(t, registry.Config{Store: store})
		holder, waits := target("s", 7, "10.0.0.1"), target("s", 7, "10.0.0.2")
		for range 2 {
			require.NoError(t, r.Register(t.Context(), holder, nobody))
			require.NoError(t, r.Register(t.Context(), waits, nobody))
		}
		time.Sleep(50 * time.Second)
		stop()
		require.ErrorIs(t, r.Register(t.Context(), holder, nobody), registry.ErrStopped)

		sink := new(record)
		r = registry.New(registry.Config{Store: store, Sink: sink, Namespace: own})
		saved, err := r.Load(t.Context())
		require.NoError(t, err)
		require.Len(t, saved.Entries, 2)
		require.Equal(t, registry.Enabled, saved.Entries[0].Status)
		require.Equal(t, "10.0.0.1/32", saved.Entries[0].Prefixes[0].String())
		require.True(t, saved.Entries[1].Blocked)
		require.EqualValues(t, 7, saved.Entries[1].Identifier)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go r.Run(ctx) //nolint:errcheck // ends with the test
		time.Sleep(59 * time.Second)
		synctest.Wait()
		require.Empty(t, sink.all())
		require.NoError(t, r.Register(t.Context(), waits, nobody))
		time.Sleep(5 * time.Second)
		synctest.Wait()
		require.Equal(t, map[string]registry.Status{"10.0.0.2/32": registry.Enabled}, sink.state(), "the holder is gone")
	})
}

// TestRemember: conclusions and documents are written together and soon, wake nobody, and are back after a restart.
func TestRemember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, written := watched()
		sink := new(record)
		r, stop := start(t, registry.Config{Store: store, Sink: sink})
		everyone(t, numbered(10), func(one registry.Target) error { return r.Register(t.Context(), one, nobody) })
		sink.take()
		written.take()
		for round := range 5 {
			for id := range uint64(10) {
				r.Remember(map[uint64]registry.Memory{id + 1: {Listed: true, State: uint8(round)}})
			}
			r.SaveDocument("trench-a", fmt.Append(nil, round))
		}
		r.Remember(map[uint64]registry.Memory{999: {Listed: true}})
		time.Sleep(300 * time.Millisecond)
		synctest.Wait()
		writes := written.take()
		require.Len(t, writes, 1)
		require.Len(t, writes[0].Put, 10)
		require.EqualValues(t, 4, writes[0].Put[9].Memory.State)
		require.Empty(t, sink.all())

		r.Remember(map[uint64]registry.Memory{1: {Reason: "last"}})
		r.SaveDocument("trench-b", []byte("b"))
		r.SaveDocument("trench-a", nil)
		stop() // writes what is pending
		saved, err := registry.New(registry.Config{Store: store, Namespace: own}).Load(t.Context())
		require.NoError(t, err)
		require.Equal(t, "last", saved.Entries[0].Memory.Reason)
		require.True(t, saved.Entries[1].Memory.Listed)
		require.Equal(t, map[string][]byte{"trench-b": []byte("b")}, saved.Documents)
	})
}

// TestRememberWhileStoreFails: it is kept and written later; a document does not come back over a newer one.
func TestRememberWhileStoreFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		r := run(t, registry.Config{Store: store})
		require.NoError(t, r.Register(t.Context(), target("s", 1, "10.0.0.1"), nobody))
		var once sync.Once
		store.Fail = func(registry.Batch) (err error) {
			once.Do(func() {
				r.SaveDocument("a", []byte("new"))
				err = errors.New("disk full")
			})
			return err
		}
		r.Remember(map[uint64]registry.Memory{1: {Listed: true}})
		r.SaveDocument("a", []byte("old"))
		r.SaveDocument("b", []byte("kept"))
		time.Sleep(time.Second)
		synctest.Wait()
		saved, err := store.Load(t.Context())
		require.NoError(t, err)
		require.True(t, saved.Entries[0].Memory.Listed)
		require.Equal(t, map[string][]byte{"a": []byte("new"), "b": []byte("kept")}, saved.Documents)
	})
}

// TestStopServesQueue: who is waiting when Run is told to end is served, or told that it ended.
func TestStopServesQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		store.Fail = func(registry.Batch) error { time.Sleep(time.Second); return nil }
		r, stop := start(t, registry.Config{Store: store})
		var g sync.WaitGroup
		var stored atomic.Int64
		for _, one := range numbered(50) {
			g.Go(func() {
				err := r.Register(t.Context(), one, nobody)
				if err == nil {
					stored.Add(1)
				} else {
					require.ErrorIs(t, err, registry.ErrStopped)
				}
			})
		}
		synctest.Wait()
		stop()
		g.Wait()
		saved, err := store.Load(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 50, stored.Load())
		require.Len(t, saved.Entries, 50)
	})
}

// TestStopIsBounded: a store that hangs for good does not hold up the end for ever.
func TestStopIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := registry.New(registry.Config{Store: hanging{memory.New()}, Namespace: own})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		answer := make(chan error, 1)
		go func() { answer <- r.Register(t.Context(), target("s", 1, "10.0.0.1"), nobody) }()
		synctest.Wait()
		cancel()
		began := time.Now()
		require.NoError(t, <-done)
		require.LessOrEqual(t, time.Since(began), 6*time.Second)
		require.ErrorIs(t, <-answer, registry.ErrStore)
	})
}

func TestObserve(t *testing.T) {
	var last registry.Round
	var blocked int
	r, stop := start(t, registry.Config{Store: memory.New(), Observe: func(s registry.Round) { last = s; blocked += s.Blocked }})
	for range 3 {
		require.NoError(t, r.Register(t.Context(), target("s", 7, "10.0.0.1"), nobody))
		require.NoError(t, r.Register(t.Context(), target("s", 7, "10.0.0.2"), nobody))
	}
	stop()
	require.Equal(t, registry.Round{Operations: 1, Entries: 2, Waiting: 1}, last)
	require.Equal(t, 1, blocked)
}

// TestParallelRegistrations // P19
func TestParallelRegistrations(t *testing.T) {
	store := openFile(t)
	sink := new(record)
	r := run(t, registry.Config{Store: store, Sink: sink})
	everyone(t, numbered(200), func(one registry.Target) error { return r.Register(t.Context(), one, nobody) })
	require.Len(t, sink.state(), 200)
}

// TestEverybodyOpensAtOnce // P26: on a slow disk all are through within the deadline of a TAPA, at the first attempt.
// The clock is the test's own, so it is the number of transactions that counts and not the machine.
func TestEverybodyOpensAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const perTransaction, perEntry = 5 * time.Millisecond, 200 * time.Microsecond
		store := memory.New()
		store.Fail = func(b registry.Batch) error {
			time.Sleep(perTransaction + time.Duration(len(b.Put))*perEntry)
			return nil
		}
		sink := new(record)
		r := run(t, registry.Config{Store: store, Sink: sink})
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
		defer cancel()
		everyone(t, numbered(10_000), func(one registry.Target) error {
			return errors.Join(r.Register(ctx, one, nobody), r.Register(ctx, one, nobody))
		})
		requireEnabled(t, sink, 10_000)
	})
}

// TestManyOpenOnDisk // P26: the same on a real file, at whatever pace the machine has.
func TestManyOpenOnDisk(t *testing.T) {
	store := openFile(t)
	sink := new(record)
	r := run(t, registry.Config{Store: store, Sink: sink})
	everyone(t, numbered(1000), func(one registry.Target) error {
		return errors.Join(r.Register(t.Context(), one, nobody), r.Register(t.Context(), one, nobody))
	})
	requireEnabled(t, sink, 1000)
}

func requireEnabled(t *testing.T, sink *record, n int) {
	t.Helper()
	state := sink.state()
	require.Len(t, state, n)
	for _, s := range state {
		require.Equal(t, registry.Enabled, s)
	}
}

func openFile(t *testing.T) registry.Store {
	t.Helper()
	s, err := sqlite.Open(t.Context(), sqlite.Config{Path: filepath.Join(t.TempDir(), "registry.db")})
	require.NoError(t, err)
	return s
}

// failing fails with each error once, and with the last one from then on.
func failing(errs ...error) func(registry.Batch) error {
	return func(registry.Batch) error {
		err := errs[0]
		errs = errs[min(1, len(errs)-1):]
		return err
	}
}

type sinkFunc func(context.Context, []registry.Change)

func (f sinkFunc) Registered(ctx context.Context, changes []registry.Change) { f(ctx, changes) }

// hanging is a store whose Write ends only with its context.
type hanging struct{ registry.Store }

func (hanging) Write(ctx context.Context, _ registry.Batch) error {
	<-ctx.Done()
	return ctx.Err()
}
