package feed_test

import (
	"fmt"
	"maps"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/nordix/meridio-nsp/pkg/feed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type change = feed.Change[int, string]

// receiver applies batches as a watcher does.
type receiver struct {
	cursor *feed.Cursor[int, string]
	state  map[int]string
}

func (r *receiver) read() (feed.Batch[int, string], bool) {
	b, ok, _ := r.cursor.Next()
	if !ok {
		return b, false
	}
	if b.Snapshot {
		r.state = map[int]string{}
	}
	for _, c := range b.Changes {
		if c.Gone {
			delete(r.state, c.Key)
		} else {
			r.state[c.Key] = c.Value
		}
	}
	return b, true
}

// TestReceiversSeeTrueStates: whenever a receiver reads, however far behind, it has exactly the state of that moment. // D7
func TestReceiversSeeTrueStates(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		top := feed.NewTopic[int, string](rapid.IntRange(0, 5).Draw(t, "tombstones"))
		top.Open()
		model := map[int]string{}
		history := map[uint64]map[int]string{0: {}}
		var receivers []*receiver
		rev := uint64(0)
		t.Repeat(map[string]func(*rapid.T){
			"publish": func(t *rapid.T) {
				rev += uint64(rapid.IntRange(1, 3).Draw(t, "step"))
				changes := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) change {
					return change{
						Key:   rapid.IntRange(0, 7).Draw(t, "key"),
						Value: fmt.Sprint(rev),
						Gone:  rapid.Bool().Draw(t, "gone"),
					}
				}), 0, 4).Draw(t, "changes")
				for _, c := range changes {
					if c.Gone {
						delete(model, c.Key)
					} else {
						model[c.Key] = c.Value
					}
				}
				top.Publish(rev, changes)
				history[rev] = maps.Clone(model)
			},
			"follow": func(*rapid.T) {
				receivers = append(receivers, &receiver{cursor: top.Follow(), state: map[int]string{}})
			},
			"resume": func(t *rapid.T) {
				if len(receivers) == 0 {
					t.Skip("nobody")
				}
				r := rapid.SampledFrom(receivers).Draw(t, "receiver")
				r.cursor = top.Resume(r.cursor.Revision())
			},
			"read": func(t *rapid.T) {
				if len(receivers) == 0 {
					t.Skip("nobody")
				}
				r := rapid.SampledFrom(receivers).Draw(t, "receiver")
				if b, ok := r.read(); ok {
					require.Equal(t, model, r.state)
					require.Equal(t, history[b.Revision], r.state, "revision names the state")
				}
				_, again := r.read()
				require.False(t, again, "one batch brings it up to date")
			},
			"": func(t *rapid.T) { require.Equal(t, len(model), top.Len()) },
		})
	})
}

func TestResumeGetsOnlyWhatItMissed(t *testing.T) {
	top := feed.NewTopic[int, string](10)
	top.Open()
	for i := range 1000 {
		top.Publish(uint64(i+1), []change{{Key: i, Value: "a"}})
	}
	c := top.Follow()
	b, ok, _ := c.Next()
	require.True(t, ok)
	require.True(t, b.Snapshot)
	require.Len(t, b.Changes, 1000)
	top.Publish(1001, []change{{Key: 7, Value: "b"}})
	top.Publish(1002, []change{{Key: 8, Gone: true}, {Key: 7, Value: "c"}})

	b, ok, _ = top.Resume(b.Revision).Next()
	require.True(t, ok)
	require.False(t, b.Snapshot)
	require.Equal(t, []change{{Key: 8, Gone: true}, {Key: 7, Value: "c"}}, b.Changes, "in order, latest value only")
}

func TestResumeBeyondReachGetsSnapshot(t *testing.T) {
	top := feed.NewTopic[int, string](1)
	top.Open()
	top.Publish(1, []change{{Key: 1, Value: "a"}, {Key: 2, Value: "a"}, {Key: 3, Value: "a"}})
	top.Publish(2, []change{{Key: 1, Gone: true}})
	top.Publish(3, []change{{Key: 2, Gone: true}})
	for rev, snapshot := range map[uint64]bool{1: true, 2: false, 99: true} {
		b, ok, _ := top.Resume(rev).Next()
		require.True(t, ok)
		require.Equal(t, snapshot, b.Snapshot, "resume from %d", rev)
	}
}

func TestNothingIsAnsweredBeforeOpen(t *testing.T) {
	top := feed.NewTopic[int, string](1)
	c := top.Follow()
	top.Publish(1, []change{{Key: 1, Value: "a"}})
	_, ok, more := c.Next()
	require.False(t, ok)
	top.Open()
	<-more
	b, ok, _ := c.Next()
	require.True(t, ok)
	require.Len(t, b.Changes, 1)
}

// Whoever has read everything waits on the channel that came with that, and the next change closes it.
func TestPublishWakes(t *testing.T) {
	top := feed.NewTopic[int, string](1)
	top.Open()
	c := top.Follow()
	_, _, _ = c.Next()
	_, ok, more := c.Next()
	require.False(t, ok)
	top.Publish(1, []change{{Key: 1, Value: "a"}})
	select {
	case <-more:
	default:
		t.Fatal("nobody was woken")
	}
	b, ok, _ := c.Next()
	require.True(t, ok)
	require.Equal(t, []change{{Key: 1, Value: "a"}}, b.Changes)
}

// A topic that takes the place of another one knows nothing of what that had told: who resumes from there begins anew.
func TestATopicKnowsNothingOfItsPredecessor(t *testing.T) {
	top := feed.NewTopicAt[int, string](7, 10)
	top.Open()
	require.EqualValues(t, 7, top.Revision())
	for rev, snapshot := range map[uint64]bool{6: true, 7: false} {
		b, _, _ := top.Resume(rev).Next()
		require.Equal(t, snapshot, b.Snapshot, "resume from %d", rev)
	}
}

// A value is told once to each watcher, also to one that comes later.
func TestBoardTellsOnce(t *testing.T) {
	b := newBoard()
	for range 2 {
		w := b.Watch("one")
		defer w.Close()
		b.Set("one", 1, 10)
		_, _, ok, _ := w.Next()
		require.True(t, ok)
		_, _, ok, _ = w.Next()
		require.False(t, ok, "nothing new")
	}
}

// A value is a value, whatever it is and of whatever revision.
func TestBoardTellsZero(t *testing.T) {
	b := newBoard()
	w := b.Watch("one")
	defer w.Close()
	b.Set("one", 0, 0)
	v, rev, ok, _ := w.Next()
	require.True(t, ok)
	require.Zero(t, v)
	require.Zero(t, rev)
}

// Who leaves takes nothing from those who stay.
func TestBoardServesThoseWhoStay(t *testing.T) {
	b := newBoard()
	stays, leaves := b.Watch("one"), b.Watch("one")
	defer stays.Close()
	leaves.Close()
	require.True(t, b.Watched("one"))
	b.Set("one", 1, 10)
	v, _, ok, _ := stays.Next()
	require.True(t, ok)
	require.Equal(t, 10, v)
}

func TestRemovingTheUnknownWakesNobody(t *testing.T) {
	top := feed.NewTopic[int, string](1)
	top.Open()
	c := top.Follow()
	_, _, _ = c.Next()
	_, _, more := c.Next()
	quiet := func(more <-chan struct{}) {
		t.Helper()
		select {
		case <-more:
			t.Fatal("woken for nothing")
		default:
		}
	}
	top.Publish(1, []change{{Key: 1, Gone: true}})
	quiet(more)
	top.Publish(2, []change{{Key: 1, Value: "a"}})
	top.Publish(3, []change{{Key: 1, Gone: true}})
	_, ok, _ := c.Next()
	require.True(t, ok)
	_, _, more = c.Next()
	top.Publish(4, []change{{Key: 1, Gone: true}}) // it is gone already
	quiet(more)
	require.EqualValues(t, 3, top.Revision())
}

func newBoard() *feed.Board[string, int] {
	return feed.NewBoard[string](func(a, b int) bool { return a == b })
}

func TestBoardWakesOnlyTheConcerned(t *testing.T) {
	b := newBoard()
	w1, w2 := b.Watch("one"), b.Watch("two")
	defer w1.Close()
	defer w2.Close()
	_, _, ok, more1 := w1.Next()
	require.False(t, ok)
	_, _, _, more2 := w2.Next()
	b.Set("one", 1, 10)
	<-more1
	select {
	case <-more2:
		t.Fatal("the other one was woken")
	default:
	}
	v, rev, ok, more := w1.Next()
	require.True(t, ok)
	require.Equal(t, 10, v)
	require.EqualValues(t, 1, rev)

	b.Set("one", 2, 10)
	select {
	case <-more:
		t.Fatal("woken by an equal value")
	default:
	}
	b.Set("one", 3, 11)
	b.Set("one", 4, 12)
	v, rev, ok, _ = w1.Next()
	require.True(t, ok)
	require.Equal(t, 12, v, "the latest wins")
	require.EqualValues(t, 4, rev)
}

// TestSubscribeRacesSend: subscribing and leaving while values are sent leaves nothing behind; goroutines are TestMain's
// business. // P8
func TestSubscribeRacesSend(t *testing.T) {
	b := newBoard()
	top := feed.NewTopic[int, string](1)
	top.Open()
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 1000 {
				w := b.Watch(fmt.Sprint(i % 7))
				c := top.Follow()
				_, _, _, _ = w.Next()
				_, _, _ = c.Next()
				w.Close()
				w.Close()
			}
		})
		wg.Go(func() {
			for i := range 1000 {
				b.Set(fmt.Sprint(i%7), uint64(i), g)
			}
		})
	}
	wg.Go(func() {
		for i := range 1000 {
			top.Publish(uint64(i+1), []change{{Key: i % 5, Value: "a"}})
		}
	})
	wg.Wait()
	require.Zero(t, b.Len())
}

func TestEncodedIsMadeOnce(t *testing.T) {
	var e feed.Encoded
	n := 0
	for range 3 {
		require.Equal(t, "x", string(e.Get(func() []byte { n++; return []byte("x") })))
	}
	require.Equal(t, 1, n)
}

func BenchmarkPublishAndReadOneOfTenThousand(b *testing.B) {
	top := feed.NewTopic[int, string](feed.DefaultTombstones)
	top.Open()
	for i := range 10_000 {
		top.Publish(uint64(i+1), []change{{Key: i, Value: "a"}})
	}
	c := top.Follow()
	_, _, _ = c.Next()
	rev := uint64(10_000)
	for b.Loop() {
		rev++
		top.Publish(rev, []change{{Key: int(rev) % 10_000, Value: "b"}})
		_, _, _ = c.Next()
	}
}

// TestCoalescedAreCounted: what a receiver never saw is known, also by one that resumed.
func TestCoalescedAreCounted(t *testing.T) { // D7
	top := feed.NewTopic[int, string](1)
	top.Open()
	set := func(rev uint64, keys ...int) {
		var changes []change
		for _, k := range keys {
			changes = append(changes, change{Key: k, Value: fmt.Sprint(rev)})
		}
		top.Publish(rev, changes)
	}
	set(1, 1, 2)
	follows, resumes := top.Follow(), top.Resume(1)
	next := func(c *feed.Cursor[int, string]) int {
		b, ok, _ := c.Next()
		require.True(t, ok)
		return b.Coalesced
	}
	require.Zero(t, next(follows), "a snapshot")
	set(2, 1)
	require.Zero(t, next(follows))
	require.Zero(t, next(resumes), "what was missed before is not known")
	set(3, 1, 2)
	set(4, 1)
	set(5, 1, 3)
	require.Equal(t, 2, next(follows), "five changes of three keys")
	require.Equal(t, 2, next(resumes))
}
