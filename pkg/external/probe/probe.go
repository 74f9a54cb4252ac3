// Package probe is the source of addresses that are written down, with or without health probes.
package probe

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/nordix/meridio-nsp/pkg/external"
)

// Config is what is written down.
type Config struct {
	Addresses []netip.Addr
	// Check tells whether an address takes traffic, nil where it does. A nil Check finds every address ready.
	Check Check
	// Interval is the time between the beginnings of two probes of an address, Timeout when one has failed.
	Interval, Timeout time.Duration
	// UpAfter and DownAfter are how many probes in a row must succeed or fail until that is believed.
	UpAfter, DownAfter int
}

// Check probes one address. It ends with ctx.
type Check func(ctx context.Context, addr netip.Addr) error

// New makes the source.
func New(cfg Config) external.Source {
	cfg.UpAfter, cfg.DownAfter = max(cfg.UpAfter, 1), max(cfg.DownAfter, 1)
	return &source{cfg: cfg}
}

type source struct{ cfg Config }

// verdict is what the probe of the address with that index came to.
type verdict struct {
	index int
	ready bool
}

// Run implements external.Source. The first report waits for one verdict on each address, as a controller that starts must not
// declare dead what it has not tried yet.
func (s *source) Run(ctx context.Context, report func(external.Report)) {
	endpoints := make([]external.Endpoint, len(s.cfg.Addresses))
	for i, a := range s.cfg.Addresses {
		endpoints[i] = external.Endpoint{Addr: a, Ready: true, Serving: true}
	}
	if s.cfg.Check == nil {
		report(external.Report{Endpoints: endpoints})
		<-ctx.Done()
		return
	}
	verdicts := make(chan verdict)
	var probing sync.WaitGroup
	defer probing.Wait()
	for i := range endpoints {
		probing.Go(func() { s.probe(ctx, i, verdicts) })
	}
	known := make(map[int]bool)
	for {
		select {
		case <-ctx.Done():
			return
		case v := <-verdicts:
			endpoints[v.index].Ready, endpoints[v.index].Serving = v.ready, v.ready
			known[v.index] = true
			if len(known) == len(endpoints) {
				report(external.Report{Endpoints: slices.Clone(endpoints)})
			}
		}
	}
}

// probe probes one address for good and sends a verdict after the first probe and whenever it changes.
func (s *source) probe(ctx context.Context, index int, verdicts chan<- verdict) {
	ticker := time.NewTicker(s.cfg.Interval)
	defer ticker.Stop()
	say := func(ready bool) {
		select {
		case verdicts <- verdict{index, ready}:
		case <-ctx.Done():
		}
	}
	t := tally{upAfter: s.cfg.UpAfter, downAfter: s.cfg.DownAfter}
	for first := true; ctx.Err() == nil; first = false {
		err := s.check(ctx, index)
		if ctx.Err() != nil {
			return // the end of the process is no sign of ill health
		}
		if t.count(err == nil) || first {
			say(t.ready)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
}

func (s *source) check(ctx context.Context, index int) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	return s.cfg.Check(ctx, s.cfg.Addresses[index])
}

// tally counts probes in a row. It begins not ready.
type tally struct {
	upAfter, downAfter int
	ready              bool
	// against counts the results in a row that speak against what is believed.
	against int
}

// count takes a result and returns whether it changed what is believed.
func (t *tally) count(ok bool) bool {
	if ok == t.ready {
		t.against = 0
		return false
	}
	t.against++
	need := t.upAfter
	if t.ready {
		need = t.downAfter
	}
	if t.against < need {
		return false
	}
	t.ready, t.against = ok, 0
	return true
}
