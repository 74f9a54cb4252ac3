package engine

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/nordix/meridio-nsp/pkg/feed"
	"github.com/nordix/meridio-nsp/pkg/pool"
	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// outputs are what watchers read. They are written by the owner only.
type outputs struct {
	topics      topics
	lists       *Lists
	assignments *feed.Board[Workload, *Assigned]
}

func newOutputs(s *state) outputs {
	return outputs{
		topics:      topics{all: make(map[stream.Conduit]*topic)},
		lists:       NewLists(s.answers),
		assignments: feed.NewBoard[Workload](equalAssigned),
	}
}

// step collects what one commit changes.
type step struct {
	topics  map[stream.Conduit][]feed.Change[uint64, Item]
	streams map[stream.Key]bool
	memory  map[uint64]registry.Memory
	// preferred says who of those that wait for an identifier comes before others.
	preferred map[registry.Key]bool
	rows      int
	causes    []time.Time
}

// commit recomputes what is dirty and publishes it as one revision.
func (s *state) commit(out *outputs) step {
	s.flushPools()
	s.latch()
	opening := s.opening
	s.opening, s.swept = false, false
	st := step{
		topics:  make(map[stream.Conduit][]feed.Change[uint64, Item]),
		streams: make(map[stream.Key]bool),
		memory:  make(map[uint64]registry.Memory),

		preferred: make(map[registry.Key]bool),
	}
	for r := range take(&s.dirty) {
		if r.waiting {
			s.settleWaiter(r, &st)
		} else {
			s.settle(r, out, &st)
		}
	}
	s.settleAccess(&st)
	s.rev++
	s.publishTopics(out, st.topics)
	out.lists.Publish(s.rev)
	if opening {
		s.open(out)
	}
	s.publishAssignments(out)
	s.publishPools(st.streams)
	s.publishLimits(&st)
	if len(st.memory) > 0 && s.cfg.Remember != nil {
		s.cfg.Remember(st.memory)
	}
	return st
}

// latch notes the moments from which the state is worth telling. Namespaces and trenches that come later hold up nobody. The
// event that completed the namespaces has had everything judged anew.
func (s *state) latch() {
	if !s.answered && !s.grantsPending && !slices.Contains(slices.Collect(maps.Values(s.namespaces)), syncing) {
		s.answered, s.opening = true, true
	}
	if s.answered && !s.complete && !s.rebuilding && !s.access.pending && s.configured() {
		s.complete, s.opening = true, true
	}
}

// configured tells whether the configuration of every known trench has been read.
func (s *state) configured() bool {
	for trench := range s.wanted {
		if _, read := s.maxTargets[trench]; !read {
			return false
		}
	}
	return true
}

// open answers those who waited for what has been read by now.
func (s *state) open(out *outputs) {
	for conduit, t := range out.topics.live() {
		if s.opened(conduit.Trench) {
			t.Open()
		}
	}
	out.lists.Open(s.rev)
}

// settle brings one registration up to date and notes who has to hear of it.
func (s *state) settle(r *record, out *outputs, st *step) {
	last, now := r.row, s.conclude(r)
	if last == nil && now == nil {
		return // came and went since the last commit
	}
	if now != nil && s.answered && r.memory != r.saved {
		r.saved = r.memory
		st.memory[now.Entry.ID] = r.memory
	}
	s.reseat(r, s.seatOf(r, now), st)
	if last != nil && now != nil && last.same(now) {
		return
	}
	st.rows++
	s.note(last, now, out, st)
	r.row = now
}

// note books the change of a row: in the lists that show it, and in the topics of its scope and of its conduit.
func (s *state) note(last, now *Row, out *outputs, st *step) {
	e := cmp.Or(now, last).Entry
	if newCause(last, now) {
		st.causes = append(st.causes, now.Caused)
	}
	out.lists.Note(last, now)
	change := feed.Change[uint64, Item]{Key: e.ID, Value: Item{Row: now}, Gone: now == nil}
	differs := last == nil || now == nil || !last.sameFeed(now)
	if e.Scope != "" && (differs || !last.Alike(now)) {
		scope := scopeTopic(s.cfg.Namespace, e.Scope)
		st.topics[scope] = append(st.topics[scope], change)
	}
	if e.Type != registry.Default {
		return
	}
	stream := s.stream(e.Stream)
	stream.held += held(now) - held(last)
	switch {
	case last == nil:
		stream.rows++
	case now == nil:
		stream.rows--
	}
	s.release(e.Stream)
	if differs {
		// A topic may have been opened when its trench was empty and known, and be open still.
		change.Gone = now == nil || now.State == Pending
		st.topics[e.Stream.Of()] = append(st.topics[e.Stream.Of()], change)
	}
}

// newCause tells whether the cluster changed the state of a target, rather than its registration or what is known of its pod.
func newCause(last, now *Row) bool {
	return last != nil && now != nil && last.Entry == now.Entry && last.State != now.State && now.Caused.After(last.Caused)
}

// publishTopics tells load balancers.
func (s *state) publishTopics(out *outputs, changes map[stream.Conduit][]feed.Change[uint64, Item]) {
	for conduit, cs := range changes {
		t := s.topicOf(out, conduit)
		t.Publish(s.rev, cs)
		out.topics.hold(conduit, t)
	}
}

// publishPools reports the pools that changed, or whose counts did.
func (s *state) publishPools(streams map[stream.Key]bool) {
	for k := range streams {
		if st, ok := s.streams[k]; ok {
			maps.Copy(s.dirtyPools, st.pools)
		}
	}
	if !s.answered || len(s.dirtyPools) == 0 {
		return
	}
	out := make(map[pool.Ref]*PoolStatus, len(s.dirtyPools))
	for ref := range take(&s.dirtyPools) {
		out[ref] = s.poolStatus(ref)
	}
	if s.cfg.Pools != nil {
		s.cfg.Pools(out)
	}
}

func (s *state) poolStatus(ref pool.Ref) *PoolStatus {
	p := s.table.Pool(ref)
	if p == nil {
		return nil
	}
	st := &PoolStatus{
		Pool: p, Targets: s.tally.pools[ref], Waiting: s.tally.waiting.read(ref), Unwatched: s.watched.unwatched.read(ref),
	}
	if flows := s.flows[p.Stream.Trench]; flows != nil && p.Accepted {
		of, there := flows[p.Stream]
		st.Unconfigured, st.Unmet = !there, pool.Unmet(p.Ports, of)
	}
	if known, ok := s.streams[p.Stream]; ok {
		st.Strangers = known.strangers.read()
	}
	return st
}

// publishAssignments tells the workloads whose members changed.
func (s *state) publishAssignments(out *outputs) {
	if s.allWorkloads && s.answered {
		s.allWorkloads = false
		for _, w := range out.assignments.Keys() {
			s.dirtyWorkloads[w] = true
		}
	}
	for w := range take(&s.dirtyWorkloads) {
		s.publishAssignment(out, w)
	}
}

// watchList starts a watcher of a filter.
func (s *state) watchList(out *outputs, f Filter) *feed.Watcher[Filter, *List] {
	if f.Active() {
		s.want(f.trench(), maxWatched)
	}
	return out.lists.Watch(s.rev, f)
}

// answers tells whether what the filter depends on has been read.
func (s *state) answers(f Filter) bool {
	switch {
	case !f.Active():
		return true
	case f.trench() == "":
		return s.complete
	default:
		return s.opened(f.trench())
	}
}
