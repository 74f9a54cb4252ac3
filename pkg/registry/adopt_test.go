package registry_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/registry/memory"
)

// as is a target with another status.
func as(s registry.Status, t registry.Target) registry.Target {
	t.Status = s
	return t
}

func adopt(t require.TestingT, s registry.Store, a registry.Adoption) registry.Adopted {
	done, err := registry.Adopt(context.Background(), s, own, a)
	require.NoError(t, err)
	return done
}

// states are the entries of a store in their order, as "address status", with a mark where they wait.
func states(t require.TestingT, s registry.Store) []string {
	saved, err := registry.New(registry.Config{Store: s, Namespace: own}).Load(context.Background())
	require.NoError(t, err)
	list := []string{}
	for _, e := range saved.Entries {
		list = append(list, fmt.Sprintf("%s %d%s", e.IPs[0], e.Status, map[bool]string{true: " waits"}[e.Blocked]))
	}
	return list
}

// What was registered elsewhere needs no second Register, keeps its order, and has a full lease.
func TestAdopt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		done := adopt(t, store, registry.Adoption{
			Targets: []registry.Target{
				target("s", 7, "10.0.0.2"), as(registry.Disabled, target("s", 8, "10.0.0.1")), as(7, target("s", 9, "10.0.0.3")),
				{Type: registry.Frontend, IPs: []string{"host"}},
			},
			Documents: map[string][]byte{"seen": []byte("x")},
		})
		require.Equal(t, registry.Adopted{Added: 4}, done)
		require.Equal(t, []string{"10.0.0.2 0", "10.0.0.1 1", "10.0.0.3 7", "host 0"}, states(t, store))
		saved, err := store.Load(t.Context())
		require.NoError(t, err)
		require.Equal(t, "x", string(saved.Documents["seen"]))

		sink := &record{}
		r, stop := start(t, registry.Config{Store: store, Sink: sink, Timeout: time.Minute})
		defer stop()
		time.Sleep(59 * time.Second)
		require.NoError(t, r.Register(t.Context(), target("s", 7, "10.0.0.2"), nobody)) // a refresh
		require.Equal(t, registry.Enabled, sink.all()[0].New.Status)
		time.Sleep(10 * time.Second)
		require.Equal(t, []string{"10.0.0.2 0"}, states(t, store))
	})
}

// Two that are enabled with one identifier cannot both be; the first has it, as after any start.
func TestAdoptContested(t *testing.T) {
	store := memory.New()
	done := adopt(t, store, registry.Adoption{Targets: []registry.Target{target("s", 7, "10.0.0.1"), target("s", 7, "10.0.0.2"), target("x", 7, "10.0.0.3")}})
	require.Equal(t, registry.Adopted{Added: 3, Blocked: 1}, done)
	require.Equal(t, []string{"10.0.0.1 0", "10.0.0.2 1 waits", "10.0.0.3 0"}, states(t, store))
}

// Without Replace the store knows better; with it the targets do, but only about their own scopes.
func TestAdoptKnown(t *testing.T) {
	other := target("s", 1, "10.0.0.9")
	other.Stream.Trench = "u"
	before := []registry.Target{target("s", 1, "10.0.0.1"), target("s", 2, "10.0.0.2"), target("s", 3, "10.0.0.3"), other}
	// 1 and 2 have swapped their identifiers, 3 has gone, 4 has come with its identifier.
	after := []registry.Target{target("s", 2, "10.0.0.1"), target("s", 1, "10.0.0.2"), target("s", 3, "10.0.0.4")}
	for name, tt := range map[string]struct {
		replace []string
		done    registry.Adopted
		states  []string
		first   string
	}{
		"add": {nil, registry.Adopted{Added: 1, Unchanged: 2, Blocked: 1},
			[]string{"10.0.0.1 0", "10.0.0.2 0", "10.0.0.3 0", "10.0.0.9 0", "10.0.0.4 1 waits"}, "1"},
		"replace": {[]string{"t"}, registry.Adopted{Added: 1, Changed: 2, Removed: 1},
			[]string{"10.0.0.1 0", "10.0.0.2 0", "10.0.0.9 0", "10.0.0.4 0"}, "2"},
		"replace nothing else": {[]string{}, registry.Adopted{Added: 1, Changed: 2, Blocked: 1},
			[]string{"10.0.0.1 0", "10.0.0.2 0", "10.0.0.3 0", "10.0.0.9 0", "10.0.0.4 1 waits"}, "2"},
	} {
		t.Run(name, func(t *testing.T) {
			store := memory.New()
			adopt(t, store, registry.Adoption{Targets: before})
			require.Equal(t, tt.done, adopt(t, store, registry.Adoption{Targets: after, Replace: tt.replace}))
			require.Equal(t, tt.states, states(t, store))
			saved, err := store.Load(t.Context())
			require.NoError(t, err)
			require.Equal(t, tt.first, saved.Entries[0].Context["identifier"])
			require.EqualValues(t, 1, saved.Entries[0].ID, "it is the same entry")
		})
	}
}

// What cannot be registered, or stored, changes nothing.
func TestAdoptFails(t *testing.T) {
	store, written := watched()
	bad := target("s", 7, "nowhere")
	_, err := registry.Adopt(t.Context(), store, own, registry.Adoption{Targets: []registry.Target{target("s", 1, "10.0.0.1"), bad}})
	require.ErrorIs(t, err, registry.ErrInvalid)
	require.Empty(t, written.take())
	written.setFail(errors.New("disk full"))
	_, err = registry.Adopt(t.Context(), store, own, registry.Adoption{Targets: []registry.Target{target("s", 1, "10.0.0.1")}})
	require.ErrorIs(t, err, registry.ErrStore)
	_, err = registry.Adopt(t.Context(), store, own, registry.Adoption{})
	require.NoError(t, err, "nothing to write")
}

func TestCheck(t *testing.T) {
	k, err := registry.Check(target("s", 7, "10.0.0.1"), own, registry.Limits{})
	require.NoError(t, err)
	require.Equal(t, "10.0.0.1/32", k.Addrs)
	for _, bad := range []registry.Target{target("s", 7), target("", 7, "10.0.0.1"), target("s", 7, "x")} {
		_, err := registry.Check(bad, own, registry.Limits{})
		require.ErrorIs(t, err, registry.ErrInvalid)
	}
	_, err = registry.Check(target("s", 7, "10.0.0.1"), own, registry.Limits{Context: 3})
	require.ErrorContains(t, err, "context")
}

// Whatever was there, after replacing its scope a store has the targets and nothing else, and no identifier twice.
func TestAdoptReplacesAll(t *testing.T) {
	draw := func(rt *rapid.T, name string) []registry.Target {
		return rapid.SliceOfNDistinct(rapid.Custom(func(rt *rapid.T) registry.Target {
			ip := fmt.Sprintf("10.0.0.%d", rapid.IntRange(1, 6).Draw(rt, "ip"))
			return as(registry.Status(rapid.IntRange(0, 2).Draw(rt, "status")), target("s", uint64(rapid.IntRange(0, 3).Draw(rt, "identifier")), ip))
		}), 0, 6, func(t registry.Target) string { return t.IPs[0] }).Draw(rt, name)
	}
	rapid.Check(t, func(rt *rapid.T) {
		store := memory.New()
		adopt(rt, store, registry.Adoption{Targets: draw(rt, "before")})
		wanted := draw(rt, "after")
		done := adopt(rt, store, registry.Adoption{Targets: wanted, Replace: []string{"t"}})
		require.Len(rt, wanted, done.Added+done.Changed+done.Unchanged)
		saved, err := store.Load(context.Background())
		require.NoError(rt, err)
		require.Len(rt, saved.Entries, len(wanted))
		asked := map[string]registry.Target{}
		for _, w := range wanted {
			asked[w.IPs[0]] = w
		}
		holders := map[string]bool{}
		waiting := 0
		for _, e := range saved.Entries {
			w := asked[e.IPs[0]]
			require.Equal(rt, w.Context, e.Context)
			if e.Blocked {
				waiting++
				require.Equal(rt, registry.Enabled, w.Status)
				require.Equal(rt, registry.Disabled, e.Status)
				continue
			}
			require.Equal(rt, w.Status, e.Status)
			if id := e.Context["identifier"]; e.Status == registry.Enabled && id != "0" {
				require.False(rt, holders[id], "identifier %s twice", id)
				holders[id] = true
			}
		}
		require.Equal(rt, done.Blocked, waiting)
	})
}

// What the engine had concluded of an entry outlives that its registration is replaced.
func TestAdoptKeepsMemory(t *testing.T) {
	store := memory.New()
	adopt(t, store, registry.Adoption{Targets: []registry.Target{target("s", 1, "10.0.0.1")}})
	saved, err := store.Load(t.Context())
	require.NoError(t, err)
	e := *saved.Entries[0]
	e.Memory, e.Caller = registry.Memory{PodUID: "u", Listed: true}, registry.Caller{PodUID: "u"}
	require.NoError(t, store.Write(t.Context(), registry.Batch{Put: []*registry.Entry{&e}}))
	adopt(t, store, registry.Adoption{Targets: []registry.Target{target("s", 2, "10.0.0.1")}, Replace: []string{"t"}})
	saved, err = store.Load(t.Context())
	require.NoError(t, err)
	require.Equal(t, "2", saved.Entries[0].Context["identifier"])
	require.Equal(t, e.Memory, saved.Entries[0].Memory)
	require.Equal(t, e.Caller, saved.Entries[0].Caller)
}
