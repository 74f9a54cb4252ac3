package tapa

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nordix/meridio-nsp/pkg/stream"
)

// Errors that an application can get.
var (
	// ErrOtherTrench is wrapped where a stream of another trench is wanted already.
	ErrOtherTrench = errors.New("another trench is in use")
	// ErrDraining is wrapped once the sidecar is about to end.
	ErrDraining = errors.New("the sidecar is shutting down")
	// ErrNotStored is wrapped where who wants a stream could not be made durable; nothing has changed then.
	ErrNotStored = errors.New("who wants the stream was not stored")
)

// Config is what a Reconciler needs.
type Config struct {
	Connector Connector
	Store     Store
	// Saved is what the store had at the start.
	Saved State
	// OperationTimeout bounds one attempt. Default 20 s: a TAPA of Meridio takes up to 15 s to let a stream go.
	OperationTimeout time.Duration
	// Backoff is the wait between attempts, and between sessions of the connector's watch.
	Backoff Backoff
	// Sweep is how often is looked for what was missed: state that was not stored, streams that came back. Default 5 s.
	Sweep time.Duration
	// Observer is optional.
	Observer Observer
	// Log defaults to slog.Default().
	Log *slog.Logger
}

// Observer counts. Its methods must not block, nor call the Reconciler.
type Observer interface {
	// Operated is told of each attempt; operation is "open" or "close".
	Operated(operation string, took time.Duration, err error)
	// Session is told when a watch of the connector has brought its first list.
	Session()
	// NotStored is told when the state could not be written.
	NotStored()
}

// Reconciler has the connector open and close what is wanted and what is not.
type Reconciler struct {
	cfg Config
	log *slog.Logger
	// view is the latest one; readers do not wait for a writer that waits for the disk.
	view atomic.Pointer[View]

	workers sync.WaitGroup

	mu    sync.Mutex
	lines map[stream.Key]*line
	// trench is the one in use; empty where none is.
	trench string
	// session numbers the lists of streams that the connector's watch brought first, 0 while there is none.
	session, sessions uint64
	// closes counts those that succeeded.
	closes uint64
	// ctx is that of Run; operations end with it.
	ctx       context.Context
	connError error
	// lost is set until the first list has said what the store does not know.
	lost     bool
	unsaved  bool
	draining bool
}

// line is one stream.
type line struct {
	key    stream.Key
	owners Owners
	// held is set from before the first open until the stream is known to be closed.
	held bool
	// tried is set by the first open: where the stream comes back, it is ours to close. It is, until maxTried were closed later.
	tried bool
	// closed numbers the closes, 0 where there was none.
	closed uint64
	// asked is the session in which an open succeeded; 0 where none did.
	asked uint64
	// listed tells whether the last list had it, with this status.
	listed bool
	status Status

	// working tells that a worker is at it, doing what it does or waits to do again.
	working  bool
	doing    operation
	wake     chan struct{}
	failures int
	err      error
}

// New makes a Reconciler of what was stored.
func New(cfg Config) *Reconciler {
	cfg.OperationTimeout = cmp.Or(cfg.OperationTimeout, 20*time.Second)
	cfg.Backoff.Base = cmp.Or(cfg.Backoff.Base, 200*time.Millisecond)
	cfg.Backoff.Max = cmp.Or(cfg.Backoff.Max, 5*time.Second)
	cfg.Sweep = cmp.Or(cfg.Sweep, 5*time.Second)
	cfg.Log = cmp.Or(cfg.Log, slog.Default())
	r := &Reconciler{cfg: cfg, log: cfg.Log, lines: make(map[stream.Key]*line), lost: cfg.Saved.Lost}
	for _, k := range cfg.Saved.Application {
		r.line(k).owners |= Application
	}
	for _, k := range cfg.Saved.Pool {
		r.line(k).owners |= Pool
	}
	for _, k := range cfg.Saved.Held {
		l := r.line(k)
		l.held, l.tried = true, true
	}
	r.choose()
	r.view.Store(&View{changed: make(chan struct{})})
	r.publish()
	return r
}

func (r *Reconciler) line(k stream.Key) *line {
	l := r.lines[k]
	if l == nil {
		l = &line{key: k, wake: make(chan struct{}, 1)}
		r.lines[k] = l
	}
	return l
}

// Open has the application want a stream. It returns when that is stored; the stream opens meanwhile.
func (r *Reconciler) Open(k stream.Key) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.draining {
		return fmt.Errorf("opening %s: %w", k, ErrDraining)
	}
	if r.trench != "" && r.trench != k.Trench && r.trenchWanted() {
		return fmt.Errorf("opening %s: %w: %s", k, ErrOtherTrench, r.trench)
	}
	return r.own(k, func(o Owners) Owners { return o | Application })
}

// Close has the application no longer want a stream, which is no error where it did not.
func (r *Reconciler) Close(k stream.Key) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.lines[k]; r.lost || l != nil && l.listed {
		r.line(k).held = true // It may be open without our doing. Anybody's Close closes it.
	}
	if r.lines[k] == nil {
		return nil
	}
	return r.own(k, func(o Owners) Owners { return o &^ Application })
}

// own changes the owners of one stream if that can be stored.
func (r *Reconciler) own(k stream.Key, change func(Owners) Owners) error {
	l := r.line(k)
	before := l.owners
	l.owners = change(before)
	if l.owners == before {
		r.settle()
		return nil
	}
	if err := r.save(); err != nil {
		l.owners = before
		r.settle()
		return fmt.Errorf("%w: %s: %w", ErrNotStored, k, err)
	}
	r.log.Info("owners changed", "stream", k.String(), "owners", l.owners.Names(), "by", "application")
	r.settle()
	return nil
}

// SetPool says which streams the pools want, all of them each time.
func (r *Reconciler) SetPool(keys []stream.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.draining {
		r.setPool(keys)
	}
}

func (r *Reconciler) setPool(keys []stream.Key) {
	wanted := make(map[stream.Key]bool, len(keys))
	for _, k := range keys {
		wanted[k] = true
		r.line(k)
	}
	for k, l := range r.lines {
		before := l.owners
		if wanted[k] {
			l.owners |= Pool
		} else {
			l.owners &^= Pool
		}
		if l.owners != before {
			r.log.Info("owners changed", "stream", k.String(), "owners", l.owners.Names(), "by", "pool")
		}
	}
	_ = r.save() // The pools say it again after a restart.
	r.settle()
}

// Drain has the pools want nothing any more, whatever is said later, and waits until their streams are closed, or ctx ends, or
// there is no connector to close them. What the application wants stays open.
func (r *Reconciler) Drain(ctx context.Context) error {
	r.mu.Lock()
	r.draining = true
	r.setPool(nil)
	r.mu.Unlock()
	for {
		v, changed := r.View()
		left := v.unowned()
		if len(left) == 0 {
			return nil
		}
		if !v.Connected {
			return fmt.Errorf("closing %v: the connector is away", left)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("closing %v: %w", left, context.Cause(ctx))
		}
	}
}

// Run opens and closes until ctx ends, and leaves everything as it is then.
func (r *Reconciler) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer r.workers.Wait()
	defer r.stop(cancel)
	r.mu.Lock()
	r.ctx = ctx
	r.mu.Unlock()
	r.workers.Go(func() { r.sweep(ctx) })
	for failures := 1; ctx.Err() == nil; failures++ {
		err := r.cfg.Connector.Watch(ctx, r.listed)
		if r.ended(err) {
			failures = 1
		}
		Pause(ctx, r.cfg.Backoff.Delay(failures), nil)
	}
	return nil
}

// stop lets no worker begin any more.
func (r *Reconciler) stop(cancel context.CancelFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	cancel()
}

// listed takes in what the connector's watch tells.
func (r *Reconciler) listed(list map[stream.Key]Status) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.session == 0 {
		r.begin()
	}
	for k := range list {
		r.line(k)
	}
	for k, l := range r.lines {
		status, is := list[k]
		appeared, gone := is && !l.listed, l.listed && !is
		l.listed, l.status = is, status
		switch {
		case gone:
			l.asked = 0 // Somebody else closed it, or we did.
		case appeared && r.lost && !l.held:
			r.adopt(l)
		case appeared:
			r.reclaim(l)
		}
	}
	r.lost = false
	r.settle()
}

func (r *Reconciler) begin() {
	r.sessions++
	r.session, r.connError = r.sessions, nil
	r.log.Info("the connector is there", "session", r.session)
	if r.cfg.Observer != nil {
		r.cfg.Observer.Session()
	}
	for _, l := range r.lines {
		l.listed = false
		l.rouse()
	}
}

// adopt takes a stream that was open before anything was stored for the application's: closing what it opened would be worse
// than keeping what it did not.
func (r *Reconciler) adopt(l *line) {
	l.owners |= Application
	l.held, l.tried = true, true
	r.log.Warn("a stream is open, and nothing is stored about who wants it: it is kept for the application until that closes it",
		"stream", l.key.String())
	_ = r.save()
}

// reclaim closes a stream that nobody wants, although it was closed: an operation that was given up had its effect later.
func (r *Reconciler) reclaim(l *line) {
	if l.listed && l.tried && l.owners == 0 && !l.held && !l.working {
		l.held = true
		r.log.Info("a stream came back that nobody wants", "stream", l.key.String())
	}
}

// ended takes in that the connector's watch is over, and tells whether it had brought anything.
func (r *Reconciler) ended(err error) (was bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	was = r.session != 0
	if was || err != nil && (r.connError == nil || err.Error() != r.connError.Error()) {
		if r.ctx.Err() == nil {
			r.log.Warn("the connector is away", "error", err)
		}
	}
	r.session, r.connError = 0, err
	for _, l := range r.lines {
		l.listed = false
	}
	r.publish()
	return was
}

// sweep repeats what could not be done or was missed.
func (r *Reconciler) sweep(ctx context.Context) {
	tick := time.NewTicker(r.cfg.Sweep)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		r.mu.Lock()
		if r.unsaved {
			_ = r.save()
		}
		for _, l := range r.lines {
			r.reclaim(l)
		}
		r.settle()
		r.mu.Unlock()
	}
}
