package feed

import (
	"maps"
	"slices"
	"sync"
)

// Board holds one small value for each key that somebody watches. A watcher is woken only when its own value changed and
// reads the latest one; values between are skipped.
type Board[K comparable, V any] struct {
	equal func(a, b V) bool

	mu    sync.Mutex
	cells map[K]*cell[V]
}

type cell[V any] struct {
	mu       sync.Mutex
	watchers int
	set      bool
	value    V
	rev      uint64
	changed  chan struct{}
}

// NewBoard makes an empty board. Setting a value that is equal to the one before wakes nobody.
func NewBoard[K comparable, V any](equal func(a, b V) bool) *Board[K, V] {
	return &Board[K, V]{equal: equal, cells: make(map[K]*cell[V])}
}

// Watch starts a watcher of k, which must be closed. The caller makes sure that somebody Sets a value.
func (b *Board[K, V]) Watch(k K) *Watcher[K, V] {
	b.mu.Lock()
	defer b.mu.Unlock()
	c, known := b.cells[k]
	if !known {
		c = &cell[V]{changed: make(chan struct{})}
		b.cells[k] = c
	}
	c.watchers++
	return &Watcher[K, V]{board: b, key: k, cell: c}
}

// Set stores the value of k at revision rev and wakes its watchers. Without watchers it does nothing.
func (b *Board[K, V]) Set(k K, rev uint64, v V) {
	b.mu.Lock()
	c, known := b.cells[k]
	b.mu.Unlock()
	if !known {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.set && b.equal(c.value, v) {
		return
	}
	c.value, c.rev, c.set = v, rev, true
	close(c.changed)
	c.changed = make(chan struct{})
}

// Watched tells whether somebody watches k.
func (b *Board[K, V]) Watched(k K) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, known := b.cells[k]
	return known
}

// Keys are the keys that somebody watches, in no order.
func (b *Board[K, V]) Keys() []K {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Collect(maps.Keys(b.cells))
}

// Len is the number of keys that are watched.
func (b *Board[K, V]) Len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.cells)
}

// Watcher reads one key of a board. Only Close is safe for concurrent use.
type Watcher[K comparable, V any] struct {
	board *Board[K, V]
	key   K
	cell  *cell[V]
	once  sync.Once
	seen  uint64
	any   bool
}

// Next returns the value where it is newer than the last one returned, and in any case a channel that is closed when there
// may be a newer one.
func (w *Watcher[K, V]) Next() (v V, rev uint64, ok bool, more <-chan struct{}) {
	c := w.cell
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.set || (w.any && c.rev <= w.seen) {
		return v, w.seen, false, c.changed
	}
	w.seen, w.any = c.rev, true
	return c.value, c.rev, true, c.changed
}

// Close ends the watch; closing again does nothing. The last watcher takes the value with it.
func (w *Watcher[K, V]) Close() {
	w.once.Do(func() {
		w.board.mu.Lock()
		defer w.board.mu.Unlock()
		w.cell.watchers--
		if w.cell.watchers == 0 {
			delete(w.board.cells, w.key)
		}
	})
}
