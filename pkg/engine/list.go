package engine

import (
	"cmp"
	"iter"
	"maps"
	"slices"

	"github.com/tidwall/btree"

	"github.com/nordix/meridio-nsp/pkg/feed"
	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// Filter selects registrations as the filter of nsp.v1 does: type and scope always count, an empty name matches all, status
// Any matches all. It is comparable; equal filters share one list.
type Filter struct {
	// Scope is a trench, or empty for all.
	Scope  string
	Type   registry.Type
	Status registry.Status
	// Trench, Conduit and Stream are names.
	Trench, Conduit, Stream string
	// Owner, where it is set, is the UID of the one whose registrations are shown.
	Owner string
}

// exact tells whether the filter names one stream, so that it can be found from a row.
func (f Filter) exact() bool {
	return f.Scope == "" && f.Owner == "" && f.Trench != "" && f.Conduit != "" && f.Stream != ""
}

// shows tells whether the row is in the filter's list. A load balancer of Meridio 1.x asks for ENABLED and gets the active
// targets; every other status filters as registered, because an old TAPA reads its own entry back that way.
func (f Filter) shows(r *Row) bool {
	return r != nil && f.covers(r.Entry) && matches(f.Owner, r.PodUID) && f.admits(r)
}

// admits tells whether the row's status is asked for.
func (f Filter) admits(r *Row) bool {
	switch {
	case f.Status == registry.Any:
		return true
	case f.Active():
		return r.State == Active || r.State == Draining
	default:
		return r.Entry.Status == f.Status
	}
}

func (f Filter) covers(e *registry.Entry) bool {
	return f.Type == e.Type && (f.Scope == "" || f.Scope == e.Scope) && matches(f.Trench, e.Stream.Trench) &&
		matches(f.Conduit, e.Stream.Conduit) && matches(f.Stream, e.Stream.Name)
}

func matches(want, have string) bool { return want == "" || want == have }

// Active tells whether the filter asks for active targets, which depend on the pools and on the configuration.
func (f Filter) Active() bool { return f.Type == registry.Default && f.Status == registry.Enabled }

// trench is the one whose registrations are shown, or empty for all.
func (f Filter) trench() string { return cmp.Or(f.Trench, f.Scope) }

// List is the answer to a filter at one revision, in the order in which the registrations were first stored. It is
// immutable and shared by all watchers of the filter.
type List struct {
	filter Filter
	rows   *rowTree

	// Wire is the encoded response, made when the first watcher needs it.
	Wire feed.Encoded
}

// Rows are the registrations in the list.
func (l *List) Rows() iter.Seq[*Row] {
	shows := l.filter.shows
	if l.filter.Type == registry.Default && l.filter.exact() {
		shows = l.filter.admits // the tree is that of the stream
	}
	return func(yield func(*Row) bool) {
		l.rows.Scan(func(_ uint64, r *Row) bool {
			return !shows(r) || yield(r)
		})
	}
}

// rowTree has rows by ID: the order in which keys were first stored.
type rowTree = btree.Map[uint64, *Row]

// Lists keeps rows and answers filters from them. One goroutine at a time may use it; the watchers that it hands out are
// independent of that.
type Lists struct {
	// answers tells whether what a filter depends on has been read.
	answers func(Filter) bool
	board   *feed.Board[Filter, *List]
	// wild are the watched filters that cannot be found from a row; those that nobody watches any more go when it has grown to
	// wildLimit.
	wild      map[Filter]bool
	wildLimit int
	rows      map[registry.Type]*rowTree
	// streams has the rows of type Default once more. All are of one namespace, which is left out.
	streams map[stream.Key]*rowTree
	// changed are the watched filters whose answer is not that of the board.
	changed map[Filter]bool
}

// NewLists makes lists without rows. A filter is answered only while answers says so, and then at the next Publish that
// concerns it or at Open.
func NewLists(answers func(Filter) bool) *Lists {
	return &Lists{
		answers: answers,
		board:   feed.NewBoard[Filter](func(a, b *List) bool { return a == b }),
		wild:    make(map[Filter]bool),
		rows:    make(map[registry.Type]*rowTree),
		streams: make(map[stream.Key]*rowTree),
		changed: make(map[Filter]bool),
	}
}

// Note takes the change of a row in, of which last or now may be nil. Watchers hear of it at the next Publish.
func (l *Lists) Note(last, now *Row) {
	if last != nil && (now == nil || now.Entry.ID != last.Entry.ID) {
		l.remove(last)
	}
	if now != nil {
		l.store(now)
	}
	if last == nil || now == nil || last.Entry.ID != now.Entry.ID || !last.sameLegacy(now) || last.State != now.State ||
		last.PodUID != now.PodUID {
		l.concern(last, now)
	}
}

func (l *Lists) store(r *Row) {
	treeOf(l.rows, r.Entry.Type).Set(r.Entry.ID, r)
	if r.Entry.Type == registry.Default {
		treeOf(l.streams, unspaced(r.Entry.Stream)).Set(r.Entry.ID, r)
	}
}

func (l *Lists) remove(r *Row) {
	removeFrom(l.rows, r.Entry.Type, r)
	if r.Entry.Type == registry.Default {
		removeFrom(l.streams, unspaced(r.Entry.Stream), r)
	}
}

func unspaced(k stream.Key) stream.Key {
	k.Namespace = ""
	return k
}

func treeOf[K comparable](trees map[K]*rowTree, k K) *rowTree {
	t, ok := trees[k]
	if !ok {
		t = &rowTree{}
		trees[k] = t
	}
	return t
}

// removeFrom removes the row unless its place is another key's by now.
func removeFrom[K comparable](trees map[K]*rowTree, k K, r *Row) {
	t, ok := trees[k]
	if !ok {
		return
	}
	if there, _ := t.Get(r.Entry.ID); there != nil && there.Entry.Key == r.Entry.Key {
		t.Delete(r.Entry.ID)
	}
	if t.Len() == 0 {
		delete(trees, k)
	}
}

// concern marks the watched filters whose answer the change of a row alters.
func (l *Lists) concern(last, now *Row) {
	add := func(f Filter) {
		if !f.shows(last) && !f.shows(now) {
			return
		}
		if f.shows(last) && f.shows(now) && last.sameLegacy(now) && last.Entry.ID == now.Entry.ID {
			return
		}
		if l.board.Watched(f) {
			l.changed[f] = true
		}
	}
	for _, r := range []*Row{last, now} {
		if r == nil {
			continue
		}
		k := r.Entry.Stream
		for _, status := range []registry.Status{registry.Enabled, registry.Any, r.Entry.Status} {
			add(Filter{Type: r.Entry.Type, Status: status, Trench: k.Trench, Conduit: k.Conduit, Stream: k.Name})
		}
	}
	for f := range l.wild {
		add(f)
	}
}

// Publish shows watchers what was noted, as revision rev.
func (l *Lists) Publish(rev uint64) {
	for f := range take(&l.changed) {
		l.publish(rev, f)
	}
}

// publish makes the list of a filter anew. The copy of the tree shares its nodes, so it costs nothing whatever the size.
func (l *Lists) publish(rev uint64, f Filter) {
	if l.answers(f) {
		l.board.Set(f, rev, &List{filter: f, rows: l.tree(f).Copy()})
	}
}

// Watch starts a watcher of a filter at revision rev. A list that others watch already is as it should be, and they are not
// woken.
func (l *Lists) Watch(rev uint64, f Filter) *feed.Watcher[Filter, *List] {
	w := l.board.Watch(f)
	if !f.exact() {
		l.addWild(f)
	}
	l.open(rev, f)
	return w
}

// Open answers those who waited for what has been read by now.
func (l *Lists) Open(rev uint64) {
	for _, f := range l.board.Keys() {
		l.open(rev, f)
	}
}

// open gives a list its first value.
func (l *Lists) open(rev uint64, f Filter) {
	w := l.board.Watch(f)
	defer w.Close()
	if _, _, told, _ := w.Next(); !told {
		l.publish(rev, f)
	}
}

// Targets are all rows that a filter covers, whatever their type and status, in the order in which they were first stored.
func (l *Lists) Targets(f Filter) (out []*Row) {
	for _, t := range slices.Sorted(maps.Keys(l.rows)) {
		f.Type = t
		l.rows[t].Scan(func(_ uint64, r *Row) bool {
			if f.covers(r.Entry) {
				out = append(out, r)
			}
			return true
		})
	}
	return out
}

// Len is the number of filters that are watched.
func (l *Lists) Len() int { return l.board.Len() }

func (l *Lists) tree(f Filter) *rowTree {
	var found *rowTree
	if f.Type == registry.Default && f.exact() {
		found = l.streams[stream.Key{Trench: f.Trench, Conduit: f.Conduit, Name: f.Stream}]
	} else {
		found = l.rows[f.Type]
	}
	return cmp.Or(found, &rowTree{})
}

func (l *Lists) addWild(f Filter) {
	if len(l.wild) >= l.wildLimit {
		maps.DeleteFunc(l.wild, func(f Filter, _ bool) bool { return !l.board.Watched(f) })
		l.wildLimit = 2*len(l.wild) + 16
	}
	l.wild[f] = true
}
