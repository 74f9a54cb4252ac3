package server

import (
	"sync"
	"sync/atomic"
	"time"
)

// slow knows what receivers make others wait for. The zero value knows of none.
type slow struct {
	mu    sync.Mutex
	calls map[*callStream]struct{}
	// coalesced counts changes that receivers of topics never saw, because a later one came before they read.
	coalesced atomic.Uint64
}

// watch notes a watch until what it returns is called.
func (s *slow) watch(c *callStream) (leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls == nil {
		s.calls = make(map[*callStream]struct{})
	}
	s.calls[c] = struct{}{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.calls, c)
	}
}

// Lags are, by method, for how long the slowest receiver has not taken what it is being sent. gRPC keeps some 64 KiB for each
// of them, so one that merely pauses has none.
func (s *Server) Lags() map[string]time.Duration {
	now := time.Now().UnixNano()
	lags := make(map[string]time.Duration)
	s.slow.mu.Lock()
	defer s.slow.mu.Unlock()
	for c := range s.slow.calls {
		lag := time.Duration(0)
		if since := c.sending.Load(); since > 0 {
			lag = time.Duration(max(0, now-since))
		}
		lags[c.method] = max(lags[c.method], lag)
	}
	return lags
}

// Coalesced is how many changes receivers of topics never saw, because a later one of the same target came before they read.
func (s *Server) Coalesced() uint64 { return s.slow.coalesced.Load() }
