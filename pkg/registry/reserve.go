package registry

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"time"

	"github.com/nordix/meridio-nsp/pkg/stream"
)

// Reserve gives the target the lowest free identifier of its stream: it stores a Disabled entry with that identifier, which
// blocks it for others, or refreshes the entry that has one already. Status and identifier of the target do not matter. Where
// none is free it fails with ErrFull, or waits for one until ctx ends. A caller who gave up holds none, but if he comes back
// within a lease he is where he was in the line. Before the limits of the trench are known everybody waits.
//
// Other errors are those of Register, or wrap ErrWithdrawn.
func (r *Registry) Reserve(ctx context.Context, t Target, c Caller, wait bool) (uint32, error) {
	want, err := r.reservable(t, c)
	if err != nil {
		return 0, err
	}
	call := &reservation{ctx: ctx, wait: wait, answer: make(chan reply, 1)}
	apply, refusal := r.claiming(want.Key, c, func(t *table) []Change {
		return t.alone(want, c, func(e Entry) []Change { return t.reserve(e, call) })
	})
	err = r.do(ctx, apply)
	if err == nil {
		if err := refusal(); err != nil {
			return 0, err
		}
		select {
		case a := <-call.answer:
			if err = ctx.Err(); err == nil || a.err != nil {
				return a.identifier, a.err
			}
		case <-r.stopped:
			return 0, ErrStopped
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	r.abandon(ctx, want.Key, call)
	return 0, err
}

// reservable is the entry that is asked for, without an identifier.
func (r *Registry) reservable(t Target, c Caller) (Entry, error) {
	if t.Type != Default {
		return Entry{}, invalid(t, "only targets of type DEFAULT have identifiers")
	}
	t.Status, t.Context = Disabled, maps.Clone(t.Context)
	delete(t.Context, identifierKey)
	return newEntry(t, c, r.cfg.Namespace, r.cfg.Limits)
}

// abandon takes back what a caller who gave up may have got meanwhile. Where even that fails the lease will end it.
func (r *Registry) abandon(ctx context.Context, k Key, call *reservation) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := r.do(ctx, func(t *table) []Change { return t.abandon(k, call) }); err != nil {
		r.cfg.Log.DebugContext(ctx, "a reservation whose caller gave up stays until its lease ends", "addresses", k.Addrs, "error", err)
	}
}

// SetLimits says how many targets the streams of a trench may have; absent or 0 means 100. It does not block.
func (r *Registry) SetLimits(trench string, limits map[stream.Key]uint32) {
	r.hints.put(func(h *hints) { h.limits[trench] = limits })
}

// Prefer says which of those who wait for an identifier come before others, and which do not any more. It does not block.
func (r *Registry) Prefer(ready map[Key]bool) {
	r.hints.put(func(h *hints) { maps.Copy(h.ready, ready) })
}

// hints is a mailbox: what others know that decides who gets an identifier.
type hints struct {
	mu     sync.Mutex
	limits map[string]map[stream.Key]uint32
	ready  map[Key]bool
	wake   chan struct{}
}

func newHints() hints {
	return hints{limits: map[string]map[stream.Key]uint32{}, ready: map[Key]bool{}, wake: make(chan struct{}, 1)}
}

func (h *hints) put(add func(*hints)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	add(h)
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// take is what there is to do. Preferences come first: a new limit may free identifiers at once.
func (h *hints) take() func(*table) []Change {
	h.mu.Lock()
	defer h.mu.Unlock()
	limits, ready := h.limits, h.ready
	h.limits, h.ready = map[string]map[stream.Key]uint32{}, map[Key]bool{}
	return func(t *table) []Change {
		t.prefer(ready)
		maps.Copy(t.limits, limits)
		return t.reconsider(nil)
	}
}

// full says how many there are.
func full(k stream.Key, limit uint32) error {
	return fmt.Errorf("%w: all %d of stream %s are taken; raise its max-targets, or wait for one", ErrFull, limit, k)
}

// withIdentifier is a context that states the identifier.
func withIdentifier(context map[string]string, id uint32) map[string]string {
	c := make(map[string]string, len(context)+1)
	maps.Copy(c, context)
	c[identifierKey] = strconv.FormatUint(uint64(id), 10)
	return c
}
