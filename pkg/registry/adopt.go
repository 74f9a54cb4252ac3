package registry

import (
	"context"
	"fmt"
	"slices"
)

// Adoption is what a store takes over from elsewhere.
type Adoption struct {
	// Targets get entries in their order, their statuses as stated: they went through a registration elsewhere.
	Targets []Target
	// Replace, where it is not nil, says that the targets are newer than what the store has: a known entry becomes as its
	// target says, and other entries of these scopes go. Where it is nil, known entries stay as they are.
	Replace []string
	// Documents are stored in the same transaction.
	Documents map[string][]byte
}

// Adopted is what became of an Adoption, in numbers of entries.
type Adopted struct {
	Added, Changed, Unchanged, Removed int
	// Blocked ones are ENABLED, but another entry holds their identifier, so they wait for it and are shown DISABLED.
	Blocked int
}

// Check says under which key a target is registered, or why it cannot be; the error wraps ErrInvalid. own is the namespace of
// every stream here.
func Check(t Target, own string, l Limits) (Key, error) {
	e, err := newEntry(t, Caller{}, own, l.withDefaults())
	return e.Key, err
}

// Adopt does all of it in one transaction, on a store that no registry works with; own is the namespace of every stream
// here. The error wraps ErrInvalid where a target cannot be registered, and nothing is done then, or ErrStore.
func Adopt(ctx context.Context, s Store, own string, a Adoption) (Adopted, error) {
	var wanted []Entry
	for _, target := range a.Targets {
		e, err := newEntry(target, Caller{}, own, Limits{}.withDefaults())
		if err != nil {
			return Adopted{}, err
		}
		wanted = append(wanted, e)
	}
	saved, err := s.Load(ctx)
	if err != nil {
		return Adopted{}, fmt.Errorf("%w: reading it: %w", ErrStore, err)
	}
	t := newTable(saved.NextID)
	var readable []*Entry
	for _, e := range saved.Entries {
		if whole, err := derive(*e); err == nil { // the registry sees to the others when it loads them
			readable = append(readable, whole)
		}
	}
	t.restore(readable)
	adopted := t.adoptAll(wanted, a.Replace)
	batch, _ := t.staged()
	batch.Documents = a.Documents
	if batch.Empty() {
		return adopted, nil
	}
	if err := s.Write(ctx, batch); err != nil {
		return Adopted{}, fmt.Errorf("%w: writing to it: %w", ErrStore, err)
	}
	return adopted, nil
}

func (t *table) adoptAll(wanted []Entry, replace []string) Adopted {
	var done Adopted
	if replace != nil {
		others := t.others(wanted, replace)
		t.remove(others, false)
		done.Removed = len(others)
	}
	for _, e := range wanted {
		old := t.entries[e.Key]
		e.Reserved = old != nil && old.Reserved && old.Identifier == e.Identifier
		switch {
		case old == nil:
			e.ID = t.nextID
			t.nextID++
			done.Added++
		case replace == nil || sameClaim(old, &e):
			done.Unchanged++
			continue
		default:
			e.ID, e.Caller, e.Memory = old.ID, old.Caller, old.Memory
			done.Changed++
		}
		t.arbitrate(&e)
		t.put(&e)
		t.promote(old)
	}
	for _, e := range wanted {
		if t.entries[e.Key].Blocked {
			done.Blocked++
		}
	}
	return done
}

// others are the keys of these scopes that are not wanted.
func (t *table) others(wanted []Entry, scopes []string) []Key {
	keep := make(map[Key]bool, len(wanted))
	for _, e := range wanted {
		keep[e.Key] = true
	}
	var keys []Key
	for _, e := range t.all() {
		if slices.Contains(scopes, e.Scope) && !keep[e.Key] {
			keys = append(keys, e.Key)
		}
	}
	return keys
}
