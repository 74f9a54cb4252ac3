package registry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"time"
)

// maxBatch bounds one transaction, and with it the time that a caller waits for those before him.
const maxBatch = 4096

// collect takes what is waiting, in the order of arrival.
func (r *Registry) collect(first ...*operation) []*operation {
	runtime.Gosched() // let those who were just answered, or just arrived, join this batch
	r.batch = append(r.batch[:0], first...)
	for len(r.batch) < maxBatch {
		select {
		case o := <-r.queue:
			r.batch = append(r.batch, o)
		default:
			return r.batch
		}
	}
	return r.batch
}

// serve works off what is waiting now. It comes to an end also where callers never stop coming.
func (r *Registry) serve(ctx context.Context) {
	const rounds = 16
	for range rounds {
		ops := r.collect()
		if len(ops) == 0 {
			return
		}
		r.round(ctx, ops)
	}
}

// round applies operations as one transaction: all that it changes is durable, then visible, then answered. Where the
// store fails, what needed it has no effect, and what did not (a refresh that changes nothing) succeeds all the same.
func (r *Registry) round(ctx context.Context, ops []*operation) {
	var stats Round
	var changes []Change
	for _, o := range ops {
		if o.err = o.ctx.Err(); o.err != nil {
			stats.Abandoned++
			continue
		}
		o.changes = o.apply(r.table)
		changes = append(changes, o.changes...)
	}
	if stats.Store, stats.Err = r.commit(ctx); stats.Err != nil {
		changes = r.salvage(ops, stats.Err)
		stats.Failed = failed(ops) - stats.Abandoned
	}
	stats.Operations = len(ops) - stats.Abandoned - stats.Failed
	changes = append(changes, r.table.waitingChanges()...)
	r.settle(ctx, changes, &stats)
	if len(changes) > 0 && r.cfg.Sink != nil {
		r.cfg.Sink.Registered(ctx, changes)
	}
	for _, o := range ops {
		close(o.done)
	}
	r.table.deliver()
	clear(ops)
	r.report(ctx, stats)
}

// commit writes what is staged, and keeps it; where that fails the table is as it was before.
func (r *Registry) commit(ctx context.Context) (time.Duration, error) {
	batch, later := r.table.staged()
	var took time.Duration
	if !batch.Empty() {
		began := time.Now()
		err := r.write(ctx, batch)
		took = max(time.Since(began), 1)
		if err != nil {
			r.table.rollback()
			return took, err
		}
	}
	for _, e := range batch.Put {
		delete(r.dirty, e.ID)
	}
	r.keep(later)
	return took, nil
}

// keep ends a transaction that leaves entries to be written later.
func (r *Registry) keep(later []*Entry) {
	for _, e := range later {
		r.dirty[e.ID] = struct{}{}
	}
	if len(later) > 0 {
		r.lazy.signal()
	}
	r.table.commit()
}

// write is one transaction. A store that lost everything is given everything, until that has succeeded.
func (r *Registry) write(ctx context.Context, b Batch) error {
	err := error(nil)
	if !r.lost {
		err = r.cfg.Store.Write(ctx, b)
		if r.lost = errors.Is(err, ErrLost); r.lost {
			r.cfg.Log.WarnContext(ctx, "the store was lost and is written anew", "error", err)
		}
	}
	if r.lost {
		docs := maps.Clone(r.documents)
		maps.Copy(docs, b.Documents)
		err = r.cfg.Store.Write(ctx, Batch{Put: r.table.all(), Documents: docs})
		r.lost = err != nil
	}
	if err != nil {
		return fmt.Errorf("%w: writing to it: %w", ErrStore, err)
	}
	return nil
}

// salvage goes through operations whose transaction failed, one at a time: those that need no store are done.
func (r *Registry) salvage(ops []*operation, failure error) []Change {
	var changes []Change
	for _, o := range ops {
		if o.err != nil {
			continue
		}
		o.changes = o.apply(r.table)
		batch, later := r.table.staged()
		if batch.Empty() {
			r.keep(later)
			changes = append(changes, o.changes...)
			continue
		}
		r.table.rollback()
		o.err = failure
		r.excuse(o.changes)
	}
	return changes
}

// failed counts the operations that had no effect.
func failed(ops []*operation) (n int) {
	for _, o := range ops {
		if o.err != nil {
			n++
		}
	}
	return n
}

// excuse renews the leases of entries whose Register failed for the store's sake: their owners are alive.
func (r *Registry) excuse(changes []Change) {
	for _, c := range changes {
		switch {
		case !c.Registered && !c.Reserved:
		case c.Old != nil:
			r.leases.Renew(c.Old.Key)
		default:
			delete(r.table.registered, c.New.Key)
		}
	}
}

// settle brings the leases up to what changed.
func (r *Registry) settle(ctx context.Context, changes []Change, stats *Round) {
	r.registrations.Store(r.table.registrations)
	for _, c := range changes {
		switch {
		case c.Waiting && c.New == nil:
			r.waits.Drop(c.Old.Key)
		case c.Waiting:
			r.waits.Renew(c.New.Key)
		case c.New == nil:
			r.leases.Drop(c.Old.Key)
			if r.table.entries[c.Old.Key] == nil {
				delete(r.table.registered, c.Old.Key)
			}
		case c.Registered, c.Restored, c.Reserved:
			r.leases.Renew(c.New.Key)
		}
		if c.Expired {
			stats.Expired++
		}
		if newlyBlocked(c) {
			stats.Blocked++
			r.cfg.Log.WarnContext(ctx, "registration waits: another one holds its identifier",
				"stream", c.New.Stream, "addresses", c.New.Addrs, "identifier", c.New.Identifier)
		}
	}
}

func newlyBlocked(c Change) bool {
	return c.New != nil && c.New.Blocked && (c.Old == nil || !c.Old.Blocked || c.Old.Identifier != c.New.Identifier)
}

// report logs when the store begins to fail and when it is back, and hands out the figures.
func (r *Registry) report(ctx context.Context, stats Round) {
	switch {
	case stats.Err != nil && !r.failing:
		r.cfg.Log.ErrorContext(ctx, "registrations cannot be stored", "error", stats.Err)
		r.failing = true
	case stats.Err == nil && stats.Store > 0 && r.failing:
		r.cfg.Log.InfoContext(ctx, "registrations can be stored again")
		r.failing = false
	}
	if r.cfg.Observe != nil {
		stats.Entries, stats.Waiting, stats.Queued = len(r.table.entries), r.table.blocked, len(r.table.waiters)
		r.cfg.Observe(stats)
	}
}

// dirtyEntries are the entries that wait to be written, at most n of them.
func (r *Registry) dirtyEntries(n int) []*Entry {
	entries := make([]*Entry, 0, min(n, len(r.dirty)))
	for id := range r.dirty {
		if len(entries) == n {
			break
		}
		if e := r.table.ids[id]; e != nil {
			entries = append(entries, e)
		} else {
			delete(r.dirty, id)
		}
	}
	slices.SortFunc(entries, byID)
	return entries
}
