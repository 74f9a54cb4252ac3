package registry

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func leaseKey(name string) Key { return Key{Addrs: name} }

func TestTickLength(t *testing.T) {
	for timeout, tick := range map[time.Duration]time.Duration{
		time.Minute: time.Second, 10 * time.Second: 500 * time.Millisecond, 20 * time.Millisecond: 10 * time.Millisecond,
	} {
		require.Equal(t, tick, NewLeases(timeout).tick)
	}
}

func TestLeaseEnds(t *testing.T) { // P17
	l := NewLeases(time.Minute)
	l.Renew(leaseKey("a"))
	l.Renew(leaseKey("b"))
	for range 30 {
		require.True(t, l.Advance(time.Second))
	}
	l.Renew(leaseKey("a"))
	for range 30 {
		l.Advance(time.Second)
	}
	require.Empty(t, l.Due(), "b may have been refreshed up to a tick after the clock was read")
	l.Advance(time.Second)
	require.Equal(t, []Key{leaseKey("b")}, l.Due())
	l.Drop(leaseKey("b"))
	l.Drop(leaseKey("b"))
	require.Empty(t, l.Due())
}

func TestStallEndsNoLease(t *testing.T) { // P18
	l := NewLeases(time.Minute)
	l.Renew(leaseKey("a"))
	for range 61 {
		l.Advance(time.Second)
	}
	require.NotEmpty(t, l.Due(), "it would end now")
	require.False(t, l.Advance(time.Hour), "what waited outside gets a tick to come in")
	require.True(t, l.Advance(time.Second))

	l.Renew(leaseKey("a"))
	before := l.clock
	l.Advance(time.Hour)
	require.Equal(t, before+2*time.Second, l.clock)
	require.True(t, l.Advance(time.Hour), "slow all the time is no stall")
}

// TestLeaseModel: leases end in the order of refreshes, none early, none more than two ticks late.
func TestLeaseModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := NewLeases(20 * time.Second)
		refreshed := map[Key]time.Duration{}
		names := rapid.SampledFrom([]string{"a", "b", "c", "d"})
		t.Repeat(map[string]func(*rapid.T){
			"renew": func(t *rapid.T) {
				k := leaseKey(names.Draw(t, "key"))
				l.Renew(k)
				refreshed[k] = l.clock
			},
			"drop": func(t *rapid.T) {
				k := leaseKey(names.Draw(t, "key"))
				l.Drop(k)
				delete(refreshed, k)
			},
			"advance": func(t *rapid.T) {
				l.Advance(time.Duration(rapid.IntRange(0, 3000).Draw(t, "ms")) * time.Millisecond)
			},
			"": func(t *rapid.T) {
				var want []Key
				for k, at := range refreshed {
					if l.clock-at >= 21*time.Second {
						want = append(want, k)
					}
				}
				require.ElementsMatch(t, want, l.Due())
				require.Equal(t, len(refreshed), l.order.Len())
			},
		})
	})
}
