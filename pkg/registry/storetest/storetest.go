// Package storetest holds what every registry store must do.
package storetest

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// Open opens the store of one test; called again, after Close, it opens the same one with what was written.
type Open func() registry.Store

// Run runs the suite; place is called once for each test and gives it a new place to store things in.
func Run(t *testing.T, place func(t *testing.T) Open) {
	for name, test := range map[string]func(*testing.T, Open){
		"Empty":            testEmpty,
		"Kept":             testKept,
		"Replaced":         testReplaced,
		"KeysApart":        testKeysApart,
		"IDsNeverComeBack": testIDsNeverComeBack,
		"Documents":        testDocuments,
		"EndedContext":     testEndedContext,
		"Model":            testModel,
	} {
		t.Run(name, func(t *testing.T) { test(t, place(t)) })
	}
}

func testEmpty(t *testing.T, open Open) {
	s := open()
	defer closeStore(t, s)
	saved, err := s.Load(t.Context())
	require.NoError(t, err)
	require.Empty(t, saved.Entries)
	require.Empty(t, saved.Documents)
	require.EqualValues(t, 1, saved.NextID)
}

// P29: whatever is in a value comes back unaltered.
func testKept(t *testing.T, open Open) {
	caused := time.Date(2026, 1, 2, 3, 4, 5, 6789, time.UTC)
	full := entry(1, "x", "172.16.1.1/24")
	full.IPs = []string{"172.16.1.1/24", "172.16.1.1/24"}
	full.Context = map[string]string{"identifier": "7", "a;b": `c","d`, "": "", "nul": "\x00", "<&>": "\u2028ü"}
	full.Status, full.Blocked = registry.Disabled, true
	full.Caller = registry.Caller{Peer: netip.MustParseAddr("fd00::1"), PodUID: "uid"}
	full.Memory = registry.Memory{PodUID: "u", PodName: "n/p", Listed: true, State: 3, Reason: "r", Caused: caused}
	odd := &registry.Entry{Key: registry.Key{Type: 9, Addrs: `"a;b","c,d"`}, ID: 2, IPs: []string{"a;b", "c,d", ""}, Status: 7, Reserved: true}
	bare := &registry.Entry{Key: registry.Key{Scope: "s", Type: registry.Frontend}, ID: 1 << 40}

	write(t, open, registry.Batch{Put: []*registry.Entry{full, odd, bare}})
	saved := load(t, open)
	requireEntries(t, []*registry.Entry{full, odd, bare}, saved.Entries)
	require.EqualValues(t, 1<<40+1, saved.NextID)
}

func testReplaced(t *testing.T, open Open) {
	first, other := entry(1, "x", "10.0.0.1/32"), entry(2, "x", "10.0.0.2/32")
	write(t, open, registry.Batch{Put: []*registry.Entry{first, other}})
	same := *first
	same.Status = registry.Enabled
	write(t, open, registry.Batch{Put: []*registry.Entry{&same}})
	requireEntries(t, []*registry.Entry{&same, other}, load(t, open).Entries)

	reborn := *first
	reborn.ID = 3
	write(t, open, registry.Batch{Put: []*registry.Entry{&reborn}})
	requireEntries(t, []*registry.Entry{other, &reborn}, load(t, open).Entries)
}

// P28: entries that differ in any one part of the key are independent.
func testKeysApart(t *testing.T, open Open) {
	base := entry(1, "x", "10.0.0.1/32").Key
	keys := []registry.Key{base, base, base, base, base, base, base, base}
	keys[1].Scope, keys[2].Type, keys[3].Stream.Namespace = "other", registry.Frontend, "other"
	keys[4].Stream.Trench, keys[5].Stream.Conduit, keys[6].Stream.Name, keys[7].Addrs = "other", "other", "other", "10.0.0.1/24"
	var all []*registry.Entry
	for i, k := range keys {
		all = append(all, &registry.Entry{Key: k, ID: uint64(i + 1), IPs: []string{"10.0.0.1"}})
	}
	write(t, open, registry.Batch{Put: all})
	requireEntries(t, all, load(t, open).Entries)
	for len(all) > 0 {
		write(t, open, registry.Batch{Delete: []registry.Key{all[0].Key}})
		all = all[1:]
		requireEntries(t, all, load(t, open).Entries)
	}
	write(t, open, registry.Batch{Delete: []registry.Key{base}}) // gone already
}

func testIDsNeverComeBack(t *testing.T, open Open) {
	e := entry(41, "x", "10.0.0.1/32")
	write(t, open, registry.Batch{Put: []*registry.Entry{e}})
	write(t, open, registry.Batch{Delete: []registry.Key{e.Key}})
	require.EqualValues(t, 42, load(t, open).NextID)
}

func testDocuments(t *testing.T, open Open) {
	write(t, open, registry.Batch{Documents: map[string][]byte{"a": []byte("1"), "b": {0, 255}, "empty": {}, "gone": []byte("x")}})
	write(t, open, registry.Batch{Documents: map[string][]byte{"a": []byte("2"), "gone": nil, "never": nil}})
	require.Equal(t, map[string][]byte{"a": []byte("2"), "b": {0, 255}, "empty": {}}, load(t, open).Documents)
}

func testEndedContext(t *testing.T, open Open) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := open()
	require.ErrorIs(t, s.Write(ctx, registry.Batch{Put: []*registry.Entry{entry(1, "x", "10.0.0.1/32")}}), context.Canceled)
	closeStore(t, s)
	require.Empty(t, load(t, open).Entries)
}

// testModel compares the store with a map, closing and opening it now and then.
func testModel(t *testing.T, open Open) {
	model, documents, nextID := map[registry.Key]*registry.Entry{}, map[string][]byte{}, uint64(1)
	s := open()
	rapid.Check(t, func(rt *rapid.T) {
		var b registry.Batch
		touched := map[registry.Key]bool{}
		for range rapid.IntRange(1, 6).Draw(rt, "size") {
			e := entry(nextID, rapid.SampledFrom([]string{"x", "y"}).Draw(rt, "stream"),
				rapid.SampledFrom([]string{"10.0.0.1/32", "10.0.0.2/32", "10.0.0.1/32,fd00::1/128"}).Draw(rt, "addrs"))
			if touched[e.Key] {
				continue
			}
			touched[e.Key] = true
			if old := model[e.Key]; old != nil && rapid.Bool().Draw(rt, "delete") {
				b.Delete = append(b.Delete, e.Key)
				delete(model, e.Key)
				continue
			} else if old != nil && rapid.Bool().Draw(rt, "same life") {
				e.ID = old.ID
			}
			e.Context = map[string]string{"n": rapid.StringN(0, 4, 8).Draw(rt, "context")}
			b.Put = append(b.Put, e)
			model[e.Key], nextID = e, max(nextID, e.ID+1)
		}
		if rapid.Bool().Draw(rt, "document") {
			name, data := rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "name"), rapid.SliceOfN(rapid.Byte(), 0, 3).Draw(rt, "data")
			b.Documents = map[string][]byte{name: data}
			documents[name] = data
		}
		require.NoError(rt, s.Write(t.Context(), b))
		if rapid.Bool().Draw(rt, "reopen") {
			require.NoError(rt, s.Close())
			s = open()
		}
		saved, err := s.Load(t.Context())
		require.NoError(rt, err)
		want := slices.SortedFunc(maps.Values(model), func(a, b *registry.Entry) int { return int(a.ID) - int(b.ID) })
		requireEntries(rt, want, saved.Entries)
		require.Equal(rt, nextID, saved.NextID)
		require.Equal(rt, documents, saved.Documents)
	})
	closeStore(t, s)
}

func entry(id uint64, name, addrs string) *registry.Entry {
	st := stream.Key{Namespace: "ns", Trench: "t", Conduit: "c", Name: name}
	return &registry.Entry{Key: registry.Key{Scope: "t", Stream: st, Addrs: addrs}, ID: id, IPs: []string{addrs}, Status: registry.Disabled}
}

func write(t *testing.T, open Open, b registry.Batch) {
	t.Helper()
	s := open()
	require.NoError(t, s.Write(t.Context(), b))
	closeStore(t, s)
}

func load(t *testing.T, open Open) registry.Saved {
	t.Helper()
	s := open()
	defer closeStore(t, s)
	saved, err := s.Load(t.Context())
	require.NoError(t, err)
	return saved
}

func closeStore(t *testing.T, s registry.Store) {
	t.Helper()
	require.NoError(t, s.Close())
}

// requireEntries compares without the fields that a store need not keep, and takes nil and empty for the same.
func requireEntries(t require.TestingT, want, got []*registry.Entry) {
	plain := func(entries []*registry.Entry) []registry.Entry {
		list := make([]registry.Entry, 0, len(entries))
		for _, e := range entries {
			p := *e
			p.Prefixes, p.Identifier = nil, 0
			p.IPs = append([]string{}, e.IPs...)
			p.Context = map[string]string{}
			maps.Copy(p.Context, e.Context)
			list = append(list, p)
		}
		return list
	}
	require.Equal(t, plain(want), plain(got))
}
