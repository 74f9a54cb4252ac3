package registry_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/registry/memory"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// limit makes max-targets of every stream in use known.
func limit(r *registry.Registry, n uint32) {
	r.SetLimits("t", map[stream.Key]uint32{{Namespace: own, Trench: "t", Conduit: "c", Name: "s"}: n})
}

func TestReserveAtOnce(t *testing.T) { // P19
	const n = 500
	sink := new(record)
	r := run(t, registry.Config{Store: memory.New(), Sink: sink})
	limit(r, n)
	var mu sync.Mutex
	var got []uint32
	everyone(t, numbered(n), func(target registry.Target) error {
		id, err := r.Reserve(t.Context(), target, nobody, false)
		mu.Lock()
		defer mu.Unlock()
		got = append(got, id)
		return err
	})
	slices.Sort(got)
	require.EqualValues(t, 1, got[0])
	require.EqualValues(t, n, got[n-1])
	require.Len(t, slices.Compact(got), n, "each is given once")
	_, err := r.Reserve(t.Context(), target("s", 0, "192.0.2.1"), nobody, false)
	require.ErrorIs(t, err, registry.ErrFull)
	for _, status := range sink.state() {
		require.Equal(t, registry.Disabled, status)
	}
}

func TestReserveRefuses(t *testing.T) {
	r := run(t, registry.Config{Store: memory.New()})
	limit(r, 2)
	_, err := r.Reserve(t.Context(), registry.Target{Type: registry.Frontend, IPs: []string{"lb"}}, nobody, false)
	require.ErrorIs(t, err, registry.ErrInvalid)
	_, err = r.Reserve(t.Context(), registry.Target{Stream: target("s", 0).Stream}, nobody, false)
	require.ErrorIs(t, err, registry.ErrInvalid)
}

// TestReserveWaits: max-targets 2, three targets; one leaves // D9
func TestReserveWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t, registry.Config{Store: memory.New()})
		limit(r, 2)
		all := numbered(3)
		for _, one := range all[:2] {
			_, err := r.Reserve(t.Context(), one, nobody, true)
			require.NoError(t, err)
		}
		got := make(chan uint32)
		go func() {
			id, err := r.Reserve(t.Context(), all[2], nobody, true)
			if err == nil {
				got <- id
			}
		}()
		synctest.Wait()
		require.NoError(t, r.Unregister(t.Context(), all[0], nobody))
		require.EqualValues(t, 1, <-got)
	})
}

// Who is Ready comes before others, then who came first; and that may change while they wait. // D9
func TestReadyComeFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t, registry.Config{Store: memory.New()})
		limit(r, 1)
		all := numbered(5)
		holder := all[0]
		_, err := r.Reserve(t.Context(), holder, nobody, false)
		require.NoError(t, err)
		got := make(chan registry.Target)
		for _, one := range all[1:] {
			go func() {
				if _, err := r.Reserve(t.Context(), one, nobody, true); err == nil {
					got <- one
				}
			}()
			synctest.Wait()
		}
		prefer := func(i int, ready bool) {
			k, err := registry.KeyOf(all[i], own)
			require.NoError(t, err)
			r.Prefer(map[registry.Key]bool{k: ready})
		}
		prefer(2, true)
		prefer(3, true)
		prefer(4, true)
		prefer(2, false)
		for _, want := range []int{3, 4, 1, 2} {
			synctest.Wait()
			require.NoError(t, r.Unregister(t.Context(), holder, nobody))
			holder = <-got
			require.Equal(t, all[want].IPs, holder.IPs)
		}
	})
}

// A reservation is its latest caller's, as a registration is: it says which pod the addresses belong to.
func TestReserveFollowsItsCaller(t *testing.T) {
	sink := new(record)
	r := run(t, registry.Config{Store: memory.New(), Sink: sink})
	limit(r, 1)
	here, there := registry.Caller{Peer: netip.MustParseAddr("10.0.0.1")}, registry.Caller{Peer: netip.MustParseAddr("10.0.0.2")}
	for _, caller := range []registry.Caller{here, there, there} {
		id, err := r.Reserve(t.Context(), target("s", 7, "172.16.0.1"), caller, false)
		require.NoError(t, err)
		require.EqualValues(t, 1, id, "whatever it stated before")
		var last *registry.Entry
		for _, c := range sink.all() {
			if c.Reserved {
				last = c.New
			}
		}
		require.Equal(t, caller, last.Caller)
	}
}

// TestReservationLapses: nobody refreshes it, so the one who waits gets it after the lease.
func TestReservationLapses(t *testing.T) { // P17
	synctest.Test(t, func(t *testing.T) {
		r := run(t, registry.Config{Store: memory.New(), Timeout: time.Minute})
		limit(r, 1)
		all := numbered(2)
		_, err := r.Reserve(t.Context(), all[0], nobody, false)
		require.NoError(t, err)
		began := time.Now()
		id, err := r.Reserve(t.Context(), all[1], nobody, true)
		require.NoError(t, err)
		require.EqualValues(t, 1, id)
		require.InDelta(t, 62, time.Since(began).Seconds(), 3)
	})
}

func TestReserveRefreshes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, written := watched()
		r := run(t, registry.Config{Store: store, Timeout: time.Minute})
		limit(r, 1)
		one := numbered(1)[0]
		for range 5 {
			id, err := r.Reserve(t.Context(), one, nobody, false)
			require.NoError(t, err)
			require.EqualValues(t, 1, id)
			time.Sleep(50 * time.Second)
		}
		require.Len(t, written.take(), 1)
	})
}

// TestReserveAfterGivingUp: a caller whose deadline passed takes no slot, and keeps his place for when he comes back. // P25
func TestReserveAfterGivingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := new(record)
		r := run(t, registry.Config{Store: memory.New(), Sink: sink, Timeout: time.Minute})
		limit(r, 1)
		all := numbered(3)
		_, err := r.Reserve(t.Context(), all[0], nobody, false)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err = r.Reserve(ctx, all[1], nobody, true)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NoError(t, r.Unregister(t.Context(), all[0], nobody))
		id, err := r.Reserve(t.Context(), all[2], nobody, false)
		require.NoError(t, err, "nobody waits any more")
		require.EqualValues(t, 1, id)
	})
}

// TestReserveOutlivesAFailingStore: the slot that could not be given is given as soon as it can.
func TestReserveOutlivesAFailingStore(t *testing.T) { // P24
	synctest.Test(t, func(t *testing.T) {
		store, written := watched()
		r := run(t, registry.Config{Store: store})
		limit(r, 1)
		all := numbered(2)
		_, err := r.Reserve(t.Context(), all[0], nobody, false)
		require.NoError(t, err)
		got := make(chan error, 1)
		go func() {
			_, err := r.Reserve(t.Context(), all[1], nobody, true)
			got <- err
		}()
		synctest.Wait()
		written.setFail(errors.New("disk full"))
		require.ErrorIs(t, r.Unregister(t.Context(), all[0], nobody), registry.ErrStore)
		limit(r, 2)
		time.Sleep(3 * time.Second)
		require.Empty(t, got)
		written.setFail(nil)
		require.NoError(t, <-got)
	})
}

func TestReservationsOutliveARestart(t *testing.T) { // P20
	store := memory.New()
	r, stop := start(t, registry.Config{Store: store})
	limit(r, 3)
	all := numbered(3)
	for _, one := range all[:2] {
		_, err := r.Reserve(t.Context(), one, nobody, false)
		require.NoError(t, err)
	}
	stop()
	again := run(t, registry.Config{Store: store})
	id, err := again.Reserve(t.Context(), all[1], nobody, false)
	require.NoError(t, err, "also before the limits are known")
	require.EqualValues(t, 2, id)
	limit(again, 3)
	id, err = again.Reserve(t.Context(), all[2], nobody, false)
	require.NoError(t, err)
	require.EqualValues(t, 3, id)
}

func TestReserveEndsWithTheRegistry(t *testing.T) {
	r, stop := start(t, registry.Config{Store: memory.New()})
	got := make(chan error, 1)
	go func() {
		_, err := r.Reserve(t.Context(), target("s", 0, "10.0.0.1"), nobody, true)
		got <- err
	}()
	stop()
	require.ErrorIs(t, <-got, registry.ErrStopped)
}
