package tapa

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/pkg/stream"
)

// bench is a reconciler that runs in a bubble of time.
type bench struct {
	*testing.T
	*Reconciler
	fake  *fake
	store *memory
	stop  func()
}

// run starts a reconciler in the present bubble. It must be stopped before the bubble ends.
func run(t *testing.T, f *fake, store *memory) *bench {
	r := New(Config{Connector: f, Store: store, Saved: store.saved(), Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	synctest.Wait()
	return &bench{T: t, Reconciler: r, fake: f, store: store, stop: func() {
		cancel()
		require.NoError(t, <-done)
	}}
}

func bubble(t *testing.T, f *fake, test func(*bench)) {
	synctest.Test(t, func(t *testing.T) {
		b := run(t, f, &memory{})
		test(b)
		b.stop()
	})
}

// later lets time pass, and everything that is due in it happen.
func later(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (b *bench) row(k stream.Key) *Row {
	v, _ := b.View()
	for i := range v.Rows {
		if v.Rows[i].Stream == k {
			return &v.Rows[i]
		}
	}
	return nil
}

var (
	a1 = key("a", "one")
	a2 = key("a", "two")
	b1 = key("b", "one")
)

// A stream is open as long as one of two wants it, whoever lets go first.
func TestTheLastOwnerCloses(t *testing.T) {
	for name, first := range map[string]Owners{"the application first": Application, "the pool first": Pool} {
		t.Run(name, func(t *testing.T) {
			bubble(t, newFake(), func(b *bench) {
				b.SetPool([]stream.Key{a1})
				require.NoError(b, b.Reconciler.Open(a1))
				later(0)
				require.Equal(b, keys(a1), b.fake.opened())
				require.Equal(b, &Row{Stream: a1, Owners: Application | Pool, Held: true, Status: Open}, b.row(a1))
				require.Equal(b, []stream.Key{a1}, b.store.saved().Held, "so that it is closed even after a crash")
				letGo := func(o Owners) {
					if o == Pool {
						b.SetPool(nil)
					} else {
						require.NoError(b, b.Close(a1))
					}
					later(0)
				}
				letGo(first)
				require.Equal(b, []string{"open one"}, b.fake.said())
				require.Equal(b, (Application|Pool)&^first, b.row(a1).Owners)
				letGo((Application | Pool) &^ first)
				require.Equal(b, []string{"close one"}, b.fake.said())
				require.Nil(b, b.row(a1))
				require.Equal(b, State{Application: []stream.Key{}, Pool: []stream.Key{}, Held: []stream.Key{}}, b.store.saved())
			})
		})
	}
}

// Five opens and a close while the connector hangs leave the stream closed. // P15
func TestNoOpenAfterTheClose(t *testing.T) {
	bubble(t, newFake(hangs), func(b *bench) {
		for range 5 {
			require.NoError(b, b.Reconciler.Open(a1))
			later(time.Second)
		}
		require.NoError(b, b.Close(a1))
		later(time.Minute)
		require.Empty(b, b.fake.opened())
		require.Equal(b, []string{"open one", "close one", "close one"}, b.fake.said(), "the last one closes what the open did late")
	})
}

// A call that timed out is tried again with time of its own. // P14
func TestFreshContextPerAttempt(t *testing.T) {
	bubble(t, newFake(hangs, hangs, slow), func(b *bench) {
		require.NoError(b, b.Reconciler.Open(a1))
		later(2 * time.Minute)
		require.Equal(b, Open, b.row(a1).Status)
		require.NoError(b, b.row(a1).Err)
	})
}

// The latest wish counts at the next attempt, at once.
func TestAWishEndsTheWait(t *testing.T) {
	bubble(t, newFake(refuses, refuses, refuses, refuses, refuses, refuses), func(b *bench) {
		b.SetPool([]stream.Key{a1})
		later(0)
		require.Equal(b, Unavailable, b.row(a1).Status)
		require.ErrorIs(b, b.row(a1).Err, errRefused)
		b.SetPool(nil)
		later(0)
		require.Equal(b, []string{"open one", "close one"}, b.fake.said())
		b.SetPool([]stream.Key{a1, a2})
		later(time.Minute)
		require.Equal(b, keys(a1, a2), b.fake.opened())
	})
}

// While a call is refused, other streams' changes do not have it tried more often.
func TestRetriesAreSpread(t *testing.T) {
	manners := make([]manner, 100)
	for i := range manners {
		manners[i] = refuses
	}
	bubble(t, newFake(manners...), func(b *bench) {
		b.SetPool([]stream.Key{a1})
		for range 600 {
			later(100 * time.Millisecond)
			b.fake.set(a2, Pending)
			b.fake.set(a2, Open)
		}
		require.Less(b, len(b.fake.said()), 60, "a minute with at most 5 s between attempts")
	})
}

// The streams of another trench wait until those of the present one are closed.
func TestOneTrenchAtATime(t *testing.T) {
	bubble(t, newFake(works, slow), func(b *bench) {
		b.SetPool([]stream.Key{a1})
		later(0)
		require.ErrorIs(b, b.Reconciler.Open(b1), ErrOtherTrench, "as a TAPA says")
		b.SetPool([]stream.Key{b1})
		later(0)
		require.Equal(b, []string{"open one", "close one"}, b.fake.said())
		require.Equal(b, Pending, b.row(b1).Status)
		later(time.Second)
		require.Equal(b, keys(b1), b.fake.opened())
		v, _ := b.View()
		require.Equal(b, "b", v.Trench)
	})
}

// What the application has open in one trench keeps the pool's of another waiting.
func TestApplicationHoldsTheTrench(t *testing.T) {
	bubble(t, newFake(), func(b *bench) {
		require.NoError(b, b.Reconciler.Open(a1))
		b.SetPool([]stream.Key{b1})
		later(time.Minute)
		require.NoError(b, b.Reconciler.Open(a2))
		later(0)
		require.Equal(b, keys(a1, a2), b.fake.opened())
		require.NoError(b, b.Close(a1))
		require.NoError(b, b.Close(a2))
		later(0)
		require.Equal(b, keys(b1), b.fake.opened())
	})
}

// A restarted TAPA has forgotten everything, and is asked again for what is wanted.
func TestConnectorRestarts(t *testing.T) {
	bubble(t, newFake(), func(b *bench) {
		b.SetPool([]stream.Key{a1})
		require.NoError(b, b.Reconciler.Open(a2))
		later(0)
		b.fake.stop()
		later(0)
		require.Equal(b, Unavailable, b.row(a1).Status)
		b.SetPool(nil)
		later(time.Minute)
		b.fake.start()
		later(10 * time.Second)
		require.Equal(b, keys(a2), b.fake.opened())
		v, _ := b.View()
		require.True(b, v.Connected)
		require.Len(b, v.Rows, 1)
	})
}

// An answer of a TAPA that has been restarted since counts for nothing.
func TestAnswerOfTheOneBefore(t *testing.T) {
	bubble(t, newFake(late), func(b *bench) {
		b.SetPool([]stream.Key{a1})
		later(0)
		b.fake.restart()
		later(time.Minute)
		require.Equal(b, keys(a1), b.fake.opened())
	})
}

// Somebody's close at the connector itself is made good.
func TestClosedBehindOurBack(t *testing.T) {
	bubble(t, newFake(), func(b *bench) {
		b.SetPool([]stream.Key{a1})
		later(0)
		b.fake.drop(a1)
		later(0)
		require.Equal(b, keys(a1), b.fake.opened())
	})
}

// What somebody else opened at the connector is shown, left alone, and closed when the application says so, as a TAPA does.
func TestStreamsOfOthers(t *testing.T) {
	bubble(t, newFake(), func(b *bench) {
		b.fake.set(a1, Open)
		later(time.Minute)
		require.Equal(b, &Row{Stream: a1, Status: Open}, b.row(a1))
		require.NoError(b, b.Close(a1))
		later(0)
		require.Empty(b, b.fake.opened())
	})
}

// After a restart of its own the sidecar wants what it wanted, opens nothing twice and closes what nobody wants.
func TestOwnRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, store := newFake(), &memory{}
		b := run(t, f, store)
		b.SetPool([]stream.Key{a1, a2})
		require.NoError(t, b.Reconciler.Open(a2))
		later(0)
		b.stop()
		require.Equal(t, keys(a1, a2), f.opened(), "it goes without a word")

		b = run(t, f, store)
		later(time.Minute)
		require.Equal(t, keys(a1, a2), f.opened(), "before the NSP has answered")
		b.SetPool(nil)
		later(0)
		require.Equal(t, keys(a2), f.opened())
		b.stop()

		f.set(a1, Open)
		b = run(t, f, &memory{state: State{Application: []stream.Key{a2}, Held: []stream.Key{a1, a2}}})
		later(0)
		require.Equal(t, keys(a2), f.opened(), "held and not wanted")
		b.stop()
	})
}

// Without its state the sidecar closes nothing that may be the application's, until the application says so.
func TestStateLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.set(a1, Open)
		f.set(a2, Open)
		b := run(t, f, &memory{state: State{Lost: true}})
		b.SetPool([]stream.Key{a1})
		later(time.Minute)
		b.SetPool(nil)
		later(time.Minute)
		require.Equal(t, keys(a1, a2), f.opened())
		require.NoError(t, b.Close(a1))
		later(0)
		require.Equal(t, keys(a2), f.opened())
		require.Equal(t, []stream.Key{a2}, b.store.saved().Application)
		b.stop()

		f.set(a1, Open)
		f.stop()
		b = run(t, f, &memory{state: State{Lost: true}})
		require.NoError(t, b.Close(a1))
		f.start()
		f.set(a1, Open)
		later(time.Minute)
		require.Empty(t, f.opened(), "the close came before the first list")
		b.stop()
	})
}

// The pool's streams are closed at the end, the application's are not.
func TestDrain(t *testing.T) {
	bubble(t, newFake(works, works, works, slow), func(b *bench) {
		b.SetPool([]stream.Key{a1, a2, key("a", "three")})
		require.NoError(b, b.Reconciler.Open(a2))
		later(0)
		require.NoError(b, b.Drain(b.Context()))
		require.Equal(b, keys(a2), b.fake.opened())
		require.ErrorIs(b, b.Reconciler.Open(a1), ErrDraining)
		b.SetPool([]stream.Key{a1})
		later(time.Minute)
		require.Equal(b, keys(a2), b.fake.opened())
	})
}

// Closing at the end takes no longer than it may, and no time where nobody is there to close.
func TestDrainHasADeadline(t *testing.T) {
	bubble(t, newFake(works, hangs), func(b *bench) {
		b.SetPool([]stream.Key{a1})
		later(0)
		ctx, cancel := context.WithTimeout(b.Context(), 5*time.Second)
		defer cancel()
		began := time.Now()
		require.ErrorIs(b, b.Drain(ctx), context.DeadlineExceeded)
		require.Equal(b, 5*time.Second, time.Since(began))
		require.Equal(b, []stream.Key{a1}, b.store.saved().Held, "the next one closes it")
		b.fake.stop()
		later(time.Minute)
		began = time.Now()
		require.ErrorContains(b, b.Drain(b.Context()), "the connector is away")
		require.Zero(b, time.Since(began))
	})
}

// An application is told when its wish could not be stored; nothing has changed then. What a pool wants goes on.
func TestStoreFails(t *testing.T) {
	bubble(t, newFake(), func(b *bench) {
		full := errors.New("no space left on device")
		b.store.fail(full)
		err := b.Reconciler.Open(a1)
		require.ErrorIs(b, err, ErrNotStored)
		require.ErrorIs(b, err, full)
		b.SetPool([]stream.Key{a2})
		later(0)
		require.Equal(b, keys(a2), b.fake.opened())
		b.store.fail(nil)
		later(10 * time.Second)
		require.Equal(b, State{Application: []stream.Key{}, Pool: []stream.Key{a2}, Held: []stream.Key{a2}}, b.store.saved())
	})
}

// The status of a stream is that of the connector, where that says any.
func TestStatus(t *testing.T) {
	bubble(t, newFake(), func(b *bench) {
		b.SetPool([]stream.Key{a1})
		later(0)
		for _, s := range Statuses {
			b.fake.set(a1, s)
			later(0)
			require.Equal(b, s, b.row(a1).Status)
		}
	})
}

// What is remembered of streams that were open once is bounded, and the latest are remembered: one that comes back is closed.
func TestStreamsOfOnceAreForgotten(t *testing.T) {
	bubble(t, newFake(), func(b *bench) {
		var last stream.Key
		for i := range maxTried + 50 {
			last = key("a", fmt.Sprint("s", i))
			require.NoError(b, b.Reconciler.Open(last))
			synctest.Wait()
			require.NoError(b, b.Close(last))
			synctest.Wait()
		}
		require.Empty(b, b.fake.opened())
		b.mu.Lock()
		require.Len(b, b.lines, maxTried)
		b.mu.Unlock()
		b.fake.set(key("a", "s0"), Open)
		b.fake.set(last, Open)
		later(time.Minute)
		require.Equal(b, keys(key("a", "s0")), b.fake.opened(), "what nobody remembers is another's")
	})
}
