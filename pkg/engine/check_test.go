package engine

import (
	"cmp"
	"maps"
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/pkg/feed"
	"github.com/nordix/meridio-nsp/pkg/pool"
	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// check commits and compares engine and world.
func (p *player) check(t require.TestingT) {
	p.s.commit(&p.out)
	p.world.commit()
	got := map[uint64]*Row{}
	for _, r := range p.out.lists.Targets(Filter{}) {
		got[r.Entry.ID] = r
	}
	require.Len(t, got, len(p.world.rows))
	for id, want := range p.world.rows {
		require.NotNil(t, got[id], "row %d", id)
		require.Equal(t, plain(want), plain(got[id]), "row %d", id)
		if last := p.last[id]; last != nil && last.State == got[id].State && last.Reason == got[id].Reason {
			require.Equal(t, last.Caused, got[id].Caused, "the time of row %d", id)
		}
	}
	p.last = got
	p.checkNothingKept(t)
	p.checkCounts(t)
	for i, r := range p.receivers {
		r.committed(t, p)
		if p.pick(2) == 0 {
			r.read(t, p)
		}
		if p.pick(8) == 0 {
			r.close()
			p.receivers[i] = p.newReceiver()
		}
	}
}

// plain is a row without what only the engine has: the pointer of the entry and the time.
func plain(r *Row) any {
	return [...]any{
		r.Entry.Key, r.Entry.Status, r.Entry.Identifier, r.Entry.Caller, r.State, r.Reason, r.Binding, r.PodUID, r.Pod, r.Listed,
	}
}

func (p *player) checkNothingKept(t require.TestingT) {
	require.Len(t, p.s.records, len(p.book.entries))
	require.ElementsMatch(t, slices.Collect(maps.Keys(p.claims)), slices.Collect(maps.Keys(p.s.claims.byID)))
	require.Empty(t, p.s.claims.touched)
	require.Empty(t, p.s.dirty)
	require.Empty(t, p.s.dirtyWorkloads)
	for k, st := range p.s.streams {
		require.True(t, st.rows > 0 || len(st.pools) > 0, "stream %s is kept for nothing", k)
	}
	for _, r := range p.s.records {
		for _, prefix := range r.entry.Prefixes {
			require.Contains(t, p.s.byAddr[prefix.Addr()], r)
		}
	}
	for a, records := range p.s.byPeer {
		require.NotEmpty(t, records)
		for r := range records {
			require.Equal(t, a, r.entry.Caller.Peer)
		}
	}
	for uid, records := range p.s.byPod {
		require.NotEmpty(t, records)
		for r := range records {
			require.Equal(t, uid, r.memory.PodUID)
		}
	}
	for uid, members := range p.s.members {
		require.NotEmpty(t, members, uid)
	}
	for trench, n := range p.want {
		require.Equal(t, 1, n, "asked for trench %s", trench)
	}
	for _, e := range p.book.entries {
		require.True(t, e.Type != registry.Default || p.want[e.Stream.Trench] == 1)
	}
}

// checkCounts counts what every pool lists, member by member.
func (p *player) checkCounts(t require.TestingT) {
	pools, waiting, unwatched := map[pool.Ref]Counts{}, map[pool.Ref]int{}, map[pool.Ref]int{}
	strangers := map[stream.Key]int{}
	for id, r := range p.world.rows {
		if m := p.owner[id]; r.Entry.Type == registry.Default && (m == nil || m.Streams[r.Entry.Stream].Services == nil) {
			strangers[r.Entry.Stream]++
		}
	}
	for k, x := range p.waiting {
		ready := x.owner != nil && x.owner.Streams[k.Stream].State == pool.Active
		require.Equal(t, ready, p.preferred[k], "whether %s comes first", k.Addrs)
	}
	for _, m := range p.pods {
		watched := false
		for w, n := range p.watches {
			watched = watched || n > 0 && slices.Contains(p.named(w), m)
		}
		for k, ans := range m.Streams {
			var c Counts
			for id, r := range p.world.rows {
				if p.owner[id] == m && r.Entry.Stream == k {
					c = c.plus(countsOf(r), +1)
				}
			}
			for _, x := range p.waiting {
				if x.owner == m && x.entry.Stream == k {
					c.Waiting++
				}
			}
			for _, ref := range ans.Services {
				if c.waits() {
					waiting[ref]++
				}
				if !watched {
					unwatched[ref]++
				}
				set(pools, ref, pools[ref].plus(c.once(), +1))
			}
		}
	}
	require.Equal(t, pools, p.s.tally.pools)
	for ref := range p.services {
		require.Equal(t, waiting[ref], p.s.tally.waiting.read(ref).Total, "who waits in %s", ref)
		require.Equal(t, unwatched[ref], p.s.watched.unwatched.read(ref).Total, "unwatched in %s", ref)
	}
	require.Len(t, p.s.waiters, len(p.waiting))
	for k, st := range p.s.streams {
		require.Equal(t, strangers[k], st.strangers.read().Total, "strangers of %s", k)
	}
}

// receiver is a watcher that reads now and then.
type receiver interface {
	// committed looks whether it was woken for a reason.
	committed(t require.TestingT, p *player)
	// read reads all that it is owed and compares that with the world.
	read(t require.TestingT, p *player)
	close()
}

func (p *player) newReceiver() receiver {
	switch p.pick(3) {
	case 0:
		c := p.stream().Of()
		topic := p.s.topic(&p.out, c)
		return &feedReceiver{conduit: c, cursor: topic.Follow(), has: map[uint64]*Row{}, limits: map[uint64]*Access{}}
	case 1:
		f := Filter{Status: one(p.pick, registry.Enabled, registry.Enabled, registry.Any, registry.Disabled)}
		k := p.stream()
		f.Trench, f.Conduit, f.Stream = k.Trench, one(p.pick, k.Conduit, ""), one(p.pick, k.Name, "")
		if p.pick(4) == 0 {
			f.Scope = one(p.pick, "t1", "t2")
			f.Trench = one(p.pick, f.Scope, "")
		}
		if p.pick(8) == 0 {
			f = Filter{Type: registry.Frontend, Status: f.Status}
		}
		return &listReceiver{filter: f, watcher: p.s.watchList(&p.out, f)}
	}
	w := p.workload()
	r := &assignmentReceiver{workload: w, watcher: p.out.assignments.Watch(w)}
	p.s.publishAssignment(&p.out, w)
	return r
}

// told tells whether load balancers of a trench may be told anything.
func (w *world) told(trench string) bool { return w.answered && w.configs[trench] != nil }

type feedReceiver struct {
	conduit stream.Conduit
	cursor  *feed.Cursor[uint64, Item]
	has     map[uint64]*Row
	limits  map[uint64]*Access
	started bool
}

func (r *feedReceiver) committed(require.TestingT, *player) {}
func (r *feedReceiver) close()                              {}

func (r *feedReceiver) read(t require.TestingT, p *player) {
	if p.pick(4) == 0 && r.started {
		r.cursor = p.s.topic(&p.out, r.conduit).Resume(r.cursor.Revision())
	}
	b, ok, _ := r.cursor.Next()
	require.False(t, ok && !p.told(r.conduit.Trench), "told too early")
	if !r.started {
		require.Equal(t, p.told(r.conduit.Trench), ok)
	}
	r.started = r.started || ok
	if b.Snapshot {
		clear(r.has)
		clear(r.limits)
	}
	for _, c := range b.Changes {
		switch {
		case c.Value.Access != nil:
			r.limit(t, c)
		case c.Gone:
			delete(r.has, c.Key)
		default:
			r.has[c.Key] = c.Value.Row
		}
	}
	if r.started {
		r.compare(t, p)
	}
}

// limit takes in what a load balancer does: by the name of the stream, in the order of the changes.
func (r *feedReceiver) limit(t require.TestingT, c feed.Change[uint64, Item]) {
	a := c.Value.Access
	require.GreaterOrEqual(t, c.Key, uint64(firstAccess))
	require.Equal(t, c.Gone, a.Sources == nil)
	maps.DeleteFunc(r.limits, func(_ uint64, o *Access) bool { return o.Stream == a.Stream })
	if !c.Gone {
		r.limits[c.Key] = a
	}
}

func (r *feedReceiver) compare(t require.TestingT, p *player) {
	allowed, limits := map[stream.Key][]string{}, map[stream.Key][]string{}
	for k, prefix := range p.allowed {
		if k.Of() == r.conduit {
			allowed[k] = sourcesOf(prefix).Strings()
		}
	}
	for _, a := range r.limits {
		limits[a.Stream] = a.Sources.Strings()
	}
	require.Equal(t, allowed, limits)
	want := map[uint64]any{}
	for id, row := range p.world.rows {
		if row.Entry.Type == registry.Default && row.Entry.Stream.Of() == r.conduit {
			want[id] = feedView(row)
		}
	}
	got := map[uint64]any{}
	for id, row := range r.has {
		got[id] = feedView(row)
		require.NotEqual(t, Pending, row.State)
	}
	require.Equal(t, want, got)
}

func feedView(r *Row) any { return [...]any{r.Entry.Key, r.Entry.Identifier, r.State, r.Reason, r.Pod} }

type listReceiver struct {
	filter  Filter
	watcher *feed.Watcher[Filter, *List]
	// woken is closed where there may be something new; has is what was read last, nil before the first time.
	woken <-chan struct{}
	has   []any
	// before is the world's list at the last commit.
	before []any
}

func (r *listReceiver) close() { r.watcher.Close() }

func (r *listReceiver) want(p *player) []any {
	rows := []any{}
	for _, row := range slices.SortedFunc(maps.Values(p.world.rows), func(a, b *Row) int { return cmp.Compare(a.Entry.ID, b.Entry.ID) }) {
		e, f := row.Entry, r.filter
		named := (f.Scope == "" || f.Scope == e.Scope) && (f.Trench == "" || f.Trench == e.Stream.Trench) &&
			(f.Conduit == "" || f.Conduit == e.Stream.Conduit) && (f.Stream == "" || f.Stream == e.Stream.Name)
		status := f.Status == registry.Any || f.Status == e.Status
		if f.Status == registry.Enabled && f.Type == registry.Default {
			status = row.State == Active || row.State == Draining
		}
		if f.Type == e.Type && named && status {
			rows = append(rows, listView(row))
		}
	}
	return rows
}

func listView(r *Row) any { return [...]any{r.Entry.ID, r.Entry.Status, r.Entry.IPs, r.Entry.Context} }

func (r *listReceiver) answered(p *player) bool {
	return r.filter.Type != registry.Default || r.filter.Status != registry.Enabled || p.told(cmp.Or(r.filter.Trench, r.filter.Scope))
}

// committed insists that who has read everything is woken by a change of the list, and by nothing else.
func (r *listReceiver) committed(t require.TestingT, p *player) {
	now := r.want(p)
	if r.woken != nil && r.has != nil {
		select {
		case <-r.woken:
			require.NotEqual(t, r.before, now, "%+v woken for nothing", r.filter)
			r.woken = nil
		default:
			require.Equal(t, r.before, now, "%+v not woken", r.filter)
		}
	}
	r.before = now
}

func (r *listReceiver) read(t require.TestingT, p *player) {
	l, _, ok, woken := r.watcher.Next()
	require.False(t, ok && !r.answered(p), "told too early")
	if ok {
		r.has = []any{}
		for row := range l.Rows() {
			r.has = append(r.has, listView(row))
		}
	}
	require.Equal(t, r.answered(p), r.has != nil)
	if r.has != nil {
		r.before = r.want(p)
		require.Equal(t, r.before, r.has)
	}
	r.woken = woken
}

type assignmentReceiver struct {
	workload Workload
	watcher  *feed.Watcher[Workload, *Assigned]
	has      *Assigned
	woken    <-chan struct{}
}

func (r *assignmentReceiver) close() { r.watcher.Close() }

func (r *assignmentReceiver) committed(t require.TestingT, p *player) {
	if r.woken == nil || r.has == nil {
		return
	}
	select {
	case <-r.woken:
		r.woken = nil
		require.NotEqual(t, r.has, p.assigned(r.workload), "woken for nothing")
	default:
	}
}

func (r *assignmentReceiver) read(t require.TestingT, p *player) {
	v, _, ok, woken := r.watcher.Next()
	want := p.assigned(r.workload)
	if ok {
		r.has = v
	}
	if want != nil {
		require.Equal(t, want, r.has)
	} else {
		require.False(t, ok && r.workload.Pod != "" && !p.world.answered)
	}
	r.woken = woken
}
