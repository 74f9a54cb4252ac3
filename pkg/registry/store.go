package registry

import "context"

// Store keeps the registrations through a restart. It is used by one goroutine at a time.
//
// The fields of Entry that follow from others (Prefixes, Identifier) need not be kept: the registry works them out again.
type Store interface {
	// Load gives back all that was written.
	Load(ctx context.Context) (Saved, error)
	// Write applies the batch as a whole or not at all; what it wrote survives a crash of the machine once it returned.
	// An error that wraps ErrLost says that nothing in the store counts any more, and that it can be written to again: the next
	// batch that is written has to bring everything.
	Write(ctx context.Context, b Batch) error
	Close() error
}

// Saved is the content of a store.
type Saved struct {
	// Entries are in the order of their IDs.
	Entries []*Entry
	// NextID is greater than every ID that was ever written, and at least 1.
	NextID uint64
	// Documents are the last ones saved under each name.
	Documents map[string][]byte
	// Lost is set where there was more, which could not be read any more: the store begins from nothing.
	Lost bool
}

// Batch is one transaction on a store. No key is both put and deleted.
type Batch struct {
	// Put stores entries, each in place of what its key held before.
	Put []*Entry
	// Delete removes entries; an unknown key is no error.
	Delete []Key
	// Documents stores documents by name; nil removes one.
	Documents map[string][]byte
}

// Empty says that there is nothing to write.
func (b Batch) Empty() bool {
	return len(b.Put) == 0 && len(b.Delete) == 0 && len(b.Documents) == 0
}
