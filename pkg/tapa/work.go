package tapa

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/nordix/meridio-nsp/pkg/stream"
)

// operation is what is to be done about a stream.
type operation string

const (
	nothing operation = ""
	opening operation = "open"
	closing operation = "close"
)

// due is what is to be done about a stream now.
func (r *Reconciler) due(l *line) operation {
	wanted := l.owners != 0 && l.key.Trench == r.trench
	switch {
	case r.session == 0:
		return nothing
	case wanted && l.asked != r.session:
		return opening
	case !wanted && l.held:
		return closing
	}
	return nothing
}

// settle draws the conclusions from any change: which trench is in use, what is to be done, what is to be seen. The lock is held.
func (r *Reconciler) settle() {
	r.choose()
	r.forget()
	for _, l := range r.lines {
		switch due := r.due(l); {
		case due == nothing:
		case l.working && due != l.doing:
			l.rouse()
		case l.working:
		case r.ctx != nil && r.ctx.Err() == nil:
			l.working = true
			r.workers.Go(func() { r.work(r.ctx, l) })
		}
	}
	r.publish()
}

// maxTried bounds the streams that are remembered only because they were open once.
const maxTried = 100

// forget drops the streams that nothing is to be done about or known of, and of those that were open once the first closed ones.
func (r *Reconciler) forget() {
	var tried []*line
	for k, l := range r.lines {
		switch {
		case l.owners != 0 || l.held || l.listed || l.working:
		case l.tried:
			tried = append(tried, l)
		default:
			delete(r.lines, k)
		}
	}
	if len(tried) <= maxTried {
		return
	}
	slices.SortFunc(tried, func(a, b *line) int { return cmp.Compare(a.closed, b.closed) })
	for _, l := range tried[:len(tried)-maxTried] {
		delete(r.lines, l.key)
	}
}

// rouse ends the wait between two attempts.
func (l *line) rouse() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// choose keeps the trench in use while anything of it is wanted, and else picks one: one that is held, then one that the
// application wants, then the first.
func (r *Reconciler) choose() {
	if r.trench != "" && r.trenchWanted() {
		return
	}
	r.trench = ""
	best := 0
	for _, k := range slices.SortedFunc(maps.Keys(r.lines), stream.Compare) {
		if rank := r.lines[k].rank(); rank > best {
			best, r.trench = rank, k.Trench
		}
	}
}

// rank is how much a stream has to say about the trench.
func (l *line) rank() int {
	switch {
	case l.held:
		return 3
	case l.owners.Has(Application):
		return 2
	case l.owners != 0:
		return 1
	}
	return 0
}

func (r *Reconciler) trenchWanted() bool {
	for k, l := range r.lines {
		if k.Trench == r.trench && l.owners != 0 {
			return true
		}
	}
	return false
}

// work does what is due about one stream until nothing is. It looks anew before each attempt, so that the latest wish counts.
func (r *Reconciler) work(ctx context.Context, l *line) {
	for {
		op, session, ok := r.next(ctx, l)
		if !ok {
			return
		}
		began := time.Now()
		err := r.attempt(ctx, op, l.key)
		if r.cfg.Observer != nil {
			r.cfg.Observer.Operated(string(op), time.Since(began), err)
		}
		if wait := r.done(ctx, l, op, session, err); wait > 0 {
			Pause(ctx, wait, l.wake)
		}
	}
}

// next tells what to do now; without anything, the worker ends.
func (r *Reconciler) next(ctx context.Context, l *line) (op operation, session uint64, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	op = r.due(l)
	if op == nothing || ctx.Err() != nil {
		l.working, l.doing, l.failures, l.err = false, nothing, 0, nil
		r.settle()
		return nothing, 0, false
	}
	if op != l.doing {
		l.doing, l.failures = op, 0
	}
	select {
	case <-l.wake: // What it said is taken in.
	default:
	}
	if op == opening {
		l.tried = true
		if !l.held {
			l.held = true
			_ = r.save() // Before the stream can be open, so that it is closed even after a crash.
		}
	}
	return op, r.session, true
}

func (r *Reconciler) attempt(ctx context.Context, op operation, k stream.Key) error {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.OperationTimeout)
	defer cancel()
	if op == opening {
		return r.cfg.Connector.Open(ctx, k)
	}
	return r.cfg.Connector.Close(ctx, k)
}

// done takes in how an attempt ended, and tells how long to wait before the next.
func (r *Reconciler) done(ctx context.Context, l *line, op operation, session uint64, err error) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	l.err = err
	if err != nil {
		l.failures++
		if ctx.Err() == nil && l.failures == 1 {
			r.log.Warn("operation failed, it is tried again", "operation", string(op), "stream", l.key.String(), "error", err)
		}
		r.publish()
		return r.cfg.Backoff.Delay(l.failures)
	}
	l.failures = 0
	if op == opening {
		l.asked = session // Where the session has changed meanwhile, this does not count.
	} else {
		r.closes++
		l.held, l.asked, l.closed = false, 0, r.closes
		_ = r.save()
	}
	r.log.Info("operation succeeded", "operation", string(op), "stream", l.key.String())
	r.settle()
	return 0
}

// save makes the state durable. What cannot be stored now is tried again by the sweep.
func (r *Reconciler) save() error {
	s := State{Application: []stream.Key{}, Pool: []stream.Key{}, Held: []stream.Key{}}
	for _, k := range slices.SortedFunc(maps.Keys(r.lines), stream.Compare) {
		l := r.lines[k]
		if l.owners.Has(Application) {
			s.Application = append(s.Application, k)
		}
		if l.owners.Has(Pool) {
			s.Pool = append(s.Pool, k)
		}
		if l.held {
			s.Held = append(s.Held, k)
		}
	}
	err := r.cfg.Store.Save(s)
	if err != nil {
		if !r.unsaved {
			r.log.Error("the state was not stored, it is tried again", "error", err)
		}
		if r.cfg.Observer != nil {
			r.cfg.Observer.NotStored()
		}
	}
	r.unsaved = err != nil
	return err
}
