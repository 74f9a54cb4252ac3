package iface

import (
	"context"
	"net/netip"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/pkg/stream"
	"github.com/nordix/meridio-nsp/pkg/tapa"
)

func vips(texts ...string) map[string]bool {
	out := map[string]bool{}
	for _, t := range texts {
		out[t] = true
	}
	return out
}

// The target is ENABLED after the kernel is ready, and the kernel lets go after it is unregistered.
func TestOrder(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.open(one)
		require.Equal(t, "OPEN", w.is(one))
		require.Equal(t, entry{1, true, true}, w.registry.has(one, self))
		said := w.take()
		require.Equal(t, []string{
			"add blackhole route 0.0.0.0/0", "add blackhole route ::/0", "add route 0.0.0.0/0", "add route ::/0",
			"add rule 20.0.0.1/32", "add rule 2000::1/128", "add address 20.0.0.1/32", "add address 2000::1/128",
			"reserve one", "enable one", "look one",
		}, said)
		require.NoError(t, w.Close(t.Context(), one))
		said = w.take()
		require.Equal(t, []string{"unregister one", "del address 2000::1/128"}, said[:2])
		require.Len(t, said, 9)
		require.Zero(t, w.kernel.size())
		require.Empty(t, w.is(one))
		require.NoError(t, w.Close(t.Context(), one), "what is not open is closed")
		require.Empty(t, w.take())
	})
}

// VIPs that two streams share go with the second; other VIPs come and go while streams are open.
func TestSharedVIPs(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.open(one, two)
		require.NoError(t, w.Close(t.Context(), one))
		require.Equal(t, vips("20.0.0.1/32", "2000::1/128"), w.kernel.vips())
		require.Equal(t, "OPEN", w.is(two))
		w.trench.set("a", trenchOf("20.0.0.1/32", "30.0.0.0/28"))
		synctest.Wait()
		require.Equal(t, vips("20.0.0.1/32", "30.0.0.0/28"), w.kernel.vips())
		w.trench.set("a", trenchOf())
		synctest.Wait()
		require.Empty(t, w.kernel.vips())
		require.Equal(t, "OPEN", w.is(two))
		require.NoError(t, w.Close(t.Context(), two))
		require.Zero(t, w.kernel.size())
	})
}

// Each renewal comes within a third of the lease, with a context of its own. // P13, P14
func TestRenewal(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.open(one)
		w.after(10 * time.Minute)
		r := w.registry
		require.Greater(t, len(r.enables), 29)
		require.Less(t, len(r.enables), 42)
		apart := map[time.Duration]bool{}
		for i := range len(r.enables) - 1 {
			d := r.enables[i+1].Sub(r.enables[i])
			require.LessOrEqual(t, d, w.cfg.EntryTimeout/3)
			require.Equal(t, callTimeout, r.budgets[i])
			apart[d] = true
		}
		require.Greater(t, len(apart), 10, "they are spread")
	})
}

// The NSP stalls longer than the lease, and all registrations expire: the same identifier again, enabled. Meanwhile the kernel keeps
// its state, and the stream is unavailable only when its lease must be over. // P18
func TestStall(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.registry.put(one, "other", 1)
		w.open(one)
		require.Equal(t, entry{2, true, true}, w.registry.has(one, self))
		w.registry.set(func() { w.registry.stalled = true })
		w.after(30 * time.Second)
		require.Equal(t, "OPEN", w.is(one))
		w.after(5 * time.Minute)
		require.Equal(t, "UNAVAILABLE", w.is(one))
		require.Len(t, w.kernel.vips(), 2)
		w.registry.drop(one, "other")
		w.registry.drop(one, name(self))
		w.registry.set(func() { w.registry.stalled = false })
		w.after(30 * time.Second)
		require.Equal(t, "OPEN", w.is(one))
		require.Equal(t, entry{2, true, false}, w.registry.has(one, self))
	})
}

// Somebody else got the identifier meanwhile: another one is reserved.
func TestIdentifierLost(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.open(one)
		w.registry.drop(one, name(self))
		w.registry.put(one, "other", 1)
		w.after(30 * time.Second)
		require.Equal(t, "OPEN", w.is(one))
		require.Equal(t, entry{2, true, true}, w.registry.has(one, self))
	})
}

// A full stream says so and waits; the place is taken when it is free. // D9
func TestWaiting(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.registry.set(func() { w.registry.limit = 1 })
		w.registry.put(one, "other", 1)
		w.open(one)
		require.Equal(t, "UNAVAILABLE", w.is(one))
		w.take()
		w.after(10 * time.Minute)
		require.Less(t, len(w.take()), 80, "it waits, it does not ask over and over")
		w.registry.drop(one, "other")
		w.after(6 * time.Second)
		require.Equal(t, "OPEN", w.is(one))
		require.Equal(t, entry{1, true, true}, w.registry.has(one, self))
	})
}

// A process that is killed leaves everything as it is, and the next one takes it up: no change in the kernel, the same identifier.
func TestKilled(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.registry.put(one, "other", 1)
		w.open(one, two)
		w.kill()
		w.registry.drop(one, "other")
		w.trench.set("a", nil) // What was known of it is kept.
		w.start()
		w.after(10 * time.Second)
		require.Equal(t, "OPEN", w.is(one))
		require.ElementsMatch(t, []string{"enable one", "look one", "enable two", "look two"}, w.take())
		require.Equal(t, uint32(2), w.registry.has(one, self).id)

		w.kill()
		w.start()
		require.NoError(t, w.Close(t.Context(), one))
		require.NoError(t, w.Close(t.Context(), two))
		require.Zero(t, w.kernel.size(), "what the one before has made is removed")
		require.Zero(t, w.registry.has(one, self))
	})
}

// At the end of the process all is undone; the next one claims the same identifier.
func TestEnd(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.registry.put(one, "other", 1)
		w.open(one)
		w.stop()
		require.Zero(t, w.kernel.size())
		require.Zero(t, w.registry.has(one, self))
		w.registry.drop(one, "other")
		w.start()
		w.after(10 * time.Second)
		require.Equal(t, entry{2, true, false}, w.registry.has(one, self))
	})
}

// Without the NSP a close waits for the end of the lease; the VIPs are there meanwhile, as packets may come. A removal that fails is
// tried again. // P21
func TestCloseFails(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.open(one)
		w.registry.set(func() { w.registry.away = true })
		require.Error(t, w.Close(t.Context(), one))
		require.Len(t, w.kernel.vips(), 2)
		w.after(w.cfg.EntryTimeout)
		w.kernel.fails[address], w.kernel.fails[rule] = 1, 1
		require.ErrorContains(t, w.Close(t.Context(), one), "it does not go")
		require.NoError(t, w.Close(t.Context(), one))
		require.Zero(t, w.kernel.size())
	})
	bubble(t, func(t *testing.T, w *world) {
		w.open(one)
		w.registry.set(func() { w.registry.away = true })
		require.Error(t, w.Close(t.Context(), one))
		w.registry.set(func() { w.registry.away = false })
		w.open(one)
		w.after(time.Minute)
		require.Equal(t, "OPEN", w.is(one))
	})
}

// A close stops the open that it follows. // P15, P25
func TestCloseWhileWaiting(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.registry.set(func() { w.registry.limit = 0 })
		w.open(one)
		require.NoError(t, w.Close(t.Context(), one))
		w.registry.set(func() { w.registry.limit = 10 })
		w.after(time.Minute)
		require.Zero(t, w.registry.has(one, self))
		require.Zero(t, w.kernel.size())
	})
}

// Other addresses are another target: the one before is unregistered. // D12
func TestAddressesChange(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.open(one)
		other := prefixList("172.16.0.6/24", "fe80::1/64")
		w.kernel.mu.Lock()
		w.kernel.net1 = other
		w.kernel.mu.Unlock()
		w.after(30 * time.Second)
		require.Zero(t, w.registry.has(one, self))
		require.True(t, w.registry.has(one, other[:1]).enabled)
		w.kernel.mu.Lock()
		w.kernel.net1 = nil
		w.kernel.mu.Unlock()
		w.after(30 * time.Second)
		require.Equal(t, "UNAVAILABLE", w.is(one))
	})
}

// A stream that is not configured is not registered; where it comes back, or has fewer places, that is followed.
func TestConfiguration(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.trench.set("a", nil)
		w.open(one)
		require.Equal(t, "UNAVAILABLE", w.is(one))
		require.Empty(t, w.kernel.vips())
		w.registry.put(one, "other", 1)
		w.trench.set("a", trenchOf("20.0.0.1/32"))
		w.after(10 * time.Second)
		require.Equal(t, "OPEN", w.is(one))
		w.trench.set("a", &settings{VIPs: prefixList("20.0.0.1/32")})
		synctest.Wait()
		require.Equal(t, "UNDEFINED", w.is(one))
		require.Zero(t, w.registry.has(one, self))
		w.trench.set("a", trenchOf("20.0.0.1/32"))
		synctest.Wait()
		require.Equal(t, "OPEN", w.is(one))
		require.Equal(t, uint32(2), w.registry.has(one, self).id)
		w.registry.drop(one, "other")
		w.registry.set(func() { w.registry.limit = 1 })
		w.trench.set("a", &settings{VIPs: prefixList("20.0.0.1/32"), Limits: map[string]uint32{"c/one": 1}})
		synctest.Wait()
		require.Equal(t, uint32(1), w.registry.has(one, self).id)
	})
}

// Watch tells all streams at once and whenever one changes.
func TestWatch(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		ctx, cancel := context.WithCancel(t.Context())
		var last map[stream.Key]tapa.Status
		told, ended := 0, make(chan error, 1)
		go func() { ended <- w.Watch(ctx, func(l map[stream.Key]tapa.Status) { last = l; told++ }) }()
		synctest.Wait()
		require.Equal(t, 1, told)
		require.Empty(t, last)
		w.open(one)
		require.Equal(t, map[stream.Key]tapa.Status{one: tapa.Open}, last)
		before := told
		w.after(5 * time.Minute)
		require.Equal(t, before, told, "renewing changes nothing")
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
	})
}

// A damaged file is moved aside; what is found in the kernel is taken up when the stream is opened again, but for the VIPs on the
// link: nothing tells who put them there.
func TestDamagedState(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.open(one)
		w.kill()
		require.NoError(t, os.WriteFile(w.cfg.StateFile, []byte(`{"version":1,`), 0o600))
		w.start()
		w.open(one)
		require.Equal(t, []string{"reserve one", "enable one", "look one"}, w.take())
		require.NoError(t, w.Close(t.Context(), one))
		require.Equal(t, vips("20.0.0.1/32", "2000::1/128"), w.kernel.vips())
		require.Equal(t, 2, w.kernel.size())
		_, err := os.Stat(w.cfg.StateFile + ".damaged")
		require.NoError(t, err)
	})
}

// VIPs that would cut the pod off are left out, and the others stand. // P3
func TestUsable(t *testing.T) {
	taken := []netip.Addr{netip.MustParseAddr("172.16.0.1"), netip.MustParseAddr("fd00:1::5")}
	good, bad := usable(prefixList("20.0.0.1/32", "0.0.0.0/0", "172.16.0.0/28", "::/0", "fd00:1::/64", "20.0.0.1/32", "127.0.0.1/32",
		"fe80::1/128", "224.0.0.1/32", "30.0.0.9/28"), taken)
	slices.SortFunc(good, netip.Prefix.Compare)
	require.ElementsMatch(t, prefixList("20.0.0.1/32", "30.0.0.0/28"), good)
	require.Len(t, bad, 7)
}
