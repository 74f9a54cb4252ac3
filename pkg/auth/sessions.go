package auth

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Sessions decide who speaks for an ExternalTarget where several prove to be it: a machine that was made anew while the old one still
// runs, a sidecar whose connection broke without a word, a copy of a disk image.
//
// A session is one run of one sidecar. The session that began to watch last speaks; its newest watch is the one that counts. What an
// older session still has open ends, and what it says no more counts, also what was under way, until the newer one has been away for
// long: a late goodbye of the old does not undo the new. A session that is heard without a watch speaks where nobody else does.
//
// The zero value knows nobody. It is safe for concurrent use.
type Sessions struct {
	mu      sync.Mutex
	tenures map[string]*tenure // by the UID of the target
	// clock is time.Now where it is nil.
	clock func() time.Time
}

const (
	// SessionLingers is for how long a session still speaks whose watch has ended: longer than its registrations last unless renewed,
	// with the default entry timeout.
	SessionLingers = 75 * time.Second
	// maxPast bounds how many older sessions of a target are remembered.
	maxPast = 16
)

// tenure is about one target.
type tenure struct {
	// session speaks, while watch is open or until then; past are those that did before.
	session string
	watch   *turn
	until   time.Time
	past    []string
	// calls are under way.
	calls map[*turn]struct{}
}

// turn is a watch or a call.
type turn struct {
	session string
	end     context.CancelCauseFunc
}

// Watch begins a watch of a session for a target. It ends what others have open, and what they watched before, by their end. What it
// returns is called when the watch is over. The error is a refusal: a newer session speaks.
func (s *Sessions) Watch(t Target, session string, end context.CancelCauseFunc) (done func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep()
	n := s.tenure(t)
	if s.taken(n, session) {
		if slices.Contains(n.past, session) {
			return nil, superseded(t)
		}
		n.past = append(n.past, n.session)
		n.past = n.past[max(0, len(n.past)-maxPast):]
	}
	if n.watch != nil {
		n.watch.end(superseded(t))
	}
	for c := range n.calls {
		if c.session != session {
			c.end(superseded(t))
		}
	}
	one := &turn{session, end}
	n.session, n.watch = session, one
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if n.watch == one {
			n.watch, n.until = nil, s.now().Add(SessionLingers)
		}
	}, nil
}

// Call begins a call of a session for a target, which is ended by its end where another session comes meanwhile. What it returns is
// called when the call is over. The error is a refusal: another session speaks.
func (s *Sessions) Call(t Target, session string, end context.CancelCauseFunc) (done func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.tenure(t)
	if s.taken(n, session) {
		return nil, superseded(t)
	}
	one := &turn{session, end}
	n.calls[one] = struct{}{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(n.calls, one)
	}, nil
}

func superseded(t Target) error {
	return Deny(Superseded, "another sidecar that proves to be ExternalTarget %s came later, and speaks for it; "+
		"if both are to run, give each an ExternalTarget and an identity of its own", t)
}

func (s *Sessions) tenure(t Target) *tenure {
	if s.tenures == nil {
		s.tenures = make(map[string]*tenure)
	}
	n := s.tenures[t.UID]
	if n == nil {
		n = &tenure{calls: make(map[*turn]struct{})}
		s.tenures[t.UID] = n
	}
	return n
}

func (s *Sessions) now() time.Time {
	if s.clock != nil {
		return s.clock()
	}
	return time.Now()
}

// held tells whether somebody speaks, and taken whether that is another session.
func (s *Sessions) held(n *tenure) bool { return n.watch != nil || s.now().Before(n.until) }

func (s *Sessions) taken(n *tenure, session string) bool { return s.held(n) && n.session != session }

// sweep forgets targets for which nobody speaks or is heard.
func (s *Sessions) sweep() {
	for uid, n := range s.tenures {
		if !s.held(n) && len(n.calls) == 0 {
			delete(s.tenures, uid)
		}
	}
}
