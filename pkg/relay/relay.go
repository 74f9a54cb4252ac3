package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/feed"
	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/sources"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// Config is what a relay needs.
type Config struct {
	// Address of the namespace process, as a gRPC target; host:port means dns:///host:port.
	Address string
	// Credentials of the transport. Required: plaintext is asked for with insecure.NewCredentials().
	Credentials credentials.TransportCredentials
	// PerRPC goes with every call, as a token does; nil is none. Where it is client.Expiring, the connection is made anew before
	// it expires.
	PerRPC credentials.PerRPCCredentials
	// DialOptions come after the relay's own and win over them.
	DialOptions []grpc.DialOption
	// Namespace is that of every stream here, Trench the trench of this process.
	Namespace, Trench string
	// Store keeps the mirror.
	Store registry.Store
	// Timeout is how long a registration lives without a refresh while the namespace process is away; 0 means 60 s.
	Timeout time.Duration
	// HeartbeatTimeout is how long the namespace process may be silent; 0 means 15 s, three heartbeats.
	HeartbeatTimeout time.Duration
	// CallTimeout bounds one call to the namespace process; after it that is taken to be away for this call. 0 means 3 s.
	CallTimeout time.Duration
	// Limits is told from where streams may be used, once that is known and whenever it changes, in order. It must not block.
	Limits func(map[stream.Key]*sources.Set)
	// RetryMax bounds the pause between two attempts to connect, which grows from a twentieth of it; 0 means 5 s.
	RetryMax time.Duration
	Log      *slog.Logger
}

func (c Config) withDefaults() Config {
	c.Timeout = cmp.Or(c.Timeout, time.Minute)
	c.HeartbeatTimeout = cmp.Or(c.HeartbeatTimeout, 15*time.Second)
	c.CallTimeout = cmp.Or(c.CallTimeout, 3*time.Second)
	if c.Limits == nil {
		c.Limits = func(map[stream.Key]*sources.Set) {}
	}
	c.RetryMax = cmp.Or(c.RetryMax, 5*time.Second)
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	return c
}

// errAway is wrapped where the namespace process could not be reached, or not be heard.
var errAway = errors.New("the namespace process is away")

// Relay is made by New, filled by Load and driven by Run. It answers as a registry and as its watches do.
type Relay struct {
	cfg Config

	mu     sync.Mutex
	mirror *mirror
	// line is the connection while it is live, nil while the namespace process is away.
	line *line
	// joining is set while the namespace process is told what happened without it and the mirror is brought up to date: nothing
	// more happens without it then, calls wait. It ends where the namespace process has nothing to answer yet.
	joining bool
	// moved is closed, and made anew, when the mirror or the line changed.
	moved chan struct{}
	// flushers wait for what is unsaved now to be stored.
	flushers []chan error
	tally    tally
	// unsaved wakes whoever stores, owed whoever tells the namespace process.
	unsaved, owed chan struct{}
}

// New makes a relay that knows nothing yet.
func New(cfg Config) *Relay {
	cfg = cfg.withDefaults()
	return &Relay{
		cfg: cfg, mirror: newMirror(cfg.Trench, cfg.Timeout), moved: make(chan struct{}),
		tally: newTally(time.Now()), unsaved: make(chan struct{}, 1), owed: make(chan struct{}, 1),
	}
}

// Load reads the store and returns what it has; call it once, before Run. Every registration that came through this process
// gets a full lease.
func (r *Relay) Load(ctx context.Context) (registry.Saved, error) {
	saved, err := r.cfg.Store.Load(ctx)
	if err != nil {
		return registry.Saved{}, fmt.Errorf("%w: loading the mirror: %w", registry.ErrStore, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.mirror.load(saved, r.cfg.Namespace); err != nil {
		r.cfg.Log.WarnContext(ctx, "a part of the stored mirror is unreadable", "error", err)
	}
	if r.mirror.limits != nil {
		r.cfg.Limits(r.mirror.limits)
	}
	signal(r.unsaved)
	return saved, nil
}

// SaveDocument keeps data under a name for the next Load; nil removes it. It never blocks; it is written soon.
func (r *Relay) SaveDocument(name string, data []byte) {
	r.update(func(m *mirror) { m.documents[name] = data })
}

// Run connects, follows and stores until ctx ends.
func (r *Relay) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { r.connect(ctx); return nil })
	group.Go(func() error { r.endLeases(ctx); return nil })
	group.Go(func() error { return r.store(ctx) })
	return group.Wait()
}

// Live tells whether the namespace process is there and the mirror up to date.
func (r *Relay) Live() bool { return r.liveLine() != nil }

func (r *Relay) liveLine() *line {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.line
}

// update changes the state and wakes whoever waits for it.
func (r *Relay) update(f func(*mirror)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(r.mirror)
	r.stir()
}

// stir is called with the lock held.
func (r *Relay) stir() {
	close(r.moved)
	r.moved = make(chan struct{})
	if r.mirror.unsavedAny() {
		signal(r.unsaved)
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// List watches the registrations that a filter selects; see server.Targets. While the namespace process is away, what was
// acknowledged here is what counts.
func (r *Relay) List(ctx context.Context, f engine.Filter) (*feed.Watcher[engine.Filter, *engine.List], error) {
	if l := r.liveLine(); l != nil {
		r.catchUp(ctx, l)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mirror.lists.Watch(r.mirror.rev, f), nil
}

// catchUp waits until the mirror shows what was acknowledged anywhere before.
func (r *Relay) catchUp(ctx context.Context, l *line) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.CallTimeout)
	defer cancel()
	at, err := l.position(ctx)
	if err == nil {
		err = r.reach(ctx, l, at)
	}
	if err != nil {
		r.cfg.Log.DebugContext(ctx, "answering a watch from the mirror as it is", "error", err)
	}
}

// reach waits until the mirror is at a position that the line's process named.
func (r *Relay) reach(ctx context.Context, l *line, at position) error {
	for {
		r.mu.Lock()
		there, lost, moved := r.mirror.at.covers(at), r.line != l, r.moved
		r.mu.Unlock()
		switch {
		case there:
			return nil
		case lost:
			return errAway
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return fmt.Errorf("waiting for the mirror: %w", ctx.Err())
		}
	}
}

// Register stores the target with the namespace process, or refreshes it; see server.Registry. While that is away, a refresh that
// changes nothing is answered here, and others wait for it. The error is a gRPC status, or wraps registry.ErrInvalid,
// registry.ErrForeign, or is an auth.Refusal.
func (r *Relay) Register(ctx context.Context, t registry.Target, c registry.Caller) error {
	want, err := r.entry(t, c)
	if err != nil {
		return err
	}
	return r.do(ctx,
		func(ctx context.Context, l *line) (position, error) { return l.register(ctx, t, c) },
		func() (bool, error) { return r.refresh(want), nil },
		func(m *mirror) { m.registered(want.Key, c) })
}

// Unregister removes the target at the namespace process; see server.Registry. While that is away it is removed here, and there
// later, unless it is alive again by then. Errors are those of Register.
func (r *Relay) Unregister(ctx context.Context, t registry.Target, c registry.Caller) error {
	want, err := r.entry(t, c)
	if errors.Is(err, registry.ErrInvalid) {
		return nil // what cannot be registered is not there
	}
	if err != nil {
		return err
	}
	return r.do(ctx,
		func(ctx context.Context, l *line) (position, error) { return l.unregister(ctx, t, c, nil) },
		func() (bool, error) { return r.withdraw(ctx, want.Key, c) },
		func(*mirror) {})
}

// entry checks what can be said of a target without the namespace process.
func (r *Relay) entry(t registry.Target, c registry.Caller) (registry.Entry, error) {
	if t.Stream.Trench != "" && t.Stream.Trench != r.cfg.Trench {
		return registry.Entry{}, auth.Deny(auth.OtherTrench, "this is the NSP of trench %q, not of %q", r.cfg.Trench, t.Stream.Trench)
	}
	t.Scope = r.cfg.Trench
	return registry.EntryOf(t, c, r.cfg.Namespace)
}

// do makes a call to the namespace process, or does without it where that is possible, or waits for it.
func (r *Relay) do(
	ctx context.Context, call func(context.Context, *line) (position, error), without func() (bool, error), done func(*mirror),
) error {
	ctx, cancel := beforeDeadline(ctx)
	defer cancel()
	for {
		err := r.forward(ctx, call)
		if err == nil {
			r.update(done)
			return nil
		}
		if !errors.Is(err, errAway) {
			return err
		}
		if ok, failure := without(); ok || failure != nil {
			return failure
		}
		if ctx.Err() == nil {
			r.awaitLine(ctx)
		}
		switch {
		case errors.Is(ctx.Err(), context.Canceled):
			return ctx.Err()
		case ctx.Err() != nil:
			return status.Errorf(codes.Unavailable, "%v; until it is back only refreshes that change nothing are answered", err)
		}
	}
}

// forward makes a call to the namespace process and waits until the mirror shows what it did.
func (r *Relay) forward(ctx context.Context, call func(context.Context, *line) (position, error)) error {
	l := r.liveLine()
	if l == nil {
		return errAway
	}
	short, cancel := context.WithTimeout(ctx, r.cfg.CallTimeout)
	defer cancel()
	at, err := call(short, l)
	if err == nil {
		err = r.reach(short, l, at)
	}
	switch {
	case err == nil || errors.Is(err, errAway):
		return err
	case errors.Is(ctx.Err(), context.Canceled):
		return ctx.Err()
	case isAway(err) || errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: %w", errAway, err)
	}
	return err
}

// refresh answers a Register that changes nothing.
func (r *Relay) refresh(want registry.Entry) (done bool) {
	r.update(func(m *mirror) {
		if done = !r.joining && m.refresh(want); done {
			r.tally.refreshed++
		}
	})
	if done {
		signal(r.owed)
	}
	return done
}

// withdraw returns when a restart of this process would not bring the registration back. What another pod has proven to be its own
// stays.
func (r *Relay) withdraw(ctx context.Context, k registry.Key, c registry.Caller) (bool, error) {
	stored := make(chan error, 1)
	known, joining, foreign := false, false, false
	r.update(func(m *mirror) {
		joining, foreign = r.joining, m.foreign(k, c)
		if joining || foreign {
			return
		}
		if known = m.withdraw(k) > 0; known {
			r.tally.withdrawn++
			r.flushers = append(r.flushers, stored)
			signal(r.unsaved)
		}
	})
	switch {
	case joining:
		return false, nil
	case foreign:
		return true, fmt.Errorf("%w: %s of stream %s", registry.ErrForeign, k.Addrs, k.Stream)
	case !known:
		return true, nil
	}
	signal(r.owed)
	select {
	case err := <-stored:
		return true, err
	case <-ctx.Done():
		return true, ctx.Err()
	}
}

// awaitLine waits until it makes sense to try again.
func (r *Relay) awaitLine(ctx context.Context) {
	const again = 250 * time.Millisecond
	r.mu.Lock()
	live, joining, moved := r.line != nil, r.joining, r.moved
	r.tally.waiting++
	r.mu.Unlock()
	defer r.waited()
	var soon <-chan time.Time
	if live { // and yet the call failed
		soon = time.After(again)
	}
	for {
		select {
		case <-moved:
		case <-soon:
			return
		case <-ctx.Done():
			return
		}
		r.mu.Lock()
		now, still := r.line != nil, r.joining
		moved = r.moved
		r.mu.Unlock()
		if now != live || joining && !still {
			return
		}
	}
}

func (r *Relay) waited() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tally.waiting--
}

// beforeDeadline ends a little before the caller gives up, so that he hears the reason. A caller without deadline gets the
// 15 s that a TAPA of Meridio 1.x has.
func beforeDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	const most, margin = 15 * time.Second, 250 * time.Millisecond
	wait := most
	if deadline, ok := ctx.Deadline(); ok {
		left := time.Until(deadline)
		wait = left - min(left/10, margin)
	}
	return context.WithTimeout(ctx, wait)
}

// endLeases removes what nobody refreshes while the namespace process is away.
func (r *Relay) endLeases(ctx context.Context) {
	ticker := time.NewTicker(r.mirror.leases.Tick())
	defer ticker.Stop()
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now := time.Now()
		r.tick(ctx, now.Sub(last))
		last = now
	}
}

func (r *Relay) tick(ctx context.Context, elapsed time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	due := r.mirror.tick(elapsed)
	switch {
	case len(due) == 0 || r.joining:
	case r.line != nil:
		r.mirror.lapse(due)
	default:
		r.mirror.withdraw(due...)
		r.cfg.Log.InfoContext(ctx, "registrations were not refreshed in time", "count", len(due), "first", due[0].Addrs)
		r.stir()
	}
}
