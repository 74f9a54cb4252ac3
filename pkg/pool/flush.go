package pool

import (
	"iter"
	"maps"
	"slices"
)

// flush is the work of one Flush: what has to be looked at again. It goes from the objects upwards, each step once:
// slices and Services -> listings -> views -> rules of the pools -> answers.
type flush struct {
	*Table
	slices  map[*slice]struct{}
	members map[*member]struct{}
	pools   map[*pool]struct{}
}

// Flush takes in what was set and deleted since the last one and says what became different by it. Its cost is that of the
// slices touched and the members that differ, not of the table.
func (t *Table) Flush() Delta {
	f := &flush{t, map[*slice]struct{}{}, map[*member]struct{}{}, map[*pool]struct{}{}}
	f.takeSlices()
	f.takeTargets()
	f.takeServices()
	for m := range f.newAccounts {
		f.members[m] = struct{}{}
	}
	clear(f.newAccounts)
	for s := range f.slices {
		f.readSlice(s)
	}
	for m := range f.members {
		f.count(m)
	}
	for p := range f.pools {
		f.applyRules(p)
	}
	return f.publish()
}

// takeSlices moves slices to the pools that they name.
func (f *flush) takeSlices() {
	for name, in := range f.newSlices {
		s := f.Table.slices[name]
		if s == nil {
			s = &slice{listings: map[MemberKey]*listing{}}
			f.Table.slices[name] = s
		}
		s.in = in
		var p *pool
		if in != nil {
			p = f.poolAt(Ref{in.Namespace, in.Service})
		}
		f.attach(s, p)
		f.slices[s] = struct{}{}
		if in == nil {
			delete(f.Table.slices, name)
		}
	}
	clear(f.newSlices)
}

func (f *flush) attach(s *slice, p *pool) {
	if s.pool == p {
		return
	}
	if s.pool != nil {
		delete(s.pool.slices, s)
		s.pool.problemsStale = true
		f.pools[s.pool] = struct{}{}
	}
	if p != nil {
		p.slices[s] = struct{}{}
		p.problemsStale = true
		f.pools[p] = struct{}{}
	}
	s.pool = p
}

func (f *flush) poolAt(r Ref) *pool {
	p := f.Table.pools[r]
	if p == nil {
		p = &pool{ref: r, slices: map[*slice]struct{}{}, withheld: map[MemberKey]loss{}}
		f.Table.pools[r] = p
		f.pools[p] = struct{}{}
	}
	return p
}

func (f *flush) takeServices() {
	for r, in := range f.newServices {
		f.poolAt(r).service = in
		f.readService(f.poolAt(r))
	}
	clear(f.newServices)
	if f.newGrants {
		for _, p := range f.Table.pools {
			f.readService(p)
		}
		f.newGrants = false
	}
}

// readService ends here for a Service that asks for what it asked before: a status write costs nothing.
func (f *flush) readService(p *pool) {
	next := f.understand(p.service)
	if next.equal(p.spec) {
		f.pools[p] = struct{}{} // may have become empty
		return
	}
	if !next.listsLike(p.spec) {
		for s := range p.slices {
			f.slices[s] = struct{}{}
		}
	}
	p.spec, p.conflictStale = next, true
	f.touchAll(p)
	f.pools[p] = struct{}{}
}

func (f *flush) touchAll(p *pool) {
	for m := range p.members() {
		f.members[m] = struct{}{}
	}
}

// readSlice replaces the listings of the slice by those of its present content. A member whose listing is as before is
// looked at again only if the slice's version decides between this listing and another one.
func (f *flush) readSlice(s *slice) {
	had, now := f.edit(s)
	for key := range had {
		if _, ok := now.readings[key]; !ok {
			f.unlist(s.listings[key])
		}
	}
	asBefore := s.pool != nil && s.readAs == s.pool.spec
	for key, r := range now.readings {
		if l := s.listings[key]; l == nil || !asBefore || !l.reading.equal(r) {
			f.list(s, key, r)
		}
	}
	f.touchShared(s)
	if !slices.Equal(now.problems, s.problems) && s.pool != nil {
		s.pool.problemsStale = true
		f.pools[s.pool] = struct{}{}
	}
	s.problems, s.plain, s.last = now.problems, now.plain, s.in
	if s.pool != nil {
		s.readAs = s.pool.spec
	}
}

func (f *flush) list(s *slice, key MemberKey, r reading) {
	l := s.listings[key]
	if l == nil {
		l = &listing{slice: s, member: f.memberAt(key)}
		s.listings[key] = l
		l.member.listings = append(l.member.listings, l)
	}
	l.reading = r
	f.members[l.member] = struct{}{}
}

func (f *flush) unlist(l *listing) {
	delete(l.slice.listings, l.member.key)
	l.member.listings = slices.DeleteFunc(l.member.listings, func(o *listing) bool { return o == l })
	f.members[l.member] = struct{}{}
}

// touchShared is for the members that another slice lists too: the new version may have changed which one is believed.
func (f *flush) touchShared(s *slice) {
	if s.in == nil || s.last == nil || s.in.Version == s.last.Version {
		return
	}
	for _, l := range s.listings {
		if len(l.member.listings) > 1 {
			f.members[l.member] = struct{}{}
		}
	}
}

// edit is the part of the slice that differs from what was read last: the members listed there before, and what it says now.
func (t *Table) edit(s *slice) (iter.Seq[MemberKey], content) {
	if had, now, ok := t.smallEdit(s); ok {
		return maps.Keys(had.readings), now
	}
	return maps.Keys(s.listings), t.read(s)
}

// read is empty for a slice that does not count: of no accepted pool, or a leftover of a Service of the same name.
func (t *Table) read(s *slice) content {
	if s.pool == nil || !s.pool.spec.accepted() || s.in.OwnerUID != "" && s.in.OwnerUID != s.pool.spec.uid {
		return content{}
	}
	return reader{s.pool.spec.permission, t.targets, t.cfg.Cluster}.read(s.in, s.in.Endpoints)
}

// smallEdit spares reading 100 endpoints for the one that changed. It is only for slices that list nobody twice.
func (t *Table) smallEdit(s *slice) (had, now content, ok bool) {
	if !s.plain || s.pool == nil || s.readAs != s.pool.spec ||
		s.in.OwnerUID != s.last.OwnerUID || s.in.AddressType != s.last.AddressType {
		return had, now, false
	}
	before, after := trim(s.last.Endpoints, s.in.Endpoints)
	r := reader{s.readAs.permission, t.targets, t.cfg.Cluster}
	had, now = r.read(s.last, before), r.read(s.in, after)
	for key := range now.readings {
		_, here := had.readings[key]
		if _, listed := s.listings[key]; listed && !here {
			return had, now, false
		}
	}
	return had, now, now.plain
}

func (f *flush) memberAt(k MemberKey) *member {
	m := f.Table.members[k]
	if m == nil {
		m = &member{key: k}
		f.Table.members[k] = m
	}
	return m
}

func (f *flush) publish() Delta {
	d := Delta{Members: map[MemberKey]*Member{}, Pools: map[Ref]*Pool{}}
	for m := range f.members {
		if after := m.build(); !after.equal(m.published) {
			f.reindex(m.published, after)
			m.published, d.Members[m.key] = after, after
		}
		if m.published == nil {
			delete(f.Table.members, m.key)
		}
	}
	for p := range f.pools {
		if after := p.build(); !after.equal(p.published) {
			p.published, d.Pools[p.ref] = after, after
		}
		if p.service == nil && len(p.slices) == 0 {
			delete(f.Table.pools, p.ref)
		}
	}
	return d
}
