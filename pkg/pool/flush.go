package pool

import "slices"

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
	f.takeServices()
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
	if f.newPermit {
		for _, p := range f.Table.pools {
			f.readService(p)
		}
		f.newPermit = false
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
	p.spec = next
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
	readings, problems := s.read()
	for key, l := range s.listings {
		if _, ok := readings[key]; !ok {
			delete(s.listings, key)
			l.member.listings = slices.DeleteFunc(l.member.listings, func(o *listing) bool { return o == l })
			f.members[l.member] = struct{}{}
		}
	}
	moved := s.readFor != s.pool
	newer := s.in != nil && s.in.Version != s.version
	for key, r := range readings {
		l := s.listings[key]
		if l == nil {
			l = &listing{slice: s, member: f.memberAt(key)}
			s.listings[key] = l
			l.member.listings = append(l.member.listings, l)
		} else if l.reading.equal(r) && !moved && !(newer && len(l.member.listings) > 1) {
			continue
		}
		l.reading = r
		f.members[l.member] = struct{}{}
	}
	if !slices.Equal(problems, s.problems) && s.pool != nil {
		s.pool.problemsStale = true
		f.pools[s.pool] = struct{}{}
	}
	s.problems, s.readFor = problems, s.pool
	if s.in != nil {
		s.version = s.in.Version
	}
}

// read is empty for a slice that does not count: of no accepted pool, or a leftover of a Service of the same name.
func (s *slice) read() (map[MemberKey]reading, []string) {
	if s.pool == nil || !s.pool.spec.accepted() || s.in.OwnerUID != "" && s.in.OwnerUID != s.pool.spec.uid {
		return nil, nil
	}
	return readSlice(s.in, s.pool.spec.external)
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
