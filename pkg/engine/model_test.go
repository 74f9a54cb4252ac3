package engine

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/nordix/meridio-nsp/pkg/pool"
	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// world is the model: the objects as they are, from which every row is concluded anew at every commit, plainly, with the
// little history that the rules know.
type world struct {
	services   map[pool.Ref]pool.Service
	slices     map[pool.Ref]pool.Slice
	namespaces map[string]syncState
	permits    map[string]bool
	// allowed are the sources of streams that have a policy.
	allowed  map[stream.Key]string
	configs  map[string]map[stream.Key]uint32
	claims   map[uint64]*mClaim
	history  map[uint64]*history // by entry ID
	book     *book
	answered bool
	// waiting are those who wait for an identifier, with what is remembered of each; watches are open.
	waiting map[registry.Key]*mWaiter
	watches map[Workload]int

	// Of the last commit.
	pods []*pool.Member
	rows map[uint64]*Row
	// owner is whom a row is bound to.
	owner map[uint64]*pool.Member
}

type mClaim struct {
	workload Workload
	report   *Report
	uid      string
	ended    bool
}

type mWaiter struct {
	entry *registry.Entry
	history
	// owner is as of the last commit.
	owner *pool.Member
}

type history struct {
	registry.Memory
	left, reopened bool
	doubted, heard bool
	saved          registry.Memory
}

func newWorld(b *book) *world {
	return &world{
		services: map[pool.Ref]pool.Service{}, slices: map[pool.Ref]pool.Slice{}, permits: map[string]bool{}, allowed: map[stream.Key]string{},
		namespaces: map[string]syncState{own: syncing, "app": syncing},
		configs:    map[string]map[stream.Key]uint32{}, claims: map[uint64]*mClaim{}, history: map[uint64]*history{}, book: b,
		waiting: map[registry.Key]*mWaiter{}, watches: map[Workload]int{},
	}
}

func (w *world) grants() *pool.Grants {
	var all []pool.Grant
	for _, trench := range []string{"t1", "t2"} {
		for k, granted := range w.permits {
			if ns, name := k[:3], k[3:]; granted {
				all = append(all, pool.Grant{Namespace: ns, Trench: trench, Stream: name})
			}
		}
	}
	return pool.NewGrants(all)
}

// registered notes what a Register says of the history.
func (w *world) registered(c registry.Change) {
	h := w.history[c.New.ID]
	if h != nil && h.left && c.Old.Caller == c.New.Caller {
		h.reopened = true
	}
	if h != nil && (h.doubted || c.Old != c.New) {
		h.doubted, h.heard = false, true
	}
}

func (w *world) commit() {
	w.pods = w.members()
	if !slices.Contains(slices.Collect(maps.Values(w.namespaces)), syncing) {
		w.answered = true
	}
	w.settleClaims()
	w.rows, w.owner = map[uint64]*Row{}, map[uint64]*pool.Member{}
	for _, e := range w.book.entries {
		if w.history[e.ID] == nil {
			w.history[e.ID] = &history{Memory: e.Memory, saved: e.Memory}
		}
		w.rows[e.ID] = w.conclude(e, w.history[e.ID])
	}
	for _, x := range w.waiting {
		x.owner, _ = w.bind(x.entry, &x.history)
	}
	maps.DeleteFunc(w.history, func(id uint64, _ *history) bool { _, ok := w.rows[id]; return !ok })
}

// members are the pods of a fresh table; pkg/pool proves that it is order independent.
func (w *world) members() (pods []*pool.Member) {
	t := pool.New(pool.Config{Namespace: own, Grants: w.grants()})
	for ref, s := range w.services {
		if w.namespaces[ref.Namespace] == synced {
			t.SetService(s)
		}
	}
	for ref, x := range w.slices {
		if w.namespaces[ref.Namespace] == synced {
			t.SetSlice(x)
		}
	}
	t.Flush()
	for m := range t.Members() {
		if !m.Key.External() {
			pods = append(pods, m)
		}
	}
	return pods
}

func (w *world) find(match func(*pool.Member) bool) (found []*pool.Member) {
	for _, m := range w.pods {
		if match(m) {
			found = append(found, m)
		}
	}
	return found
}

func only(found []*pool.Member) *pool.Member {
	if len(found) != 1 {
		return nil
	}
	return found[0]
}

func (w *world) named(x Workload) []*pool.Member {
	return w.find(func(m *pool.Member) bool {
		if x.Addr.IsValid() {
			return slices.Contains(m.Addrs, x.Addr)
		}
		return m.Key.Namespace == x.Namespace && m.Name == x.Pod && (x.PodUID == "" || x.PodUID == m.Key.UID)
	})
}

func (w *world) byUID(uid string) *pool.Member {
	return only(w.find(func(m *pool.Member) bool { return m.Key.UID == uid }))
}

func (w *world) settleClaims() {
	for _, c := range w.claims {
		if m := only(w.named(c.workload)); c.uid == "" && m != nil {
			c.uid = m.Key.UID
		}
	}
	over := map[uint64]bool{}
	for id, c := range w.claims {
		over[id] = c.ended && w.byUID(c.uid) == nil
		for other, o := range w.claims {
			over[id] = over[id] || c.ended && other > id && o.uid == c.uid
		}
	}
	maps.DeleteFunc(w.claims, func(id uint64, _ *mClaim) bool { return over[id] })
}

func (w *world) conclude(e *registry.Entry, h *history) *Row {
	row := &Row{Entry: e, State: Active}
	if e.Type != registry.Default {
		if e.Status != registry.Enabled {
			row.State, row.Reason = Inactive, ReasonDisabled
		}
		return row
	}
	m, binding := w.bind(e, h)
	w.owner[e.ID] = m
	w.judge(e, h, m)
	row.Binding, row.PodUID, row.Pod, row.Listed = binding, h.PodUID, h.PodName, h.Listed
	limit := w.configs[e.Stream.Trench][e.Stream]
	if limit == 0 {
		limit = 100
	}
	switch {
	case e.Status != registry.Enabled:
		row.State, row.Reason = Inactive, ReasonDisabled
	case !w.answered || w.configs[e.Stream.Trench] == nil:
		row.State = Pending
	case e.Identifier < 1 || e.Identifier > limit:
		row.State, row.Reason = Inactive, ReasonInvalid
	default:
		row.State, row.Reason = State(h.State), h.Reason
	}
	return row
}

func (w *world) bind(e *registry.Entry, h *history) (*pool.Member, Binding) {
	claimants := w.claimants(e)
	m, binding := w.bound(e, h, claimants)
	if binding == BoundByMemory && len(claimants) > 1 {
		m, binding = nil, Unbound
		h.PodUID, h.PodName, h.Listed = "", "", false
	}
	h.heard = false
	uid, name := e.Caller.PodUID, ""
	if m != nil {
		uid, name = m.Key.UID, m.Key.Namespace+"/"+m.Name
	}
	if uid != "" && uid != h.PodUID {
		h.PodUID, h.PodName = uid, name
	} else if name != "" {
		h.PodName = name
	}
	return m, binding
}

func (w *world) claimants(e *registry.Entry) []*pool.Member {
	all := map[*pool.Member]bool{}
	for _, c := range w.claims {
		says := slices.ContainsFunc(e.Prefixes, func(p netip.Prefix) bool { return slices.Contains(c.report.Addrs, p.Addr()) })
		if m := w.byUID(c.uid); says && m != nil && m.Trench == e.Scope {
			all[m] = true
		}
	}
	return slices.Collect(maps.Keys(all))
}

func (w *world) bound(e *registry.Entry, h *history, claimants []*pool.Member) (*pool.Member, Binding) {
	if e.Caller.PodUID != "" {
		return bindTo(w.byUID(e.Caller.PodUID), BoundByProof)
	}
	if m := only(claimants); m != nil {
		return m, BoundByClaim
	}
	if peer := e.Caller.Peer; peer.IsValid() && !h.doubted {
		bearers := w.named(Workload{Addr: peer})
		m := only(bearers)
		another := m != nil && h.PodUID != "" && m.Key.UID != h.PodUID && w.byUID(h.PodUID) == nil && !h.heard
		h.doubted = len(bearers) > 1 || another
		if m != nil && !another {
			return m, BoundByPeer
		}
	}
	return bindTo(w.byUID(h.PodUID), BoundByMemory)
}

func (w *world) judge(e *registry.Entry, h *history, m *pool.Member) {
	var ans pool.Answer
	in := false
	if m != nil {
		ans, in = m.Streams[e.Stream]
	}
	reported, application := w.owners(h.PodUID, e.Stream)
	h.Listed = in || h.Listed && !(h.reopened && !reported)
	ns, _, _ := strings.Cut(h.PodName, "/")
	unread := w.namespaces[ns] == unavailable
	h.left, h.reopened = h.Listed && !in && w.answered && !unread, false
	if w.answered && (!unread || h.State == 0) {
		switch {
		case in:
			h.State, h.Reason = uint8(stateOf(ans.State)), ans.Reason
		case h.Listed && !application:
			h.State, h.Reason = uint8(Inactive), ReasonLeft
		default:
			h.State, h.Reason = uint8(Active), ReasonApplication
		}
	}
	if w.answered {
		h.saved = h.Memory
	}
}

func (w *world) owners(uid string, k stream.Key) (reported, application bool) {
	var latest uint64
	for id, c := range w.claims {
		if c.uid == uid && uid != "" && c.report.HasOwners && id > latest {
			latest, reported, application = id, true, slices.Contains(c.report.Application, k)
		}
	}
	return reported, application
}

// restart forgets what is not stored.
func (w *world) restart() {
	w.answered = false
	w.claims = map[uint64]*mClaim{}
	w.waiting, w.watches = map[registry.Key]*mWaiter{}, map[Workload]int{}
	w.configs = map[string]map[stream.Key]uint32{}
	w.namespaces = map[string]syncState{own: syncing, "app": syncing}
	for _, h := range w.history {
		*h = history{Memory: h.saved, saved: h.saved}
	}
}

// assigned is nil where nothing may be said.
func (w *world) assigned(x Workload) *Assigned {
	found := w.named(x)
	stale := slices.Contains(slices.Collect(maps.Values(w.namespaces)), unavailable)
	if !w.answered || w.namespaces[x.Namespace] == unavailable || x.Addr.IsValid() && len(found) == 0 && stale {
		return nil
	}
	a := &Assigned{Known: len(found) > 0}
	services := map[stream.Key]map[pool.Ref]bool{}
	for _, m := range found {
		for _, addr := range m.Addrs {
			if !slices.Contains(a.Addrs, addr) {
				a.Addrs = append(a.Addrs, addr)
			}
			a.Shared = a.Shared || len(w.named(Workload{Addr: addr})) > 1
		}
		for k, ans := range m.Streams {
			for _, ref := range ans.Services {
				if ans.Assigned {
					put2(services, k, ref)
				}
			}
		}
	}
	slices.SortFunc(a.Addrs, netip.Addr.Compare)
	for _, k := range slices.SortedFunc(maps.Keys(services), stream.Compare) {
		a.Streams = append(a.Streams, Assignment{k, slices.SortedFunc(maps.Keys(services[k]), pool.Ref.Compare)})
	}
	return a
}

func put2[K, V comparable](m map[K]map[V]bool, k K, v V) {
	if m[k] == nil {
		m[k] = map[V]bool{}
	}
	m[k][v] = true
}
