package registry

import (
	"context"
	"maps"
	"sync"
	"time"
)

const (
	// lazyDelay is how long a write may be put off that nobody waits for.
	lazyDelay = 250 * time.Millisecond
	// lazyBatch bounds one such write, so that a Register does not wait long behind it.
	lazyBatch = 1000
)

// lazy is a mailbox: what others want written some time soon, the latest of each.
type lazy struct {
	mu        sync.Mutex
	memory    map[uint64]Memory
	documents map[string][]byte
	// wake says that there is something to write.
	wake chan struct{}
}

func newLazy() lazy {
	return lazy{memory: map[uint64]Memory{}, documents: map[string][]byte{}, wake: make(chan struct{}, 1)}
}

// Remember keeps what was concluded of entries, by their ID, for the next Load. It never blocks; it is written soon, and
// the sink is not told. An entry that is gone meanwhile is skipped, so a later life of its key does not inherit from it.
func (r *Registry) Remember(memory map[uint64]Memory) {
	r.lazy.mu.Lock()
	maps.Copy(r.lazy.memory, memory)
	r.lazy.mu.Unlock()
	r.lazy.signal()
}

// SaveDocument keeps data under a name for the next Load; nil removes it. It never blocks; it is written soon. The data
// must not be changed afterwards.
func (r *Registry) SaveDocument(name string, data []byte) {
	r.lazy.mu.Lock()
	r.lazy.documents[name] = data
	r.lazy.mu.Unlock()
	r.lazy.signal()
}

func (l *lazy) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// take empties the mailbox.
func (l *lazy) take() (map[uint64]Memory, map[string][]byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	memory, documents := l.memory, l.documents
	l.memory, l.documents = map[uint64]Memory{}, map[string][]byte{}
	return memory, documents
}

// putBack returns documents that could not be written, except where there are later ones.
func (l *lazy) putBack(documents map[string][]byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.Copy(documents, l.documents)
	l.documents = documents
}

// flush writes what is pending, a part at a time; those who wait for an answer go in between.
func (r *Registry) flush(ctx context.Context) error {
	memory, documents := r.lazy.take()
	for id, m := range memory {
		r.table.remember(id, m)
	}
	if _, err := r.commit(ctx); err != nil {
		return err
	}
	for parts := len(r.dirty)/lazyBatch + 1; parts > 0; parts-- {
		entries := r.dirtyEntries(lazyBatch)
		batch := Batch{Put: entries, Documents: documents}
		if batch.Empty() {
			break
		}
		if err := r.write(ctx, batch); err != nil {
			r.lazy.putBack(documents)
			r.report(ctx, Round{Err: err})
			return err
		}
		r.wrote(batch)
		documents = nil
		r.serve(ctx)
	}
	return nil
}

func (r *Registry) wrote(b Batch) {
	for _, e := range b.Put {
		delete(r.dirty, e.ID)
	}
	for name, data := range b.Documents {
		if data == nil {
			delete(r.documents, name)
		} else {
			r.documents[name] = data
		}
	}
}
