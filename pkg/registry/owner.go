package registry

import "fmt"

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
	var err error
	return func(t *table) []Change {
		if err = r.foreign(t, k, c); err != nil {
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
