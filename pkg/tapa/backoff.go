package tapa

import (
	"context"
	"math/rand/v2"
	"time"
)

// Backoff spreads attempts with full jitter: the n-th wait is uniform in [0, min(Max, Base*2^n)].
type Backoff struct {
	// Base defaults to 200 ms, Max to 5 s.
	Base, Max time.Duration
}

// Delay is the wait after so many failures in a row, at least 1.
func (b Backoff) Delay(failures int) time.Duration {
	limit := b.Base
	for range failures - 1 {
		if limit >= b.Max/2 {
			limit = b.Max
			break
		}
		limit *= 2
	}
	return rand.N(min(limit, b.Max) + 1)
}

// Pause waits, until it is woken, or until ctx ends.
func Pause(ctx context.Context, d time.Duration, wake <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-wake:
	case <-timer.C:
	}
}
