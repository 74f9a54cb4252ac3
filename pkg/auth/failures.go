package auth

import (
	"net/netip"
	"sync"

	"golang.org/x/time/rate"
)

// FailureLimits are how many failed authentications a second are looked at; what comes above is refused unseen. Callers who are
// known already do not notice.
type FailureLimits struct {
	// PerPeer and Total are a second's; 0 is no limit.
	PerPeer, Total float64
}

// maxPeers bounds the peers that are remembered; beyond, some are forgiven.
const maxPeers = 10_000

// failures counts failed authentications.
type failures struct {
	limits FailureLimits

	mu    sync.Mutex
	total *rate.Limiter
	peers map[netip.Addr]*rate.Limiter
}

func newFailures(l FailureLimits) *failures {
	return &failures{limits: l, total: limiter(l.Total), peers: make(map[netip.Addr]*rate.Limiter)}
}

// limiter allows two seconds' worth at once.
func limiter(perSecond float64) *rate.Limiter {
	if perSecond <= 0 {
		return rate.NewLimiter(rate.Inf, 0)
	}
	return rate.NewLimiter(rate.Limit(perSecond), max(1, int(2*perSecond)))
}

// allow refuses who has failed too often.
func (f *failures) allow(peer netip.Addr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if l := f.peers[peer]; l != nil && exhausted(l) {
		return TooMany(FailsTooOften, "failed authentications of %s: more than %g a second", peer, f.limits.PerPeer)
	}
	if exhausted(f.total) {
		return TooMany(FailsTooOften, "failed authentications: more than %g a second", f.limits.Total)
	}
	return nil
}

func exhausted(l *rate.Limiter) bool { return l.Limit() != rate.Inf && l.Tokens() < 1 }

// failed counts one.
func (f *failures) failed(peer netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.total.Allow()
	l := f.peers[peer]
	if l == nil {
		f.makeRoom()
		l = limiter(f.limits.PerPeer)
		f.peers[peer] = l
	}
	l.Allow()
}

func (f *failures) makeRoom() {
	for peer, l := range f.peers {
		if len(f.peers) < maxPeers {
			return
		}
		if l.Tokens() >= float64(l.Burst()) {
			delete(f.peers, peer)
		}
	}
	for peer := range f.peers {
		if len(f.peers) < maxPeers {
			return
		}
		delete(f.peers, peer)
	}
}
