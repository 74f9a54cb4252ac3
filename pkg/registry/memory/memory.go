// Package memory is a registry store that keeps nothing beyond the process: for tests, and for a registry whose clients
// may bring everything back.
package memory

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/nordix/meridio-nsp/pkg/registry"
)

// Store is a registry.Store in memory. It may be loaded again after Close, as a file would.
type Store struct {
	// Fail, if set, sees every batch before it is written; where it returns an error nothing is. It may block.
	Fail func(registry.Batch) error

	mu        sync.Mutex
	entries   map[registry.Key]*registry.Entry
	documents map[string][]byte
	nextID    uint64
}

// New makes an empty store.
func New() *Store {
	return &Store{entries: map[registry.Key]*registry.Entry{}, documents: map[string][]byte{}, nextID: 1}
}

// Load implements registry.Store.
func (s *Store) Load(ctx context.Context) (registry.Saved, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	entries := slices.SortedFunc(maps.Values(s.entries), func(a, b *registry.Entry) int { return cmp.Compare(a.ID, b.ID) })
	return registry.Saved{Entries: entries, NextID: s.nextID, Documents: maps.Clone(s.documents)}, ctx.Err()
}

// Write implements registry.Store.
func (s *Store) Write(ctx context.Context, b registry.Batch) error {
	if s.Fail != nil {
		if err := s.Fail(b); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range b.Delete {
		delete(s.entries, k)
	}
	for _, e := range b.Put {
		s.entries[e.Key] = e
		s.nextID = max(s.nextID, e.ID+1)
	}
	maps.Copy(s.documents, b.Documents)
	maps.DeleteFunc(s.documents, func(_ string, data []byte) bool { return data == nil })
	return nil
}

// Close implements registry.Store.
func (s *Store) Close() error { return nil }
