package relay

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/registry"
)

// position is a moment in the life of the namespace process's registry; see targetpool.v1.Position.
type position struct {
	Epoch         string
	Revision      uint64
	Registrations uint64
}

// covers tells whether whoever is at p sees everything up to q.
func (p position) covers(q position) bool { return p.Epoch == q.Epoch && p.Revision >= q.Revision }

// withdrawal is a removal that the namespace process does not know of yet.
type withdrawal struct {
	// entry is the registration as it was seen, seen the position then.
	entry *registry.Entry
	seen  position
	// done is the position from which on the namespace process's rows have it, once that is known.
	done *position
}

// caller is who registered through this process.
type caller struct {
	registry.Caller
	// heard is set where that was in this run.
	heard bool
}

// change sets the row of a registration by its ID, or removes it where row is nil.
type change struct {
	id  uint64
	row *engine.Row
}

// batch brings the mirror to a position; a snapshot replaces all rows and limits.
type batch struct {
	snapshot bool
	changes  []change
	limits   []limitChange
	at       position
}

// mirror is the state of a relay. It is pure: no goroutine, no clock of its own, no lock.
//
// What is shown is what the namespace process said last, without what was withdrawn since.
type mirror struct {
	trench string
	lists  *engine.Lists
	rev    uint64
	at     position
	// known is set once there is something to answer: rows that were stored, or a first commit.
	known bool

	rows map[registry.Key]*engine.Row
	ids  map[uint64]registry.Key
	// withdrawn hides rows; its keys may have none.
	withdrawn map[registry.Key]*withdrawal
	// callers has the rows whose last Register came through this process: their leases are watched over here, too.
	callers map[registry.Key]caller
	leases  *registry.Leases
	// restore has what the namespace process shall be told to keep, because it was refreshed while that was away.
	restore map[registry.Key]bool

	// limits are nil where they are not known.
	limits limits

	// before is what was shown under the keys that are being changed.
	before map[registry.Key]*engine.Row
	// dirty is what the store does not have as it is shown, forget what it has under keys of no use.
	dirty  map[registry.Key]bool
	forget []registry.Key
	// documents are others', to be stored.
	documents map[string][]byte
	// adopted is set once the namespace process has taken over what was here before it: from then on the store is a mirror.
	adopted bool
	// stale is set where the document that goes with the entries has to be written anew.
	stale bool
}

func newMirror(trench string, timeout time.Duration) *mirror {
	m := &mirror{
		trench:    trench,
		rows:      make(map[registry.Key]*engine.Row),
		ids:       make(map[uint64]registry.Key),
		withdrawn: make(map[registry.Key]*withdrawal),
		callers:   make(map[registry.Key]caller),
		leases:    registry.NewLeases(timeout),
		restore:   make(map[registry.Key]bool),
		before:    make(map[registry.Key]*engine.Row),
		dirty:     make(map[registry.Key]bool),
		documents: make(map[string][]byte),
	}
	m.lists = engine.NewLists(func(engine.Filter) bool { return m.known })
	return m
}

// shown is what watchers see under a key, or nil.
func (m *mirror) shown(k registry.Key) *engine.Row {
	if m.withdrawn[k] != nil {
		return nil
	}
	return m.rows[k]
}

// size is how many rows watchers see.
func (m *mirror) size() int {
	n := len(m.rows)
	for k := range m.withdrawn {
		if m.rows[k] != nil {
			n--
		}
	}
	return n
}

// touch comes before every change of what is shown.
func (m *mirror) touch(k registry.Key) {
	if _, ok := m.before[k]; !ok {
		m.before[k] = m.shown(k)
	}
}

// publish shows watchers what was changed, as one step.
func (m *mirror) publish() {
	for k, last := range m.before {
		if now := m.shown(k); now != last {
			m.lists.Note(last, now)
			m.dirty[k] = true
		}
	}
	clear(m.before)
	m.rev++
	m.lists.Publish(m.rev)
}

// apply takes what the namespace process says.
func (m *mirror) apply(b batch) {
	if b.snapshot {
		m.keepOnly(b.changes)
	}
	for _, c := range b.changes {
		if c.row != nil {
			m.set(c.row)
		} else if k, ok := m.ids[c.id]; ok {
			m.drop(k)
		}
	}
	m.stale = m.stale || m.at.Epoch != b.at.Epoch
	m.at = b.at
	for k, w := range m.withdrawn {
		// A commit of another epoch comes from a connection that is younger than the removal.
		if w.done != nil && (w.done.Epoch != m.at.Epoch || m.at.covers(*w.done)) {
			m.reveal(k)
		}
	}
	m.publish()
	m.open()
}

// open lets the lists answer.
func (m *mirror) open() {
	if !m.known {
		m.known = true
		m.lists.Open(m.rev)
	}
}

func (m *mirror) keepOnly(changes []change) {
	keep := make(map[registry.Key]bool, len(changes))
	for _, c := range changes {
		keep[c.row.Entry.Key] = true
	}
	for k := range m.rows {
		if !keep[k] {
			m.drop(k)
		}
	}
}

// set keeps the row that is there where nobody would see a difference.
func (m *mirror) set(row *engine.Row) {
	k, id := row.Entry.Key, row.Entry.ID
	m.touch(k)
	if old := m.rows[k]; old != nil {
		m.unindex(old)
		if old.Alike(row) {
			row = old
		}
	}
	m.rows[k], m.ids[id] = row, k
}

func (m *mirror) drop(k registry.Key) {
	m.touch(k)
	m.unindex(m.rows[k])
	delete(m.rows, k)
	m.disown(k)
}

// unindex frees the ID of a row, unless that is another key's by now.
func (m *mirror) unindex(row *engine.Row) {
	if m.ids[row.Entry.ID] == row.Entry.Key {
		delete(m.ids, row.Entry.ID)
	}
}

// disown says that nobody refreshes the registration through this process.
func (m *mirror) disown(k registry.Key) {
	delete(m.callers, k)
	delete(m.restore, k)
	m.leases.Drop(k)
}

// reveal shows again what the namespace process has under a key.
func (m *mirror) reveal(k registry.Key) {
	m.touch(k)
	delete(m.withdrawn, k)
	m.stale = true
}

// registered says that the namespace process has stored or refreshed a registration for a caller, and that its row has come.
func (m *mirror) registered(k registry.Key, c registry.Caller) {
	if m.withdrawn[k] != nil {
		m.reveal(k)
		m.publish()
	}
	if m.rows[k] != nil {
		m.own(k, c)
	}
}

func (m *mirror) own(k registry.Key, c registry.Caller) {
	if m.callers[k].Caller != c {
		m.dirty[k] = true
	}
	m.callers[k] = caller{c, true}
	m.leases.Renew(k)
}

// refresh answers a Register while the namespace process is away: it says yes where that changes nothing.
func (m *mirror) refresh(want registry.Entry) bool {
	row := m.shown(want.Key)
	if row == nil || m.foreign(want.Key, want.Caller) || !unchanged(row.Entry, &want) {
		return false
	}
	m.own(want.Key, want.Caller)
	m.restore[want.Key] = true
	return true
}

// foreign tells whether another pod than the caller's has proven a registration to be its own.
func (m *mirror) foreign(k registry.Key, c registry.Caller) bool {
	row := m.shown(k)
	if row == nil {
		return false
	}
	owner := cmp.Or(row.Entry.Caller.PodUID, m.callers[k].PodUID)
	return owner != "" && owner != c.PodUID
}

func unchanged(have, want *registry.Entry) bool {
	status := have.Status
	if have.Blocked {
		status = registry.Enabled
	}
	return want.Status == status && slices.Equal(want.IPs, have.IPs) && maps.Equal(want.Context, have.Context)
}

// withdraw removes registrations while the namespace process is away. What is not known is not there.
func (m *mirror) withdraw(keys ...registry.Key) (n int) {
	for _, k := range keys {
		row := m.shown(k)
		if row == nil {
			continue
		}
		m.touch(k)
		m.withdrawn[k] = &withdrawal{entry: row.Entry, seen: m.at}
		m.disown(k)
		m.stale = true
		n++
	}
	m.publish()
	return n
}

// tick counts the time since the last tick and returns the leases that are over.
func (m *mirror) tick(elapsed time.Duration) []registry.Key {
	if !m.leases.Advance(elapsed) {
		return nil
	}
	return m.leases.Due()
}

// lapse lets leases end while the namespace process is there: it knows better whether somebody refreshes elsewhere.
func (m *mirror) lapse(keys []registry.Key) {
	for _, k := range keys {
		m.disown(k)
	}
}

// pending are the withdrawals to be told, in the order of the registrations.
func (m *mirror) pending() []*withdrawal {
	var all []*withdrawal
	for _, w := range m.withdrawn {
		if w.done == nil {
			all = append(all, w)
		}
	}
	slices.SortFunc(all, func(a, b *withdrawal) int { return cmp.Compare(a.entry.ID, b.entry.ID) })
	return all
}

// told says that the namespace process has dealt with a withdrawal, as its rows show from a position on.
func (m *mirror) told(w *withdrawal, at position) {
	k := w.entry.Key
	if m.withdrawn[k] != w {
		return
	}
	w.done = &at
	if m.at.covers(at) {
		m.reveal(k)
		m.publish()
	}
}

// keep is what the namespace process shall be told to keep. A process that began anew may have lost what it had: then that is all
// that was registered through this one.
func (m *mirror) keep(epoch string) []registry.Restored {
	var rows []*engine.Row
	for k := range m.rows {
		again := m.restore[k] || m.callers[k].heard && epoch != m.at.Epoch
		if row := m.shown(k); row != nil && again {
			rows = append(rows, row)
		}
	}
	slices.SortFunc(rows, func(a, b *engine.Row) int { return cmp.Compare(a.Entry.ID, b.Entry.ID) })
	all := make([]registry.Restored, len(rows))
	for i, row := range rows {
		all[i] = registry.Restored{
			Target: targetOf(row.Entry), Caller: m.callers[row.Entry.Key].Caller, Reserved: row.Entry.Reserved,
		}
	}
	return all
}

// kept says that the namespace process keeps these.
func (m *mirror) kept(all []registry.Restored, namespace string) {
	for _, one := range all {
		if k, err := registry.KeyOf(one.Target, namespace); err == nil {
			delete(m.restore, k)
		}
	}
}

// heard takes a later count of registrations in, from an answer of the same run.
func (m *mirror) heard(at position) {
	if at.Epoch == m.at.Epoch {
		m.at.Registrations = max(m.at.Registrations, at.Registrations)
	}
}

// targetOf is what is registered, asked for as it was: a blocked entry asked to be enabled.
func targetOf(e *registry.Entry) registry.Target {
	t := registry.Target{
		Scope: e.Scope, Type: e.Type, Status: e.Status, Stream: e.Stream, IPs: e.IPs, Context: e.Context,
	}
	if e.Blocked {
		t.Status = registry.Enabled
	}
	return t
}
