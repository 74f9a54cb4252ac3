package feed

import (
	"container/list"
	"sync"
)

// DefaultTombstones is how many removed keys a topic remembers for watchers that resume.
const DefaultTombstones = 4096

// Change sets a key to a value, or removes it.
type Change[K comparable, V any] struct {
	Key   K
	Value V
	Gone  bool
}

// Batch is what a cursor is owed: applied whole, it brings the watcher from its last revision to Revision.
type Batch[K comparable, V any] struct {
	// Snapshot is set where the changes are the whole state and replace what the watcher had.
	Snapshot bool
	Revision uint64
	Changes  []Change[K, V]
	// Coalesced changes since the last batch are not in Changes, because a later one of the same key is.
	Coalesced int
}

// Topic is a versioned map with one writer. Each key remembers the revision of its last change; the keys hang in a list in
// that order, so that "what changed since r" is the tail of the list and costs what it returns, however many keys there are.
//
// Removed keys stay in the list as tombstones up to a limit; who resumes from before the oldest forgotten one gets a snapshot.
type Topic[K comparable, V any] struct {
	tombstones int

	mu    sync.RWMutex
	open  bool
	rev   uint64
	floor uint64
	// applied counts changes.
	applied int
	items   map[K]*list.Element
	order   *list.List // of *item[K, V], by revision
	gone    *list.List // of *list.Element in order, the removed ones, oldest first
	changed chan struct{}
}

type item[K comparable, V any] struct {
	Change[K, V]
	rev uint64
	// grave is the item's place in Topic.gone, nil while it lives.
	grave *list.Element
}

// NewTopic makes a topic that remembers at most the given number of removed keys. It answers nobody before Open.
func NewTopic[K comparable, V any](tombstones int) *Topic[K, V] {
	return &Topic[K, V]{
		tombstones: tombstones,
		items:      make(map[K]*list.Element),
		order:      list.New(),
		gone:       list.New(),
		changed:    make(chan struct{}),
	}
}

// NewTopicAt makes a topic that begins at rev: whoever resumes from before it gets a snapshot.
func NewTopicAt[K comparable, V any](rev uint64, tombstones int) *Topic[K, V] {
	t := NewTopic[K, V](tombstones)
	t.rev, t.floor = rev, rev
	return t
}

// Publish applies changes as one step at revision rev, which must be greater than any before. Removing an unknown key is no
// change.
func (t *Topic[K, V]) Publish(rev uint64, changes []Change[K, V]) {
	t.mu.Lock()
	defer t.mu.Unlock()
	touched := false
	for _, c := range changes {
		if t.apply(rev, c) {
			t.applied++
			touched = true
		}
	}
	if !touched {
		return
	}
	t.rev = rev
	t.compact()
	t.wake()
}

// Open lets the topic answer: its state is now worth telling.
func (t *Topic[K, V]) Open() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.open {
		t.open = true
		t.wake()
	}
}

// Len is the number of live keys.
func (t *Topic[K, V]) Len() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.items) - t.gone.Len()
}

// Revision is that of the last change.
func (t *Topic[K, V]) Revision() uint64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.rev
}

func (t *Topic[K, V]) apply(rev uint64, c Change[K, V]) bool {
	el, known := t.items[c.Key]
	if !known {
		if c.Gone {
			return false
		}
		t.items[c.Key] = t.order.PushBack(&item[K, V]{Change: c, rev: rev})
		return true
	}
	it := el.Value.(*item[K, V])
	if c.Gone && it.Gone {
		return false
	}
	if it.grave != nil {
		t.gone.Remove(it.grave)
		it.grave = nil
	}
	it.Change, it.rev = c, rev
	t.order.MoveToBack(el)
	if c.Gone {
		it.grave = t.gone.PushBack(el)
	}
	return true
}

// compact forgets the oldest tombstones beyond the limit. Whoever has seen less than the last one forgotten cannot learn of
// it by delta any more.
func (t *Topic[K, V]) compact() {
	for t.gone.Len() > t.tombstones {
		front := t.gone.Front()
		el := front.Value.(*list.Element)
		it := el.Value.(*item[K, V])
		t.floor = max(t.floor, it.rev)
		t.gone.Remove(front)
		t.order.Remove(el)
		delete(t.items, it.Key)
	}
}

func (t *Topic[K, V]) wake() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// Follow starts a watcher without history: its first batch is a snapshot.
func (t *Topic[K, V]) Follow() *Cursor[K, V] {
	return &Cursor[K, V]{topic: t}
}

// Resume starts a watcher that has applied everything up to rev of this very topic. Where the gap is too old, or rev is none
// of this topic's, its first batch is a snapshot.
func (t *Topic[K, V]) Resume(rev uint64) *Cursor[K, V] {
	return &Cursor[K, V]{topic: t, at: rev, resumed: true}
}

// Cursor is one watcher's position in a topic. It is not safe for concurrent use.
type Cursor[K comparable, V any] struct {
	topic   *Topic[K, V]
	at      uint64
	resumed bool
	// applied is Topic.applied as of the last batch; it is not known before the first one.
	applied int
	began   bool
}

// Revision is that of the last batch.
func (c *Cursor[K, V]) Revision() uint64 { return c.at }

// Next returns what the watcher is owed, or ok false where that is nothing, and in any case a channel that is closed when
// there may be more.
func (c *Cursor[K, V]) Next() (b Batch[K, V], ok bool, more <-chan struct{}) {
	t := c.topic
	t.mu.RLock()
	defer t.mu.RUnlock()
	switch {
	case !t.open:
		return b, false, t.changed
	case !c.resumed || c.at < t.floor || c.at > t.rev:
		b = Batch[K, V]{Snapshot: true, Revision: t.rev, Changes: t.all()}
	case c.at == t.rev:
		return b, false, t.changed
	default:
		b = Batch[K, V]{Revision: t.rev, Changes: t.since(c.at)}
		if c.began {
			b.Coalesced = t.applied - c.applied - len(b.Changes)
		}
	}
	c.at, c.resumed, c.applied, c.began = t.rev, true, t.applied, true
	return b, true, t.changed
}

// all is the live state in the order of the last change.
func (t *Topic[K, V]) all() []Change[K, V] {
	out := make([]Change[K, V], 0, len(t.items)-t.gone.Len())
	for el := t.order.Front(); el != nil; el = el.Next() {
		if it := el.Value.(*item[K, V]); !it.Gone {
			out = append(out, it.Change)
		}
	}
	return out
}

// since is what changed after rev, oldest first.
func (t *Topic[K, V]) since(rev uint64) []Change[K, V] {
	n := 0
	el := t.order.Back()
	for ; el != nil && el.Value.(*item[K, V]).rev > rev; el = el.Prev() {
		n++
	}
	if el == nil {
		el = t.order.Front()
	} else {
		el = el.Next()
	}
	out := make([]Change[K, V], 0, n)
	for ; el != nil; el = el.Next() {
		out = append(out, el.Value.(*item[K, V]).Change)
	}
	return out
}
