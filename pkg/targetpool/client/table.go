package client

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
)

// Key names a target across restarts of the server, which numbers its registrations anew.
type Key struct {
	Stream string
	// Addresses is the set of the target's addresses: canonical, sorted, separated by commas.
	Addresses string
}

func (k Key) compare(o Key) int {
	return cmp.Or(cmp.Compare(k.Stream, o.Stream), cmp.Compare(k.Addresses, o.Addresses))
}

// Target is one target of a conduit.
type Target struct {
	Key Key
	// ID is the registration, unique within an epoch of the server.
	ID uint64
	*targetpoolv1.Target
}

func newTarget(id uint64, t *targetpoolv1.Target) *Target {
	return &Target{Key: keyOf(t), ID: id, Target: t}
}

func keyOf(t *targetpoolv1.Target) Key {
	addrs := make([]string, 0, len(t.GetAddresses()))
	for _, a := range t.GetAddresses() {
		addrs = append(addrs, canonical(a))
	}
	slices.Sort(addrs)
	return Key{Stream: t.GetStream(), Addresses: strings.Join(slices.Compact(addrs), ",")}
}

// canonical spells one address. What is none is quoted, so that it cannot be taken for a separator.
func canonical(address string) string {
	if p, err := netip.ParsePrefix(address); err == nil {
		return p.String()
	}
	if a, err := netip.ParseAddr(address); err == nil && a.Zone() == "" {
		return netip.PrefixFrom(a, a.BitLen()).String()
	}
	return strconv.Quote(address)
}

// alike says that a receiver has nothing to do about the difference. The time of the cause and the number of the
// registration come out anew after a restart of the server; addresses are equal by key.
func alike(a, b *Target) bool {
	return a.GetIdentifier() == b.GetIdentifier() && a.GetState() == b.GetState() &&
		a.GetReason() == b.GetReason() && a.GetPod() == b.GetPod()
}

// table is what a server said of one conduit. Changes go by ID, what comes out goes by key.
type table struct {
	ids map[uint64]*Target
	// keys is ids by key. Between two commits an address set may be registered anew before the old registration is
	// removed, so there can be several; the latest, which has the greatest ID, counts.
	keys map[Key][]*Target
	// held is what the handler was told last.
	held map[Key]*Target
}

func newTable() *table {
	return &table{ids: map[uint64]*Target{}, keys: map[Key][]*Target{}, held: map[Key]*Target{}}
}

// difference is what a commit changed, sorted by key or name.
type difference struct {
	set, removed []*Target
	// sources are the streams that are limited otherwise.
	sources []*targetpoolv1.StreamSources
}

// replace makes the table a snapshot.
func (t *table) replace(changes []*targetpoolv1.Change) difference {
	touched := make(map[Key]struct{}, len(t.held))
	for k := range t.held {
		touched[k] = struct{}{}
	}
	t.ids = make(map[uint64]*Target, len(changes))
	t.keys = make(map[Key][]*Target, len(changes))
	return t.commit(changes, touched)
}

// change applies a delta.
func (t *table) change(changes []*targetpoolv1.Change) difference {
	return t.commit(changes, map[Key]struct{}{})
}

func (t *table) commit(changes []*targetpoolv1.Change, touched map[Key]struct{}) difference {
	for _, c := range changes {
		if old := t.ids[c.GetId()]; old != nil {
			t.drop(old)
			touched[old.Key] = struct{}{}
		}
		if c.GetTarget() != nil {
			target := newTarget(c.GetId(), c.GetTarget())
			t.add(target)
			touched[target.Key] = struct{}{}
		}
	}
	return t.settle(touched)
}

func (t *table) add(target *Target) {
	t.ids[target.ID] = target
	t.keys[target.Key] = append(t.keys[target.Key], target)
}

func (t *table) drop(target *Target) {
	delete(t.ids, target.ID)
	rest := slices.DeleteFunc(t.keys[target.Key], func(o *Target) bool { return o == target })
	if len(rest) == 0 {
		delete(t.keys, target.Key)
		return
	}
	t.keys[target.Key] = rest
}

// settle brings held in line with keys and tells what that changed.
func (t *table) settle(touched map[Key]struct{}) difference {
	var d difference
	for key := range touched {
		was, now := t.held[key], latest(t.keys[key])
		if now == nil {
			if was != nil {
				delete(t.held, key)
				d.removed = append(d.removed, was)
			}
			continue
		}
		t.held[key] = now
		if was == nil || !alike(was, now) {
			d.set = append(d.set, now)
		}
	}
	slices.SortFunc(d.set, byKey)
	slices.SortFunc(d.removed, byKey)
	return d
}

func latest(targets []*Target) *Target {
	if len(targets) == 0 {
		return nil
	}
	return slices.MaxFunc(targets, func(a, b *Target) int { return cmp.Compare(a.ID, b.ID) })
}

func byKey(a, b *Target) int { return a.Key.compare(b.Key) }
