package engine

import (
	"cmp"

	"github.com/nordix/meridio-nsp/pkg/pool"
	"github.com/nordix/meridio-nsp/pkg/registry"
)

// waits takes in who waits for an identifier, or does so no more. It is a record like a registration, bound to its pod in the
// same way, but there is no row of it: nobody is told.
func (s *state) waits(c registry.Change) {
	key := cmp.Or(c.New, c.Old).Key
	if r, known := s.waiters[key]; known {
		s.unlink(r)
		delete(s.waiters, key)
		r.entry = nil
		s.dirty[r] = struct{}{}
	}
	if c.New == nil {
		return
	}
	r := &record{entry: c.New, waiting: true}
	s.waiters[key] = r
	s.link(r)
	s.dirty[r] = struct{}{}
	s.want(c.New.Stream.Trench, maxRegistered)
}

// settleWaiter finds the pod that waits. Whether it comes before others is told each time that it lines up.
func (s *state) settleWaiter(r *record, st *step) {
	if r.entry == nil {
		s.reseat(r, seat{}, st)
		return
	}
	s.bind(r)
	ans, listed := s.answer(r)
	ready := listed && ans.State == pool.Active
	if r.preferred == nil || *r.preferred != ready {
		r.preferred = &ready
		st.preferred[r.entry.Key] = ready
	}
	now := seat{}
	if listed {
		now = seat{
			member: r.member.Key, pools: ans.Services, counts: Counts{Waiting: 1}, stream: r.entry.Stream, name: memberName(r.member),
		}
	}
	s.reseat(r, now, st)
}

// publishLimits tells the registry how many targets streams may have, after it was told who comes first.
func (s *state) publishLimits(st *step) {
	if len(st.preferred) > 0 && s.cfg.Prefer != nil {
		s.cfg.Prefer(st.preferred)
	}
	if s.rebuilding {
		return // an identifier that seems free may be that of a target which has not come back yet
	}
	for trench := range take(&s.newLimits) {
		if limits, read := s.maxTargets[trench]; read && s.cfg.Limits != nil {
			s.cfg.Limits(trench, limits)
		}
	}
}
