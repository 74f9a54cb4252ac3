package registry

import (
	"cmp"
	"maps"
	"slices"

	"github.com/nordix/meridio-nsp/pkg/stream"
)

// slot is one identifier of one stream: at most one entry holds it, being enabled or reserved.
type slot struct {
	scope      string
	stream     stream.Key
	identifier uint32
}

// table is the state of the registry and its rules. It knows no clock, no store and no goroutine. What is done to it is
// staged: commit keeps it, rollback undoes it.
//
// Invariant: whoever waits for a slot waits because another entry holds it.
type table struct {
	entries map[Key]*Entry
	ids     map[uint64]*Entry
	holders map[slot]*Entry
	// owned counts the entries of each owner.
	owned map[owner]int
	// waiting has the blocked entries of each slot, lowest ID first.
	waiting map[slot][]*Entry
	blocked int
	nextID  uint64
	// before is what each key held that was touched since the last commit, nil for nothing; firstID is nextID then.
	before  map[Key]*Entry
	firstID uint64
	// registrations counts calls of register; registered has the count as of the last one of each key. They are not undone:
	// whoever registers is alive, whatever the store says.
	registrations uint64
	registered    map[Key]uint64
	reservations
}

func newTable(nextID uint64) *table {
	nextID = max(nextID, 1)
	return &table{
		entries: map[Key]*Entry{}, ids: map[uint64]*Entry{}, holders: map[slot]*Entry{}, owned: map[owner]int{}, waiting: map[slot][]*Entry{},
		nextID: nextID, before: map[Key]*Entry{}, firstID: nextID, registered: map[Key]uint64{},
		reservations: newReservations(),
	}
}

// restore puts stored entries back. Who held a slot holds it again; where two claim one, the lower ID has it.
func (t *table) restore(entries []*Entry) {
	for _, blocked := range []bool{false, true} {
		for _, e := range entries {
			if e.Blocked == blocked {
				t.restoreOne(*e)
			}
		}
	}
	t.commit()
}

func (t *table) restoreOne(e Entry) {
	if e.Blocked {
		e.Status, e.Blocked = Enabled, false
	}
	t.arbitrate(&e)
	t.nextID = max(t.nextID, e.ID+1)
	t.put(&e)
}

// register stores what is wanted, or refreshes it. The first change is that of the wanted entry itself.
func (t *table) register(want Entry) []Change {
	t.registrations++
	t.registered[want.Key] = t.registrations
	old := t.entries[want.Key]
	if old == nil {
		// Meridio's rule, which its TAPA relies on: a first registration is never active.
		want.ID, want.Status = t.nextID, Disabled
		t.nextID++
	} else {
		want.ID, want.Memory = old.ID, old.Memory
		want.Reserved = old.Reserved && old.Identifier == want.Identifier
		t.arbitrate(&want)
	}
	if old != nil && sameClaim(old, &want) && old.Caller == want.Caller {
		return []Change{{Old: old, New: old, Registered: true}}
	}
	e := &want
	t.put(e)
	t.content(e)
	return append([]Change{{Old: old, New: e, Registered: true}}, t.promote(old)...)
}

// unregister removes the entry of a key, if there is one, and who waits for one under that key.
func (t *table) unregister(k Key) []Change {
	t.withdraw(k)
	return t.remove([]Key{k}, false)
}

// expire removes entries whose lease ran out. Those that wait for their slots are asked only when all of them are gone,
// so that none is enabled just to be removed.
func (t *table) expire(keys []Key) []Change {
	return t.remove(keys, true)
}

func (t *table) remove(keys []Key, expired bool) []Change {
	var changes []Change
	for _, k := range keys {
		if old := t.entries[k]; old != nil {
			t.drop(old)
			changes = append(changes, Change{Old: old, Expired: expired})
		}
	}
	for _, c := range changes {
		changes = append(changes, t.promote(c.Old)...)
	}
	return changes
}

// remember keeps what was concluded of an entry; one that is gone is forgotten.
func (t *table) remember(id uint64, m Memory) {
	if old := t.ids[id]; old != nil && old.Memory != m {
		e := *old
		e.Memory = m
		t.put(&e)
	}
}

// arbitrate blocks an entry that asks to be enabled while another one holds its slot.
func (t *table) arbitrate(e *Entry) {
	s, ok := slotOf(e)
	if h := t.holders[s]; !ok || h == nil || h.Key == e.Key {
		return
	}
	e.Reserved = false
	if e.Status == Enabled {
		e.Status, e.Blocked = Disabled, true
	}
}

// promote gives the slot that left held, if that is free now, to the oldest entry that waits for it, else to whoever waits for
// any slot of the stream: the entry has no other way to become enabled.
func (t *table) promote(left *Entry) []Change {
	if left == nil {
		return nil
	}
	s, ok := slotOf(left)
	if !ok || t.holders[s] != nil {
		return nil
	}
	if len(t.waiting[s]) == 0 {
		return t.admit(s.stream)
	}
	old := t.waiting[s][0]
	e := *old
	e.Status, e.Blocked = Enabled, false
	t.put(&e)
	t.content(&e)
	return []Change{{Old: old, New: &e}}
}

// staged is what differs from the last commit: what must be written before anybody is told, and the entries for which
// later will do. Only the outcome counts: what was changed and changed back needs no write.
func (t *table) staged() (b Batch, later []*Entry) {
	for k, old := range t.before {
		switch now := t.entries[k]; {
		case now == old:
		case now == nil:
			b.Delete = append(b.Delete, k)
		case old == nil || old.ID != now.ID || !sameClaim(old, now):
			b.Put = append(b.Put, now)
		default:
			later = append(later, now)
		}
	}
	slices.SortFunc(b.Put, byID)
	return b, later
}

func (t *table) commit() {
	clear(t.before)
	t.firstID = t.nextID
	t.keepAnswers()
}

func (t *table) rollback() {
	for k := range t.before {
		if e := t.entries[k]; e != nil {
			t.unlink(e)
		}
	}
	for _, e := range t.before {
		if e != nil {
			t.link(e)
		}
	}
	clear(t.before)
	t.nextID = t.firstID
	t.dropAnswers()
}

// all entries, in the order of their IDs.
func (t *table) all() []*Entry {
	return slices.SortedFunc(maps.Values(t.entries), byID)
}

func (t *table) put(e *Entry) {
	t.stage(e.Key)
	if old := t.entries[e.Key]; old != nil {
		t.unlink(old)
	}
	t.link(e)
}

func (t *table) drop(e *Entry) {
	t.stage(e.Key)
	t.unlink(e)
}

func (t *table) stage(k Key) {
	if _, ok := t.before[k]; !ok {
		t.before[k] = t.entries[k]
	}
}

func (t *table) link(e *Entry) {
	t.entries[e.Key], t.ids[e.ID] = e, e
	t.owned[ownerOf(e.Caller)]++
	s, ok := slotOf(e)
	switch {
	case ok && e.Blocked:
		at, _ := slices.BinarySearchFunc(t.waiting[s], e, byID)
		t.waiting[s] = slices.Insert(t.waiting[s], at, e)
		t.blocked++
	case e.Holds():
		t.holders[s] = e
	}
}

func (t *table) unlink(e *Entry) {
	delete(t.entries, e.Key)
	delete(t.ids, e.ID)
	who := ownerOf(e.Caller)
	if t.owned[who]--; t.owned[who] == 0 {
		delete(t.owned, who)
	}
	s, ok := slotOf(e)
	switch {
	case ok && e.Blocked:
		t.blocked--
		t.waiting[s] = slices.DeleteFunc(t.waiting[s], func(w *Entry) bool { return w == e })
		if len(t.waiting[s]) == 0 {
			delete(t.waiting, s)
		}
	case ok && t.holders[s] == e:
		delete(t.holders, s)
		t.freed(s)
	}
}

// slotOf is the slot that an entry may hold or wait for.
func slotOf(e *Entry) (slot, bool) {
	return slot{e.Scope, e.Stream, e.Identifier}, e.Type == Default && e.Identifier != 0
}

// Holds tells whether the entry has its identifier for itself.
func (e *Entry) Holds() bool {
	_, ok := slotOf(e)
	return ok && (e.Status == Enabled || e.Reserved)
}

// sameClaim compares what clients see of two entries of one key, and what they rely on.
func sameClaim(a, b *Entry) bool {
	return a.Status == b.Status && a.Blocked == b.Blocked && a.Reserved == b.Reserved &&
		slices.Equal(a.IPs, b.IPs) && maps.Equal(a.Context, b.Context)
}

func byID(a, b *Entry) int { return cmp.Compare(a.ID, b.ID) }
