package engine

import (
	"cmp"
	"iter"
	"maps"

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
}

// exact tells whether the filter names one stream, so that it can be found from a row.
func (f Filter) exact() bool {
	return f.Scope == "" && f.Trench != "" && f.Conduit != "" && f.Stream != ""
}

// shows tells whether the row is in the filter's list. A load balancer of Meridio 1.x asks for ENABLED and gets the active
// targets; every other status filters as registered, because an old TAPA reads its own entry back that way.
func (f Filter) shows(r *Row) bool {
	if r == nil || !f.covers(r.Entry) {
		return false
	}
	switch {
	case f.Status == registry.Any:
		return true
	case f.Status == registry.Enabled && f.Type == registry.Default:
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

// List is the answer to a filter at one revision, in the order in which the registrations were first stored. It is
// immutable and shared by all watchers of the filter.
type List struct {
	filter Filter
	rows   *btree.Map[uint64, *Row]

	// Wire is the encoded response, made when the first watcher needs it.
	Wire feed.Encoded
}

// Rows are the registrations in the list.
func (l *List) Rows() iter.Seq[*Row] {
	return func(yield func(*Row) bool) {
		l.rows.Scan(func(_ uint64, r *Row) bool {
			return !l.filter.shows(r) || yield(r)
		})
	}
}

// concerned adds the watched filters whose answer the change of a row alters.
func (o *outputs) concerned(last, now *Row, filters map[Filter]bool) {
	add := func(f Filter) {
		if !f.shows(last) && !f.shows(now) {
			return
		}
		if f.shows(last) && f.shows(now) && last.sameLegacy(now) {
			return
		}
		if o.lists.Watched(f) {
			filters[f] = true
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
	for f := range o.wild {
		add(f)
	}
}

// publishList makes the list of a filter anew. The copy of the tree shares its nodes, so it costs nothing whatever the size.
func (s *state) publishList(out *outputs, f Filter) {
	if !s.answers(f) {
		return
	}
	out.lists.Set(f, s.rev, &List{filter: f, rows: s.tree(f).Copy()})
}

// watchList starts a watcher of a filter. A list that others watch already is as it should be, and they are not woken.
func (s *state) watchList(out *outputs, f Filter) *feed.Watcher[Filter, *List] {
	w := out.lists.Watch(f)
	if !f.exact() {
		out.addWild(f)
	}
	if f.active() {
		s.want(f.trench())
	}
	s.openList(out, f)
	return w
}

// openList gives a list its first value.
func (s *state) openList(out *outputs, f Filter) {
	w := out.lists.Watch(f)
	defer w.Close()
	if _, _, told, _ := w.Next(); !told {
		s.publishList(out, f)
	}
}

// active tells whether the filter asks for active targets, which depend on the pools and on the configuration.
func (f Filter) active() bool { return f.Type == registry.Default && f.Status == registry.Enabled }

// trench is the one whose registrations are shown, or empty for all.
func (f Filter) trench() string { return cmp.Or(f.Trench, f.Scope) }

// answers tells whether what the filter depends on has been read.
func (s *state) answers(f Filter) bool {
	switch {
	case !f.active():
		return true
	case f.trench() == "":
		return s.complete
	default:
		return s.opened(f.trench())
	}
}

func (s *state) tree(f Filter) *btree.Map[uint64, *Row] {
	if f.Type == registry.Default && f.exact() {
		k := stream.Key{Namespace: s.cfg.Namespace, Trench: f.Trench, Conduit: f.Conduit, Name: f.Stream}
		if st, ok := s.streams[k]; ok {
			return &st.rows
		}
		return &btree.Map[uint64, *Row]{}
	}
	if all, ok := s.rows[f.Type]; ok {
		return all
	}
	return &btree.Map[uint64, *Row]{}
}

func (o *outputs) addWild(f Filter) {
	if len(o.wild) >= o.wildLimit {
		maps.DeleteFunc(o.wild, func(f Filter, _ bool) bool { return !o.lists.Watched(f) })
		o.wildLimit = 2*len(o.wild) + 16
	}
	o.wild[f] = true
}
