package registry

import (
	"fmt"
	"net/netip"
)

// owner is who has entries: a proven pod, or else a source address.
type owner struct {
	pod  string
	peer netip.Addr
}

func ownerOf(c Caller) owner {
	if c.PodUID != "" {
		return owner{pod: c.PodUID}
	}
	return owner{peer: c.Peer}
}

// tooMany refuses another entry to a caller who has as many as he may have.
func (r *Registry) tooMany(t *table, k Key, c Caller) error {
	who := ownerOf(c)
	if old := t.entries[k]; old != nil && ownerOf(old.Caller) == who {
		return nil
	}
	switch has := t.owned[who]; {
	case who.pod != "" && r.cfg.MostPerPod > 0 && has >= r.cfg.MostPerPod:
		return fmt.Errorf("%w: this pod has %d, which is the limit: unregister some first", ErrTooMany, has)
	case who.peer.IsValid() && !who.peer.IsLoopback() && r.cfg.MostPerPeer > 0 && has >= r.cfg.MostPerPeer:
		return fmt.Errorf("%w: %s has %d, which is the limit of one address: unregister some first", ErrTooMany, who.peer, has)
	}
	return nil
}

// foreign refuses to let a caller change what another pod has proven to be its own, unless that pod is gone.
func (r *Registry) foreign(t *table, k Key, c Caller) error {
	old := t.entries[k]
	if old == nil || old.Caller.PodUID == "" || old.Caller.PodUID == c.PodUID {
		return nil
	}
	if r.cfg.Gone != nil && r.cfg.Gone(old.Caller.PodUID) {
		return nil
	}
	return fmt.Errorf("%w: %s of stream %s is registered by pod %s", ErrForeign, k.Addrs, k.Stream, old.Caller.PodUID)
}

// owned is a change by a caller, who may not touch what is another pod's. The refusal is read when the operation is done.
func (r *Registry) owned(k Key, c Caller, apply func(*table) []Change) (guarded func(*table) []Change, refusal func() error) {
	return guard(apply, func(t *table) error { return r.foreign(t, k, c) })
}

// claiming is owned for a change after which the entry is the caller's.
func (r *Registry) claiming(k Key, c Caller, apply func(*table) []Change) (guarded func(*table) []Change, refusal func() error) {
	return guard(apply, func(t *table) error {
		if err := r.foreign(t, k, c); err != nil {
			return err
		}
		return r.tooMany(t, k, c)
	})
}

func guard(apply func(*table) []Change, refuse func(*table) error) (guarded func(*table) []Change, refusal func() error) {
	var err error
	return func(t *table) []Change {
		if err = refuse(t); err != nil {
			return nil
		}
		return apply(t)
	}, func() error { return err }
}

// alone does something for a wanted entry. Where its caller has one registration in a stream, those under other addresses go first, so
// that their identifiers are free for it, and who waits for these is asked only then.
func (t *table) alone(want Entry, c Caller, do func(Entry) []Change) []Change {
	var gone []Change
	if old := t.entries[want.Key]; c.Sole && (old == nil || old.Caller.PodUID != c.PodUID) {
		for _, e := range t.all() {
			if e.Caller.PodUID == c.PodUID && e.Stream == want.Stream && e.Type == want.Type && e.Key != want.Key {
				t.drop(e)
				gone = append(gone, Change{Old: e})
			}
		}
	}
	changes := append(do(want), gone...)
	for _, c := range gone {
		changes = append(changes, t.promote(c.Old)...)
	}
	return changes
}
