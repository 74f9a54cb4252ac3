package server

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/pkg/registry"
)

func TestSemaphore(t *testing.T) {
	for name, test := range map[string]struct {
		pick func(int) int
		// order says whether what waited was let in as it should be.
		order func([]int) bool
	}{
		"oldest":    {oldest, slices.IsSorted[[]int]},
		"newest":    {newest, func(o []int) bool { slices.Reverse(o); return slices.IsSorted(o) }},
		"at random": {rand.IntN, func(o []int) bool { return !slices.IsSorted(o) }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const waiting = 200
				s := newSemaphore(1, test.pick)
				require.True(t, s.take(nil))
				var order []int
				var running sync.WaitGroup
				for i := range waiting {
					givenUp := make(chan struct{})
					running.Go(func() {
						if i%10 == 3 {
							require.False(t, s.take(givenUp))
							return
						}
						require.True(t, s.take(givenUp))
						order = append(order, i) // One at a time.
						time.Sleep(time.Second)
						s.give()
					})
					synctest.Wait()
					if i%10 == 3 {
						close(givenUp)
						synctest.Wait()
					}
				}
				s.give()
				running.Wait()
				require.Len(t, order, waiting*9/10)
				require.True(t, test.order(order), order)
				require.Equal(t, 1, s.free)
			})
		})
	}
}

// One who gives up at the very moment in which he is let in passes it on.
func TestSemaphoreGivesUp(t *testing.T) {
	s := newSemaphore(3, newest)
	var inside atomic.Int32
	var running sync.WaitGroup
	for range 100 {
		running.Go(func() {
			for range 100 {
				ctx, cancel := context.WithTimeout(t.Context(), rand.N(200*time.Microsecond))
				if s.take(ctx.Done()) {
					if inside.Add(1) > 3 {
						t.Error("too many")
					}
					inside.Add(-1)
					s.give()
				}
				cancel()
			}
		})
	}
	running.Wait()
	require.Equal(t, 3, s.free)
	require.Empty(t, s.waiting)
}

// slowRegistry takes a while for each call.
type slowRegistry struct {
	takes time.Duration
	turn  chan struct{}
}

func (r slowRegistry) Register(context.Context, registry.Target, registry.Caller) error {
	r.turn <- struct{}{}
	time.Sleep(r.takes)
	<-r.turn
	return nil
}

func (r slowRegistry) Unregister(context.Context, registry.Target, registry.Caller) error { return nil }

// 1,000 TAPAs open at once, with four calls each and 15 s for all four, at a registry that needs 40 s for all their calls.
func TestAllOpenAtOnce(t *testing.T) { // P26
	synctest.Test(t, func(t *testing.T) {
		const tapas, calls = 1000, 4
		c := NewCrowd(nil, slowRegistry{10 * time.Millisecond, make(chan struct{}, 1)})
		c.places = newSemaphore(16, newest)
		began := time.Now()
		var open atomic.Int32
		var running sync.WaitGroup
		for range tapas {
			running.Go(func() {
				for {
					ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
					var err error
					for range calls {
						if err == nil {
							err = c.Register(ctx, registry.Target{}, registry.Caller{})
						}
					}
					cancel()
					if err == nil {
						open.Add(1)
						return
					}
					if time.Since(began) > 10*time.Minute {
						return
					}
					time.Sleep(time.Second)
				}
			})
		}
		running.Wait()
		require.Equal(t, int32(tapas), open.Load())
		require.Less(t, time.Since(began), 80*time.Second) // No more than half of the work was in vain.
		t.Log("all open after", time.Since(began))
	})
}
