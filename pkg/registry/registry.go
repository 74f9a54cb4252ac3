// Package registry keeps what the targets say: registrations, their leases and their identifiers.
//
// One goroutine, Run, owns the state. Callers hand it operations and wait; it takes all that are waiting, applies them as
// one transaction on the store, tells the sink once, and answers. So a thousand callers cost one fsync, nobody holds a
// lock while waiting, and a caller who gave up before his turn leaves no trace.
package registry

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync/atomic"
	"time"
)

// Sink is told of every change.
type Sink interface {
	// Registered is called after the changes are durable and before their callers are answered; it returns when watchers
	// can see them. Changes are in the order in which they happened; one key may occur more than once.
	Registered(ctx context.Context, changes []Change)
}

// Config is what a registry needs.
type Config struct {
	Store Store
	// Sink may be nil.
	Sink Sink
	// Namespace is that of every stream here.
	Namespace string
	// Timeout is how long an entry lives without a refresh; 0 means 60 s.
	Timeout time.Duration
	Limits  Limits
	// MostPerPod and MostPerPeer are how many entries one proven pod may have, and one source address that is not loopback, of
	// which no more is known; 0 is no limit.
	MostPerPod, MostPerPeer int
	// Gone tells whether a pod has left the cluster, so that others may have what it registered; nil says that none has. It is
	// called by Run and must not block.
	Gone func(podUID string) bool
	// Log may be nil.
	Log *slog.Logger
	// Observe, if set, is told of every turn of the writer; it must not block.
	Observe func(Round)
}

// Round is what one turn of the writer did, for metrics.
type Round struct {
	// Operations were applied; Abandoned were not, because their caller gave up just before, and Failed because the store did.
	Operations, Abandoned, Failed int
	// Blocked entries asked to be enabled while another entry holds their identifier.
	Blocked int
	// Expired entries were removed because their lease ran out.
	Expired int
	// Entries are there now, Waiting of them blocked.
	Entries, Waiting int
	// Queued callers of Reserve wait for an identifier.
	Queued int
	// Store is the time that the store took, 0 where there was nothing to write; Err is its failure.
	Store time.Duration
	Err   error
}

// Registry is made by New, filled by Load and driven by Run.
type Registry struct {
	cfg           Config
	queue         chan *operation
	lazy          lazy
	hints         hints
	registrations atomic.Uint64
	// stopped is closed when Run has ended.
	stopped chan struct{}

	// What follows belongs to Load and then to Run.
	table  *table
	leases *Leases
	// waits are the leases of those who wait for an identifier.
	waits   *Leases
	ticked  time.Time
	clock   func() time.Time
	batch   []*operation
	failing bool
	// lost is set from when the store has lost everything until it has everything again.
	lost bool
	// dirty are the entries, by ID, of which the store has an older form that will do for a while.
	dirty     map[uint64]struct{}
	documents map[string][]byte
}

// operation is one thing that a caller wants done. Its caller waits for done unless his context ends.
type operation struct {
	ctx context.Context
	// apply does it to the table and says what changed. It may be called again on the same state after a rollback.
	apply   func(*table) []Change
	changes []Change
	err     error
	done    chan struct{}
}

// New makes an empty registry.
func New(cfg Config) *Registry {
	cfg.Timeout = cmp.Or(cfg.Timeout, time.Minute)
	cfg.Limits = cfg.Limits.withDefaults()
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Registry{
		cfg: cfg, queue: make(chan *operation), lazy: newLazy(), hints: newHints(), stopped: make(chan struct{}),
		table: newTable(1), leases: NewLeases(cfg.Timeout), waits: NewLeases(cfg.Timeout),
		dirty: map[uint64]struct{}{}, documents: map[string][]byte{}, clock: time.Now,
	}
}

// Load reads the store; call it once, before Run. Every entry gets a full lease. What is returned is what the registry
// has from then on, in the order of the IDs. The error wraps ErrStore.
func (r *Registry) Load(ctx context.Context) (Saved, error) {
	saved, err := r.cfg.Store.Load(ctx)
	if err != nil {
		return Saved{}, fmt.Errorf("%w: reading it: %w", ErrStore, err)
	}
	r.table = newTable(saved.NextID)
	r.table.restore(r.readable(ctx, saved.Entries))
	for k := range r.table.entries {
		r.leases.Renew(k)
	}
	maps.Copy(r.documents, saved.Documents)
	return Saved{Entries: r.table.all(), NextID: r.table.nextID, Documents: saved.Documents, Lost: saved.Lost}, nil
}

// readable are the entries that make sense; a file can be damaged in ways that its own checks do not see. The others
// come back with their next refresh.
func (r *Registry) readable(ctx context.Context, stored []*Entry) []*Entry {
	var entries []*Entry
	var bad []Key
	for _, e := range stored {
		whole, err := derive(*e)
		if err != nil {
			r.cfg.Log.WarnContext(ctx, "a stored registration is unreadable and dropped", "error", err)
			bad = append(bad, e.Key)
			continue
		}
		entries = append(entries, whole)
	}
	if len(bad) > 0 {
		if err := r.cfg.Store.Write(ctx, Batch{Delete: bad}); err != nil {
			r.cfg.Log.WarnContext(ctx, "unreadable registrations stay in the store", "error", err)
		}
	}
	return entries
}

// Register stores the target, or refreshes it. When it returns nil that is durable and watchers can see it. The error
// wraps ErrInvalid, ErrForeign, ErrTooMany, ErrStore or ErrStopped, or is that of the context: then it may have been done, but never after what the
// caller asks for next.
func (r *Registry) Register(ctx context.Context, t Target, c Caller) error {
	e, err := newEntry(t, c, r.cfg.Namespace, r.cfg.Limits)
	if err != nil {
		return err
	}
	apply, refusal := r.claiming(e.Key, c, func(t *table) []Change { return t.alone(e, c, t.register) })
	if err := r.do(ctx, apply); err != nil {
		return err
	}
	return refusal()
}

// Unregister removes the target; one that is not there is no error, nor is one that never could be. Errors otherwise are
// those of Register.
func (r *Registry) Unregister(ctx context.Context, t Target, c Caller) error {
	k, err := KeyOf(t, r.cfg.Namespace)
	if err != nil {
		r.cfg.Log.DebugContext(ctx, "unregister of a target that cannot be registered", "peer", c.Peer, "error", err)
		return nil
	}
	apply, refusal := r.owned(k, c, func(t *table) []Change { return t.unregister(k) })
	if err := r.do(ctx, apply); err != nil {
		return err
	}
	return refusal()
}

// do has Run apply an operation and waits for it.
func (r *Registry) do(ctx context.Context, apply func(*table) []Change) error {
	o := &operation{ctx: ctx, apply: apply, done: make(chan struct{})}
	select {
	case r.queue <- o: // nobody but Run receives, so an operation is with its caller until its turn
	case <-ctx.Done():
		return ctx.Err()
	case <-r.stopped:
		return ErrStopped
	}
	select {
	case <-o.done:
		return o.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// grace is how long Run may work on after its context ended, to finish what is queued.
const grace = 5 * time.Second

// Run applies operations and ends leases until ctx ends; then it serves what is queued, writes what is pending, and
// returns. The error is that of the last write, if it failed.
func (r *Registry) Run(ctx context.Context) error {
	defer close(r.stopped)
	work, stop := outlive(ctx, grace)
	defer stop()
	ticker := time.NewTicker(r.leases.tick)
	defer ticker.Stop()
	r.ticked = r.clock()
	var flush <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			r.serve(work)
			return r.flush(work)
		case o := <-r.queue:
			r.round(work, r.collect(o))
		case <-ticker.C:
			r.tick(work)
		case <-r.hints.wake:
			r.round(work, []*operation{r.own(work, r.hints.take())})
		case <-r.lazy.wake:
			if flush == nil {
				flush = time.After(lazyDelay)
			}
		case <-flush:
			flush = nil
			if r.flush(work) != nil {
				r.lazy.signal()
			}
		}
	}
}

// outlive is a context that ends the given time after its parent.
func outlive(parent context.Context, by time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(parent))
	context.AfterFunc(parent, func() {
		select {
		case <-time.After(by):
			cancel()
		case <-ctx.Done():
		}
	})
	return ctx, cancel
}

// own is an operation that no caller asked for.
func (r *Registry) own(ctx context.Context, apply func(*table) []Change) *operation {
	return &operation{ctx: ctx, apply: apply, done: make(chan struct{})}
}

// tick ends the leases that ran out. What is queued goes first: it may hold the refresh.
func (r *Registry) tick(ctx context.Context) {
	r.serve(ctx)
	now := r.clock()
	elapsed := now.Sub(r.ticked)
	r.ticked = now
	r.waits.Advance(elapsed)
	if len(r.table.waiters) > 0 {
		due := r.waits.Due()
		r.round(ctx, []*operation{r.own(ctx, func(t *table) []Change { return t.reconsider(due) })})
	}
	if !r.leases.Advance(elapsed) {
		return
	}
	if keys := r.leases.Due(); len(keys) > 0 {
		r.cfg.Log.InfoContext(ctx, "registrations were not refreshed in time", "count", len(keys), "first", keys[0].Addrs)
		r.round(ctx, []*operation{r.own(ctx, func(t *table) []Change { return t.expire(keys) })})
	}
}
