package pool

import (
	"cmp"
	"iter"
	"maps"
	"net/netip"
	"slices"
)

// Config is what a Table needs.
type Config struct {
	// Namespace is the NSP's own: a Service whose stream is of another namespace is silently no pool.
	Namespace string
	// Cluster is the name of this cluster, which the names of its Services are completed with; empty where it has none.
	Cluster string
	// Assignment is the policy of Services without the annotation; empty is ByMembership.
	Assignment Assignment
	// Grants say what other namespaces may do, and which members without a pod may join; nil is nothing. Pods of the NSP's own
	// namespace always may.
	Grants *Grants
}

// Table holds the Services and slices, and the pools and members made of them. What is given to it must not be modified
// afterwards. Everything that it answers is as of the last Flush.
//
// It is not safe for concurrent use.
type Table struct {
	cfg Config

	// Input since the last Flush; nil is a deletion.
	newServices map[Ref]*Service
	newSlices   map[Ref]*Slice // by the slice's own name
	newGrants   bool
	newAccounts map[*member]struct{}
	newTargets  map[Ref]*Target
	// accounts are the ServiceAccounts that pods are proven to run as, of those that are listed and of others.
	accounts map[MemberKey]string
	targets  map[Ref]*Target

	pools   map[Ref]*pool
	slices  map[Ref]*slice
	members map[MemberKey]*member
	byAddr  index[netip.Addr]
	byName  index[Ref]
}

// pool is a name that a Service or slices bear; it is no Pool unless spec is set.
type pool struct {
	ref     Ref
	service *Service
	spec    *spec
	slices  map[*slice]struct{}

	tally    [classes]int // members that count, by class
	withheld map[MemberKey]loss
	rules    rules

	conflict      string // the messages about withheld
	denied        string
	conflictStale bool
	problems      []string // of the slices
	problemsStale bool
	published     *Pool
}

// slice is an EndpointSlice and what it contributes.
type slice struct {
	in   *Slice // nil once deleted
	pool *pool  // the pool it names

	// As of the last read.
	last     *Slice
	readAs   *spec // of the pool
	plain    bool  // see content
	listings map[MemberKey]*listing
	problems []string
}

// listing is one member in one slice that counts.
type listing struct {
	slice  *slice
	member *member
	reading
}

// member is a workload that some slice lists.
type member struct {
	key       MemberKey
	listings  []*listing
	views     []view // one for each pool, the oldest first
	published *Member
}

// New is an empty Table.
func New(cfg Config) *Table {
	cfg.Assignment = cmp.Or(cfg.Assignment, ByMembership)
	return &Table{
		cfg:         cfg,
		newServices: map[Ref]*Service{},
		newSlices:   map[Ref]*Slice{},
		newAccounts: map[*member]struct{}{},
		accounts:    map[MemberKey]string{},
		newTargets:  map[Ref]*Target{},
		targets:     map[Ref]*Target{},
		pools:       map[Ref]*pool{},
		slices:      map[Ref]*slice{},
		members:     map[MemberKey]*member{},
		byAddr:      index[netip.Addr]{},
		byName:      index[Ref]{},
	}
}

// SetService adds or replaces a Service. One without the marker is no pool, like one that was deleted.
func (t *Table) SetService(s Service) { t.newServices[s.Ref] = &s }

// DeleteService forgets a Service; its slices stay, for the case that it comes back.
func (t *Table) DeleteService(r Ref) { t.newServices[r] = nil }

// SetSlice adds or replaces a slice; it may come before its Service.
func (t *Table) SetSlice(s Slice) { t.newSlices[Ref{s.Namespace, s.Name}] = &s }

// DeleteSlice forgets a slice.
func (t *Table) DeleteSlice(namespace, name string) { t.newSlices[Ref{namespace, name}] = nil }

// DropNamespace forgets all Services, slices and ExternalTargets of a namespace.
func (t *Table) DropNamespace(namespace string) {
	drop(namespace, t.pools, t.newServices)
	drop(namespace, t.slices, t.newSlices)
	drop(namespace, t.targets, t.newTargets)
}

func drop[Known, Input any](namespace string, known map[Ref]Known, input map[Ref]*Input) {
	for r := range known {
		if r.Namespace == namespace {
			input[r] = nil
		}
	}
	for r := range input {
		if r.Namespace == namespace {
			input[r] = nil
		}
	}
}

// SetGrants replaces Config.Grants; the next Flush judges everything anew.
func (t *Table) SetGrants(g *Grants) { t.cfg.Grants, t.newGrants = g, true }

// Member is nil for an unknown key.
func (t *Table) Member(k MemberKey) *Member {
	if m := t.members[k]; m != nil {
		return m.published
	}
	return nil
}

// Pool is nil for a Service that is no pool of this NSP.
func (t *Table) Pool(r Ref) *Pool {
	if p := t.pools[r]; p != nil {
		return p.published
	}
	return nil
}

// Members are all members, in no order.
func (t *Table) Members() iter.Seq[*Member] {
	return func(yield func(*Member) bool) {
		for _, m := range t.members {
			if !yield(m.published) {
				return
			}
		}
	}
}

// Pools are all pools, sorted by namespace and name.
func (t *Table) Pools() iter.Seq[*Pool] {
	return func(yield func(*Pool) bool) {
		for _, r := range slices.SortedFunc(maps.Keys(t.pools), Ref.Compare) {
			if p := t.pools[r].published; p != nil && !yield(p) {
				return
			}
		}
	}
}

// PoolMembers are the members of one pool, sorted by key. It costs what the pool has members and is for inspection.
func (t *Table) PoolMembers(r Ref) []PoolMember {
	p := t.pools[r]
	if p == nil {
		return nil
	}
	var all []PoolMember
	seen := map[*member]bool{}
	for m := range p.members() {
		if !seen[m] {
			seen[m] = true
			all = append(all, m.in(p))
		}
	}
	slices.SortFunc(all, func(a, b PoolMember) int { return a.Key.Compare(b.Key) })
	return all
}

// ByAddress are the members that bear the address, sorted by key; pods with hostNetwork share one.
func (t *Table) ByAddress(a netip.Addr) []*Member { return slices.Clone(t.byAddr[a]) }

// ByName are the pods of that name, sorted by key: a pod and its successor of the same name are two.
func (t *Table) ByName(namespace, pod string) []*Member {
	return slices.Clone(t.byName[Ref{namespace, pod}])
}

// members has one element for each listing, so a member in two slices comes twice.
func (p *pool) members() iter.Seq[*member] {
	return func(yield func(*member) bool) {
		for s := range p.slices {
			for _, l := range s.listings {
				if !yield(l.member) {
					return
				}
			}
		}
	}
}

// index finds members by something that several may share; each list is sorted by key.
type index[K comparable] map[K][]*Member

func (x index[K]) insert(k K, m *Member) {
	i, _ := find(x[k], m)
	x[k] = slices.Insert(x[k], i, m)
}

func (x index[K]) remove(k K, m *Member) {
	i, ok := find(x[k], m)
	switch {
	case !ok:
	case len(x[k]) == 1:
		delete(x, k)
	default:
		x[k] = slices.Delete(x[k], i, i+1)
	}
}

func find(list []*Member, m *Member) (int, bool) {
	return slices.BinarySearchFunc(list, m.Key, func(e *Member, k MemberKey) int { return e.Key.Compare(k) })
}

func (t *Table) reindex(before, after *Member) {
	if before != nil {
		for _, a := range before.Addrs {
			t.byAddr.remove(a, before)
		}
		t.byName.remove(Ref{before.Key.Namespace, before.Name}, before)
	}
	if after != nil {
		for _, a := range after.Addrs {
			t.byAddr.insert(a, after)
		}
		if after.Name != "" {
			t.byName.insert(Ref{after.Key.Namespace, after.Name}, after)
		}
	}
}
