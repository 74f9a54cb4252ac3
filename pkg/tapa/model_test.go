package tapa

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/nordix/meridio-nsp/pkg/stream"
)

// wishes is the plain model: who wants what, and which trench is in use.
type wishes struct {
	owners map[stream.Key]Owners
}

func (w *wishes) set(k stream.Key, o Owners) {
	if o == 0 {
		delete(w.owners, k)
	} else {
		w.owners[k] = o
	}
}

// trenches are those that somebody wants a stream of.
func (w *wishes) trenches() []string {
	all := map[string]bool{}
	for k := range w.owners {
		all[k.Trench] = true
	}
	return slices.Sorted(maps.Keys(all))
}

// step is one thing that happens.
type step struct {
	What string
	K    stream.Key
	List []stream.Key
	Wait time.Duration
}

var (
	everything = []stream.Key{a1, a2, b1, key("b", "two")}
	someStream = rapid.SampledFrom(everything)
	someStep   = rapid.Custom(func(t *rapid.T) step {
		return step{
			What: rapid.SampledFrom([]string{"open", "close", "pool", "restart", "down", "up", "drop", "sidecar", "time"}).Draw(t, "what"),
			K:    someStream.Draw(t, "stream"),
			List: rapid.SliceOfDistinct(someStream, rapid.ID[stream.Key]).Draw(t, "list"),
			Wait: time.Duration(rapid.IntRange(0, 30_000).Draw(t, "ms")) * time.Millisecond,
		}
	})
)

// Whatever pool, application and connector do in whatever order: calls of one stream never overlap, nothing is closed that
// somebody wants in the trench in use, and in the end open is what is wanted, stored is who wants it. // P14, P15
func TestAnyCourse(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		manners := rapid.SliceOfN(rapid.SampledFrom([]manner{works, works, refuses, deceives, slow, late, hangs}), 0, 40).Draw(rt, "manners")
		steps := rapid.SliceOfN(someStep, 1, 30).Draw(rt, "steps")
		var found failures
		synctest.Test(t, func(t *testing.T) { course(t, &found, manners, steps) })
		if len(found) > 0 {
			rt.Fatal(strings.Join(found, "\n"))
		}
	})
}

// failures are collected in the bubble and told outside of it, where rapid can look for a shorter course.
type failures []string

// Errorf implements require.TestingT.
func (f *failures) Errorf(format string, args ...any) { *f = append(*f, fmt.Sprintf(format, args...)) }

// FailNow implements require.TestingT.
func (f *failures) FailNow() { panic(f) }

func course(t *testing.T, found *failures, manners []manner, steps []step) {
	model := &wishes{owners: map[stream.Key]Owners{}}
	f, store := newFake(manners...), &memory{}
	store.state.Lost = true
	b := run(t, f, store)
	defer func() { b.stop() }()
	defer func() {
		if p := recover(); p != nil && p != found {
			panic(p)
		}
	}()
	f.onClose = func(k stream.Key) {
		if v, _ := b.View(); model.owners[k] != 0 && v.Trench == k.Trench {
			found.Errorf("%s is closed, though %v want it", k, model.owners[k].Names())
		}
	}
	for _, s := range steps {
		if s.What == "sidecar" {
			b.stop()
			b = run(t, f, store)
			continue
		}
		act(found, b, model, s)
		synctest.Wait()
	}
	f.calm()
	f.start()
	later(10 * time.Minute)
	judge(found, b, model)
}

// act does a step, in the model too.
func act(found *failures, b *bench, model *wishes, s step) {
	switch before := model.owners[s.K]; s.What {
	case "open":
		model.set(s.K, before|Application)
		if err := b.Reconciler.Open(s.K); err != nil {
			require.ErrorIs(found, err, ErrOtherTrench)
			model.set(s.K, before)
		}
	case "close":
		model.set(s.K, before&^Application)
		require.NoError(found, b.Close(s.K))
	case "pool":
		for _, k := range everything {
			model.set(k, model.owners[k]&^Pool)
		}
		for _, k := range s.List {
			model.set(k, model.owners[k]|Pool)
		}
		b.SetPool(s.List)
	case "restart":
		b.fake.restart()
	case "down":
		b.fake.stop()
	case "up":
		b.fake.start()
	case "drop":
		b.fake.drop(s.K)
	case "time":
		later(s.Wait)
	}
}

// judge compares what has become of it with the model.
func judge(found *failures, b *bench, model *wishes) {
	v, _ := b.View()
	want := map[stream.Key]bool{}
	for k := range model.owners {
		if k.Trench == v.Trench {
			want[k] = true
		}
	}
	require.False(found, b.fake.overlap, "two calls of one stream at a time")
	require.Equal(found, want, b.fake.opened())
	require.Equal(found, len(model.trenches()) > 0, v.Trench != "")
	if v.Trench != "" {
		require.Contains(found, model.trenches(), v.Trench)
	}
	owners := map[stream.Key]Owners{}
	for _, row := range v.Rows {
		owners[row.Stream] = row.Owners
		if want[row.Stream] {
			require.Equal(found, Open, row.Status)
		} else {
			require.Equal(found, Pending, row.Status)
		}
	}
	require.Equal(found, model.owners, owners)
	again := New(Config{Connector: b.fake, Store: b.store, Saved: b.store.saved(), Log: slog.New(slog.DiscardHandler)})
	restored, _ := again.View()
	for i, row := range restored.Rows {
		require.Equal(found, v.Rows[i].Owners, row.Owners)
	}
	require.Len(found, restored.Rows, len(v.Rows))
}
