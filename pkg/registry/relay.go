package registry

import (
	"context"
	"math"
)

// Seen is the last that somebody knew of an entry; see Withdraw.
type Seen struct {
	ID uint64
	// Registrations is what Registrations said then, or 0 where that was in an earlier run.
	Registrations uint64
}

// Restored is an entry that comes back from where it was kept; see Restore.
type Restored struct {
	Target
	Caller Caller
	// Reserved is Entry.Reserved as it was.
	Reserved bool
}

// Registrations counts the calls of Register that took effect in this run, refreshes included.
func (r *Registry) Registrations() uint64 { return r.registrations.Load() }

// Withdraw is an Unregister that comes late: it does nothing where the entry is another one by now, or was registered or
// refreshed since it was seen. Errors are those of Unregister.
func (r *Registry) Withdraw(ctx context.Context, t Target, seen Seen) error {
	k, err := KeyOf(t, r.cfg.Namespace)
	if err != nil {
		return nil //nolint:nilerr // what cannot be registered is not there
	}
	return r.do(ctx, func(t *table) []Change {
		if e := t.entries[k]; e == nil || e.ID != seen.ID || t.registered[k] > seen.Registrations {
			return nil
		}
		return t.unregister(k)
	})
}

// Restore stores targets with the statuses that they had, because they went through their registration once. Where there is an
// entry already it stays as it is and gets a full lease. Errors are those of Register, and nothing is done then.
func (r *Registry) Restore(ctx context.Context, restored []Restored) error {
	entries := make([]Entry, 0, len(restored))
	for _, one := range restored {
		e, err := newEntry(one.Target, one.Caller, r.cfg.Namespace, r.cfg.Limits)
		if err != nil {
			return err
		}
		e.Reserved = one.Reserved && e.Identifier != 0
		entries = append(entries, e)
	}
	return r.do(ctx, func(t *table) []Change {
		var changes []Change
		for _, e := range entries {
			changes = append(changes, t.bringBack(e))
		}
		return changes
	})
}

func (t *table) bringBack(e Entry) Change {
	if old := t.entries[e.Key]; old != nil {
		return Change{Old: old, New: old, Restored: true}
	}
	e.ID = t.nextID
	t.nextID++
	t.arbitrate(&e)
	t.put(&e)
	return Change{New: &e, Restored: true}
}

// EntryOf is the entry that a target would have, without ID and with the status that it states. The error wraps ErrInvalid.
func EntryOf(t Target, c Caller, own string) (Entry, error) {
	return newEntry(t, c, own, Limits{Context: math.MaxInt, Addresses: math.MaxInt})
}
