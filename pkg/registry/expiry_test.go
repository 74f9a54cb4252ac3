package registry_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/registry/memory"
)

func TestExpiry(t *testing.T) { // P17
	synctest.Test(t, func(t *testing.T) {
		sink := new(record)
		r := run(t, registry.Config{Store: memory.New(), Sink: sink})
		gone, stays := target("s", 1, "10.0.0.1"), target("s", 2, "10.0.0.2")
		require.NoError(t, r.Register(t.Context(), gone, nobody))
		for range 4 {
			require.NoError(t, r.Register(t.Context(), stays, nobody))
			time.Sleep(14 * time.Second)
		}
		synctest.Wait()
		require.Len(t, sink.state(), 2, "56 s")
		require.NoError(t, r.Register(t.Context(), stays, nobody))
		time.Sleep(7 * time.Second)
		synctest.Wait()
		require.Equal(t, map[string]registry.Status{"10.0.0.2/32": registry.Enabled}, sink.state(), "63 s")
		all := sink.all()
		require.True(t, all[len(all)-1].Expired)
	})
}

// TestMassExpiry // P27: a thousand leases end as one change, one write, one call.
func TestMassExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, written := watched()
		sink := new(record)
		var expired atomic.Int64
		r := run(t, registry.Config{Store: store, Sink: sink, Observe: func(s registry.Round) { expired.Add(int64(s.Expired)) }})
		everyone(t, numbered(1000), func(one registry.Target) error { return r.Register(t.Context(), one, nobody) })
		written.take()
		sink.take()
		time.Sleep(65 * time.Second)
		synctest.Wait()
		calls := sink.take()
		require.Len(t, calls, 1)
		require.Len(t, calls[0], 1000)
		writes := written.take()
		require.Len(t, writes, 1)
		require.Len(t, writes[0].Delete, 1000)
		require.EqualValues(t, 1000, expired.Load())
	})
}

// TestExpiryIsRetried: while the store fails, entries stay; then they go.
func TestExpiryIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, written := watched()
		sink := new(record)
		r := run(t, registry.Config{Store: store, Sink: sink})
		require.NoError(t, r.Register(t.Context(), target("s", 1, "10.0.0.1"), nobody))
		written.setFail(errors.New("disk full"))
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		require.Len(t, sink.state(), 1)
		written.setFail(nil)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.Empty(t, sink.state())
	})
}

// TestStoreStall // P18: the store hangs for longer than the timeout; the refreshes that wait keep their entries.
func TestStoreStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		var stall atomic.Int64
		store.Fail = func(registry.Batch) error {
			time.Sleep(time.Duration(stall.Swap(0)))
			return nil
		}
		sink := new(record)
		r := run(t, registry.Config{Store: store, Sink: sink})
		targets := numbered(100)
		for range 2 {
			everyone(t, targets, func(one registry.Target) error { return r.Register(t.Context(), one, nobody) })
		}
		time.Sleep(59 * time.Second) // nearly due
		stall.Store(int64(10 * time.Minute))
		var g sync.WaitGroup
		g.Go(func() { _ = r.Register(t.Context(), target("s", 999, "10.9.9.9"), nobody) })
		synctest.Wait()
		sink.take()
		for _, one := range targets {
			g.Go(func() { _ = r.Register(t.Context(), one, nobody) })
		}
		g.Wait()
		for range 50 {
			time.Sleep(time.Second)
			synctest.Wait()
		}
		for _, c := range sink.all() {
			require.NotNil(t, c.New, "nobody expired")
		}
		require.Equal(t, registry.Enabled, sink.state()["10.0.0.1/8"])
	})
}
