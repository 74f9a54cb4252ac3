package client

import (
	"context"
	"math/rand/v2"
	"time"
)

// Backoff spreads reconnects with full jitter: the n-th wait is uniform in [0, min(Max, Base*2^n)], so that receivers
// that lost the server at the same moment do not come back at the same moment.
type Backoff struct {
	// Default 500 ms.
	Base time.Duration
	// Default 5 s.
	Max time.Duration
}

// delay is the wait after so many failures in a row.
func (b Backoff) delay(failures int) time.Duration {
	limit := b.Base
	for range failures {
		if limit >= b.Max/2 {
			limit = b.Max
			break
		}
		limit *= 2
	}
	return jitter(limit)
}

// refused is the wait after a refusal. It can only help to ask again once somebody has changed a policy.
func (b Backoff) refused() time.Duration {
	return b.Max/2 + jitter(b.Max/2)
}

// jitter is uniform in [0, limit]. It spreads load and guards no secret.
func jitter(limit time.Duration) time.Duration {
	return rand.N(limit + 1)
}

// pause waits or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
