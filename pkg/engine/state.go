package engine

import (
	"cmp"
	"maps"
	"net/netip"
	"reflect"

	"github.com/nordix/meridio-nsp/pkg/pool"
	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// record is a registration in the owner's books.
type record struct {
	entry *registry.Entry
	// row is the published one, nil before the first commit.
	row *Row
	// member is whom it is bound to now; nil where that is nobody.
	member  *pool.Member
	binding Binding
	// memory is what outlives the member: the last binding, that a pool of the stream listed it, and what was last concluded of
	// that, whatever the registration's own status. saved is the part of it that was handed to Remember.
	memory, saved registry.Memory
	// left is set where a pool listed it and none does any more, as of the last commit; reopened where its caller registered
	// again since.
	left, reopened bool
	// doubted is set where the address of the call may have been another pod's when the call was made, heard where there was a call
	// since the last commit.
	doubted, heard bool
	// seat is how the row is counted.
	seat seat
	// waiting is set where this is no registration, but somebody who waits for an identifier; preferred is what was said of him.
	waiting   bool
	preferred *bool
}

// sync is how far a namespace is read.
type syncState uint8

const (
	syncing syncState = iota
	synced
	unavailable
)

// state is everything the owner knows. It is pure: no goroutine, no clock, no lock.
type state struct {
	cfg   *Config
	table *pool.Table
	rev   uint64

	namespaces map[string]syncState
	// answered is set once every namespace has been read or found unavailable; complete once the configuration of all trenches
	// known by then has been read too. Both stay. loaded is set once the stored registrations have been concluded.
	answered, complete, loaded bool
	// rebuilding is Config.Rebuilding, until Rebuilt; grantsPending is Config.GrantsPending, until they are known.
	rebuilding, grantsPending bool
	// opening is set where something may have become worth telling since the last commit.
	opening bool
	// maxTargets is by trench; a trench that is not in it has not been read.
	maxTargets map[string]map[stream.Key]uint32
	// flows are by trench, as far as they are known.
	flows  map[string]map[stream.Key][]pool.Flow
	wanted map[string]bool
	// swept is set where unused trenches were dropped since the last commit; refused counts those not asked for since.
	swept   bool
	refused int

	records map[registry.Key]*record
	// waiters are those who wait for an identifier.
	waiters map[registry.Key]*record
	streams map[stream.Key]*streamState
	// streamOf is the stream that a pool names.
	streamOf map[pool.Ref]stream.Key
	// byAddr, byPeer and byPod find the records that a change of claims or members concerns.
	byAddr index[netip.Addr]
	byPeer index[netip.Addr]
	byPod  index[string]
	// members is by pod UID. A UID is of one pod, but a hand-made slice of another namespace may name it too.
	members map[string][]*pool.Member
	// accounts are the ServiceAccounts that pods are proven to run as.
	accounts accounts
	claims   claims
	access   access
	tally    tally
	watched  watched
	// newLimits are the trenches whose limits the registry has to hear.
	newLimits map[string]bool

	// dirty is what the next commit recomputes.
	dirty      map[*record]struct{}
	dirtyPools map[pool.Ref]bool
	// dirtyWorkloads are to be told again, or all that are watched.
	dirtyWorkloads map[Workload]bool
	allWorkloads   bool
}

// streamState is what belongs to one stream.
type streamState struct {
	// rows are so many registrations, and held so many identifiers.
	rows  int
	held  int
	pools map[pool.Ref]bool
	// strangers are the rows whose member no pool of the stream lists.
	strangers roll[uint64]
}

func newState(cfg *Config) *state {
	s := &state{
		cfg:        cfg,
		rebuilding: cfg.Rebuilding, grantsPending: cfg.GrantsPending,
		table: pool.New(pool.Config{
			Namespace: cfg.Namespace, Cluster: cfg.Cluster, Assignment: cfg.Assignment, Grants: cfg.Grants,
		}),
		namespaces:     make(map[string]syncState),
		maxTargets:     make(map[string]map[stream.Key]uint32),
		flows:          make(map[string]map[stream.Key][]pool.Flow),
		wanted:         make(map[string]bool),
		records:        make(map[registry.Key]*record),
		waiters:        make(map[registry.Key]*record),
		streamOf:       make(map[pool.Ref]stream.Key),
		streams:        make(map[stream.Key]*streamState),
		byAddr:         make(index[netip.Addr]),
		byPeer:         make(index[netip.Addr]),
		byPod:          make(index[string]),
		members:        make(map[string][]*pool.Member),
		claims:         newClaims(),
		access:         newAccess(cfg.AccessPending),
		accounts:       make(accounts),
		tally:          newTally(),
		watched:        newWatched(),
		newLimits:      make(map[string]bool),
		dirty:          make(map[*record]struct{}),
		dirtyPools:     make(map[pool.Ref]bool),
		dirtyWorkloads: make(map[Workload]bool),
	}
	for _, ns := range cfg.Namespaces {
		s.namespaces[ns] = syncing
	}
	return s
}

// apply takes one event in. What follows from it is computed by commit.
func (s *state) apply(ev Event) {
	switch ev := ev.(type) {
	case NamespaceSynced:
		s.sync(ev)
	case NamespaceUnavailable:
		// One that was added while running is not in the map, which reads as syncing.
		if s.namespaces[ev.Namespace] == syncing {
			s.setSync(ev.Namespace, unavailable)
		}
	case NamespaceDropped:
		s.table.DropNamespace(ev.Namespace)
		delete(s.namespaces, ev.Namespace)
		s.everything()
	case ServiceSet:
		s.table.SetService(ev.Service)
	case ServiceGone:
		s.table.DeleteService(ev.Ref)
	case SliceSet:
		s.table.SetSlice(ev.Slice)
	case SliceGone:
		s.table.DeleteSlice(ev.Namespace, ev.Name)
	case TargetSet:
		s.table.SetTarget(ev.Target)
	case TargetGone:
		s.table.DeleteTarget(ev.Ref)
	case TrenchConfigured:
		s.configure(ev)
	case Rebuilt:
		s.rebuilding, s.opening = false, true
		s.everything()
	case GrantsChanged:
		s.setGrants(ev)
	case AccessChanged:
		s.setAccess(ev)
	default:
		s.applyCall(ev)
	}
}

func (s *state) setGrants(ev GrantsChanged) {
	s.table.SetGrants(ev.Grants)
	if s.grantsPending {
		s.grantsPending = false
		s.everything()
	}
}

// applyCall takes in what follows from a call of somebody.
func (s *state) applyCall(ev Event) {
	switch ev := ev.(type) {
	case identified:
		s.identify(ev)
	case reported:
		s.report(ev)
	case watching:
		s.watching(ev)
	case misdirected:
		s.misdirect(ev)
	}
}

// sync replaces all that is known of a namespace. The table compares at its next flush, so a second sync of an unchanged
// namespace changes nothing.
func (s *state) sync(ev NamespaceSynced) {
	if s.namespaces[ev.Namespace] != synced {
		s.setSync(ev.Namespace, synced)
	}
	s.table.DropNamespace(ev.Namespace)
	for _, svc := range ev.Services {
		s.table.SetService(svc)
	}
	for _, sl := range ev.Slices {
		s.table.SetSlice(sl)
	}
	for _, x := range ev.Targets {
		s.table.SetTarget(x)
	}
}

func (s *state) setSync(ns string, to syncState) {
	s.namespaces[ns] = to
	s.everything()
}

// everything is judged and told anew.
func (s *state) everything() {
	for _, r := range s.records {
		s.dirty[r] = struct{}{}
	}
	s.allWorkloads = true
}

// stale tells whether some namespace counts by what was stored before a restart.
func (s *state) stale() bool {
	for _, st := range s.namespaces {
		if st == unavailable {
			return true
		}
	}
	return false
}

func (s *state) configure(ev TrenchConfigured) {
	if !reflect.DeepEqual(s.flows[ev.Trench], ev.Flows) {
		s.flows[ev.Trench] = ev.Flows
		for ref, k := range s.streamOf {
			s.dirtyPools[ref] = s.dirtyPools[ref] || k.Trench == ev.Trench
		}
		maps.DeleteFunc(s.dirtyPools, func(_ pool.Ref, dirty bool) bool { return !dirty })
	}
	if last, known := s.maxTargets[ev.Trench]; known && maps.Equal(last, ev.MaxTargets) {
		return
	}
	s.maxTargets[ev.Trench] = ev.MaxTargets
	s.opening, s.newLimits[ev.Trench] = true, true
	for _, r := range s.records {
		if r.entry.Type == registry.Default && r.entry.Stream.Trench == ev.Trench {
			s.dirty[r] = struct{}{}
		}
	}
}

func (s *state) stream(k stream.Key) *streamState {
	st, ok := s.streams[k]
	if !ok {
		st = &streamState{pools: make(map[pool.Ref]bool)}
		s.streams[k] = st
	}
	return st
}

// release forgets a stream that nothing belongs to any more.
func (s *state) release(k stream.Key) {
	if st, ok := s.streams[k]; ok && st.rows == 0 && len(st.pools) == 0 {
		delete(s.streams, k)
	}
}

func (s *state) markAll(set map[*record]struct{}) {
	maps.Copy(s.dirty, set)
}

// load takes the stored registrations in, before anything else.
func (s *state) load(entries []*registry.Entry) {
	for _, e := range entries {
		s.changed(registry.Change{New: e})
	}
}

// changed takes one change of the registry in.
func (s *state) changed(c registry.Change) {
	key := cmp.Or(c.New, c.Old).Key
	r, known := s.records[key]
	switch {
	case c.Waiting:
		s.waits(c)
	case c.New != nil && known:
		s.update(r, c)
	case c.New != nil:
		s.insert(c.New)
	case known:
		s.unlink(r)
		delete(s.records, key)
		r.entry = nil
		s.dirty[r] = struct{}{}
	}
}

func (s *state) insert(e *registry.Entry) {
	r := &record{entry: e, memory: e.Memory, saved: e.Memory}
	s.recall(e.Memory)
	s.records[e.Key] = r
	s.link(r)
	s.dirty[r] = struct{}{}
	if e.Type == registry.Default {
		s.want(e.Stream.Trench, maxRegistered)
	}
}

// update takes a new state of an entry in, or a refresh, which matters only where it shows that the application holds the stream.
func (s *state) update(r *record, c registry.Change) {
	if c.New.Type == registry.Default {
		s.want(c.New.Stream.Trench, maxRegistered)
	}
	if c.Registered && r.left && r.entry.Caller == c.New.Caller {
		r.reopened = true
		s.dirty[r] = struct{}{}
	}
	if c.Registered && r.doubted {
		r.doubted, r.heard = false, true
		s.dirty[r] = struct{}{}
	}
	if r.entry == c.New {
		return
	}
	r.heard = r.heard || c.Registered && c.Old != c.New
	s.unlink(r)
	r.entry = c.New
	s.link(r)
	s.dirty[r] = struct{}{}
}

func (s *state) link(r *record) {
	for _, p := range r.entry.Prefixes {
		s.byAddr.add(p.Addr(), r)
	}
	s.byPeer.add(r.entry.Caller.Peer, r)
	s.byPod.add(r.memory.PodUID, r)
}

func (s *state) unlink(r *record) {
	for _, p := range r.entry.Prefixes {
		s.byAddr.remove(p.Addr(), r)
	}
	s.byPeer.remove(r.entry.Caller.Peer, r)
	s.byPod.remove(r.memory.PodUID, r)
}

// index finds records by one of their properties. The zero property is not indexed.
type index[K comparable] map[K]map[*record]struct{}

func (x index[K]) add(k K, r *record) {
	var zero K
	if k != zero {
		put(x, k, r)
	}
}

func (x index[K]) remove(k K, r *record) { drop(x, k, r) }

// take empties a set. A cleared map would cost at every commit what the largest one cost.
func take[K comparable, V any](set *map[K]V) map[K]V {
	full := *set
	*set = make(map[K]V)
	return full
}
