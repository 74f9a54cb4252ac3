package registry

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/nordix/meridio-nsp/test/clock"
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

// Whatever happens to the wall clock, a lease lasts as long as it should, and no longer. // P17
func TestLeasesDoNotHeedTheWallClock(t *testing.T) {
	for _, step := range []time.Duration{time.Hour, -time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			var wall clock.Clock
			r := New(Config{Store: nothing{}, Timeout: time.Minute})
			r.clock = wall.Now
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- r.Run(ctx) }()
			entries := func() int { // between two turns
				synctest.Wait()
				return len(r.table.entries)
			}
			require.NoError(t, r.Register(ctx, Target{Type: Frontend, IPs: []string{"fe"}}, Caller{}))
			time.Sleep(30 * time.Second)
			wall.Step(step)
			time.Sleep(28 * time.Second)
			require.Equal(t, 1, entries(), "it has a lease still")
			wall.Step(-3 * step)
			time.Sleep(5 * time.Second)
			require.Zero(t, entries())
			cancel()
			require.NoError(t, <-ended)
		})
	}
}

// nothing is a store that keeps nothing.
type nothing struct{}

func (nothing) Load(context.Context) (Saved, error) { return Saved{}, nil }
func (nothing) Write(context.Context, Batch) error  { return nil }
func (nothing) Close() error                        { return nil }
