package tapa

import (
	"log/slog"
	"maps"
	"slices"
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

// Whatever pool, application and connector do in whatever order: calls of one stream never overlap, nothing is closed that
// somebody wants in the trench in use, and in the end open is what is wanted, stored is who wants it. // P14, P15
func TestAnyCourse(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		manners := rapid.SliceOfN(rapid.SampledFrom([]manner{works, works, refuses, deceives, slow, hangs}), 0, 40).Draw(rt, "manners")
		steps := rapid.IntRange(1, 30).Draw(rt, "steps")
		synctest.Test(t, func(t *testing.T) { course(t, rt, manners, steps) })
	})
}

func course(t *testing.T, rt *rapid.T, manners []manner, steps int) {
	model := &wishes{owners: map[stream.Key]Owners{}}
	f, store := newFake(manners...), &memory{}
	store.state.Lost = true
	b := run(t, f, store)
	f.onClose = func(k stream.Key) {
		if v, _ := b.View(); model.owners[k] != 0 && v.Trench == k.Trench {
			rt.Errorf("%s is closed, though %v want it", k, model.owners[k].Names())
		}
	}
	all := []stream.Key{a1, a2, b1, key("b", "two")}
	some := rapid.SampledFrom(all)
	for range steps {
		switch rapid.SampledFrom([]string{"open", "close", "pool", "restart", "down", "up", "drop", "sidecar", "time"}).Draw(rt, "step") {
		case "open":
			k := some.Draw(rt, "stream")
			before := model.owners[k]
			model.set(k, before|Application)
			if err := b.Reconciler.Open(k); err != nil {
				require.ErrorIs(rt, err, ErrOtherTrench)
				model.set(k, before)
			}
		case "close":
			k := some.Draw(rt, "stream")
			model.set(k, model.owners[k]&^Application)
			require.NoError(rt, b.Close(k))
		case "pool":
			list := rapid.SliceOfDistinct(some, rapid.ID[stream.Key]).Draw(rt, "list")
			for _, k := range all {
				model.set(k, model.owners[k]&^Pool)
			}
			for _, k := range list {
				model.set(k, model.owners[k]|Pool)
			}
			b.SetPool(list)
		case "restart":
			f.restart()
		case "down":
			f.stop()
		case "up":
			f.start()
		case "drop":
			f.drop(some.Draw(rt, "stream"))
		case "sidecar":
			b.stop()
			b = run(t, f, store)
		case "time":
			later(time.Duration(rapid.IntRange(0, 30_000).Draw(rt, "ms")) * time.Millisecond)
		}
		synctest.Wait()
	}
	f.calm()
	f.start()
	later(10 * time.Minute)
	judge(rt, b, model)
	b.stop()
}

// judge compares what has become of it with the model.
func judge(rt *rapid.T, b *bench, model *wishes) {
	v, _ := b.View()
	want := map[stream.Key]bool{}
	for k := range model.owners {
		if k.Trench == v.Trench {
			want[k] = true
		}
	}
	require.False(rt, b.fake.overlap, "two calls of one stream at a time")
	require.Equal(rt, want, b.fake.opened())
	require.Equal(rt, len(model.trenches()) > 0, v.Trench != "")
	if v.Trench != "" {
		require.Contains(rt, model.trenches(), v.Trench)
	}
	owners := map[stream.Key]Owners{}
	for _, row := range v.Rows {
		owners[row.Stream] = row.Owners
		if want[row.Stream] {
			require.Equal(rt, Open, row.Status)
		} else {
			require.Equal(rt, Pending, row.Status)
		}
	}
	require.Equal(rt, model.owners, owners)
	again := New(Config{Connector: b.fake, Store: b.store, Saved: b.store.saved(), Log: slog.New(slog.DiscardHandler)})
	restored, _ := again.View()
	for i, row := range restored.Rows {
		require.Equal(rt, v.Rows[i].Owners, row.Owners)
	}
	require.Len(rt, restored.Rows, len(v.Rows))
}
