package auth

import (
	"log/slog"
	"time"

	"github.com/spiffe/go-spiffe/v2/workloadapi"
)

// NewStatic is a SPIFFE without a workload API, for tests in which nothing may come from outside.
func NewStatic(says *workloadapi.X509Context) *SPIFFE {
	s := &SPIFFE{cfg: SPIFFEConfig{Log: slog.New(slog.DiscardHandler)}, first: make(chan struct{})}
	s.OnX509ContextUpdate(says)
	return s
}

// SetClock replaces time.Now.
func (s *Sessions) SetClock(now func() time.Time) { s.clock = now }
