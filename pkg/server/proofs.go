package server

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/nordix/meridio-nsp/pkg/auth"
)

// proofs are the tokens of pods by which streams were opened that are open still. The zero value has none.
type proofs struct {
	mu   sync.Mutex
	open map[string]map[*proof]struct{} // by the UID of the pod
}

// proof is what one stream was opened by.
type proof struct {
	peer netip.Addr
	raw  string
	end  context.CancelCauseFunc
}

// hold has a stream end by end when its caller's pod does; what it returns is called when the stream has ended.
func (p *proofs) hold(ctx context.Context, c auth.Caller, end context.CancelCauseFunc) (done func()) {
	one := &proof{peer: c.Addr, raw: bearer(ctx), end: end}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open == nil {
		p.open = make(map[string]map[*proof]struct{})
	}
	if p.open[c.Pod.UID] == nil {
		p.open[c.Pod.UID] = make(map[*proof]struct{})
	}
	p.open[c.Pod.UID][one] = struct{}{}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if delete(p.open[c.Pod.UID], one); len(p.open[c.Pod.UID]) == 0 {
			delete(p.open, c.Pod.UID)
		}
	}
}

func (p *proofs) pods() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	uids := make([]string, 0, len(p.open))
	for uid := range p.open {
		uids = append(uids, uid)
	}
	return uids
}

func (p *proofs) of(uid string) []*proof {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]*proof, 0, len(p.open[uid]))
	for one := range p.open[uid] {
		all = append(all, one)
	}
	return all
}

// reviewEvery is how often is asked about pods that have left their slices: the API server may believe a token for 10 s after the
// end of its pod.
const reviewEvery = 5 * time.Second

// review ends, until ctx does, the streams of pods that have left their slices and are found to be no more. It asks about one after
// the other, so that a thousand that have left at once delay nobody who calls.
func (s *Server) review(ctx context.Context) {
	if s.cfg.Tokens == nil {
		return
	}
	left := s.cfg.Tokens.Left()
	tick := time.NewTicker(reviewEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-left:
		case <-tick.C:
		}
		for _, uid := range s.proofs.pods() {
			for _, one := range s.proofs.of(uid) {
				if err := s.cfg.Tokens.Ended(ctx, one.peer, uid, one.raw); err != nil {
					one.end(err)
				}
			}
		}
	}
}
