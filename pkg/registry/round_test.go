package registry

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// stub is a store that takes everything, or nothing.
type stub struct{ fail error }

func (s *stub) Load(context.Context) (Saved, error) { return Saved{}, nil }
func (s *stub) Write(context.Context, Batch) error  { return s.fail }
func (s *stub) Close() error                        { return nil }

func registering(ctx context.Context, e Entry) *operation {
	return &operation{ctx: ctx, apply: func(t *table) []Change { return t.register(e) }, done: make(chan struct{})}
}

func answer(t *testing.T, o *operation) error {
	t.Helper()
	select {
	case <-o.done:
		return o.err
	default:
		require.Fail(t, "not answered")
		return nil
	}
}

// TestAbandonedInBatch // P25: who gave up after he was taken from the queue and before his turn leaves no trace.
func TestAbandonedInBatch(t *testing.T) {
	var stats Round
	r := New(Config{Store: new(stub), Namespace: "ns", Observe: func(s Round) { stats = s }})
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	ops := []*operation{
		registering(t.Context(), want(t, "x", "10.0.0.1", "1", Enabled)),
		registering(gone, want(t, "x", "10.0.0.2", "2", Enabled)),
	}
	r.round(t.Context(), append([]*operation{}, ops...))
	require.NoError(t, answer(t, ops[0]))
	require.ErrorIs(t, answer(t, ops[1]), context.Canceled)
	require.Len(t, r.table.entries, 1)
	require.Equal(t, 1, stats.Abandoned)
	require.Equal(t, 1, stats.Operations)
}

// TestFailedBatch: every operation that needed the store fails, whatever its place in the batch; the others are done.
func TestFailedBatch(t *testing.T) {
	store := new(stub)
	var told []Change
	r := New(Config{Store: store, Namespace: "ns", Sink: sink(func(c []Change) { told = append(told, c...) })})
	known := want(t, "x", "10.0.0.1", "1", Enabled)
	r.round(t.Context(), []*operation{registering(t.Context(), known), registering(t.Context(), known)})
	before := r.table.all()
	told, store.fail = nil, errors.New("disk full")

	refresh, last := registering(t.Context(), known), registering(t.Context(), known)
	fresh := registering(t.Context(), want(t, "x", "10.0.0.2", "2", Enabled))
	changed := registering(t.Context(), want(t, "x", "10.0.0.1", "3", Enabled))
	r.round(t.Context(), []*operation{refresh, fresh, changed, last})
	require.NoError(t, answer(t, refresh))
	require.ErrorIs(t, answer(t, fresh), ErrStore)
	require.ErrorIs(t, answer(t, changed), ErrStore)
	require.NoError(t, answer(t, last), "the change before it never happened")
	require.Equal(t, before, r.table.all())
	require.Len(t, told, 2)

	store.fail = nil
	fresh = registering(t.Context(), want(t, "x", "10.0.0.2", "2", Enabled))
	r.round(t.Context(), []*operation{fresh})
	require.EqualValues(t, 2, r.table.all()[1].ID)
}

// TestQueueGoesBeforeExpiry // P18: a refresh that waits when a lease is found to have run out renews it.
func TestQueueGoesBeforeExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(Config{Store: new(stub), Namespace: "ns"})
		known := want(t, "x", "10.0.0.1", "1", Enabled)
		r.round(t.Context(), []*operation{registering(t.Context(), known)})
		r.ticked = time.Now()
		for range 100 {
			r.leases.Advance(time.Second)
		}
		require.Len(t, r.leases.Due(), 1)
		go func() { _ = r.do(t.Context(), func(tab *table) []Change { return tab.register(known) }) }()
		synctest.Wait()
		r.tick(t.Context())
		require.Len(t, r.table.entries, 1)
		for range 100 {
			r.leases.Advance(time.Second)
		}
		r.tick(t.Context())
		require.Empty(t, r.table.entries, "and without one it goes")
		require.Empty(t, r.leases.Due())
	})
}

type sink func([]Change)

func (s sink) Registered(_ context.Context, c []Change) { s(c) }
