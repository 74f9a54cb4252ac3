package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nordix/meridio-nsp/pkg/registry"
)

const (
	// gather is how long changes may wait for others to be stored with them; whoever waits for the store does not wait for that.
	gather = 100 * time.Millisecond
	// grace bounds the last write.
	grace = 5 * time.Second
)

// store writes what changes until ctx ends, and then what is left. Watchers never wait for it.
func (r *Relay) store(ctx context.Context) error {
	failing := false
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
			defer cancel()
			return r.save(last)
		case <-r.unsaved:
		}
		r.mu.Lock()
		wait := gather
		if len(r.flushers) > 0 || r.mirror.documents[LimitsDocument] != nil {
			wait = 0 // what is stored may let in who must not come in any more
		}
		r.mu.Unlock()
		if failing {
			wait = time.Second
		}
		sleep(ctx, wait)
		err := r.save(context.WithoutCancel(ctx))
		switch {
		case err != nil:
			if !failing {
				r.cfg.Log.ErrorContext(ctx, "the mirror cannot be stored", "error", err)
			}
			signal(r.unsaved)
		case failing:
			r.cfg.Log.InfoContext(ctx, "the mirror can be stored again")
		}
		failing = err != nil
	}
}

// save writes what is unsaved as one transaction. A store that lost everything is given everything.
func (r *Relay) save(ctx context.Context) error {
	r.mu.Lock()
	batch, err := r.mirror.unsaved()
	flushers := r.flushers
	r.flushers = nil
	r.mu.Unlock()
	if err == nil && !batch.Empty() {
		err = r.cfg.Store.Write(ctx, batch)
	}
	if err != nil {
		err = fmt.Errorf("%w: writing the mirror: %w", registry.ErrStore, err)
		r.mu.Lock()
		r.mirror.unstored(batch)
		if errors.Is(err, registry.ErrLost) {
			r.mirror.lost()
		}
		r.mu.Unlock()
	}
	for _, f := range flushers {
		f <- err
	}
	return err
}

func sleep(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
