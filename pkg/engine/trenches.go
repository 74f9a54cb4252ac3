package engine

import "github.com/nordix/meridio-nsp/pkg/stream"

// How many trenches may be known when one more is asked for. Whoever may label a Service of a watched namespace may have
// trenches, so pools have no limit. But anybody may register or watch under any name, and each name costs a watch on the API
// server: without a limit, a loop over names would be an attack on that.
const (
	noLimit = 0
	// maxRegistered is for trenches that a registration names. Beyond it the registration stays Pending; its refreshes ask again.
	maxRegistered = 1000
	// maxWatched is for trenches that only a watch names: it waits until a pool or a registration brings the trench in.
	maxWatched = 500
)

// want asks for the configuration of a trench, once, unless there are too many.
func (s *state) want(trench string, limit int) {
	if trench == "" || s.wanted[trench] {
		return
	}
	if limit != noLimit && len(s.wanted) >= limit && !s.swept {
		s.dropUnused()
		s.swept = true // until the next commit: then there may be more to drop
	}
	if limit != noLimit && len(s.wanted) >= limit {
		s.refused++
		return
	}
	s.wanted[trench] = true
	if s.cfg.WantConfig != nil {
		s.cfg.WantConfig(trench)
	}
}

// dropUnused forgets the trenches in which there is nothing. Those who watch them have been told so, or wait as they would for
// a new one.
func (s *state) dropUnused() {
	used := make(map[string]bool)
	for k := range s.streams {
		used[k.Trench] = true
	}
	for r := range s.dirty { // not in the streams before the commit
		if r.entry != nil {
			used[r.entry.Stream.Trench] = true
		}
	}
	for k := range s.waiters {
		used[k.Stream.Trench] = true
	}
	for trench := range s.wanted {
		s.dropTrench(trench, used)
	}
	for trench := range s.maxTargets { // stored, or told too late
		s.dropTrench(trench, used)
	}
}

func (s *state) dropTrench(trench string, used map[string]bool) {
	if used[trench] {
		return
	}
	delete(s.wanted, trench)
	delete(s.maxTargets, trench)
	delete(s.flows, trench)
	if s.cfg.DropConfig != nil {
		s.cfg.DropConfig(trench)
	}
}

// opened tells whether what load balancers of a trench are told is worth telling.
func (s *state) opened(trench string) bool {
	_, configured := s.maxTargets[trench]
	return s.answered && configured && !s.rebuilding && !s.access.pending
}

// topic returns the feed of a conduit for a watcher.
func (s *state) topic(out *outputs, c stream.Conduit) *Topic {
	s.want(c.Trench, maxWatched)
	return s.topicOf(out, c)
}

// topicOf returns the feed of a conduit and makes it where it is new.
func (s *state) topicOf(out *outputs, c stream.Conduit) *Topic {
	t := out.topics.get(c, s.rev)
	if s.opened(c.Trench) {
		t.Open()
	}
	return t
}
