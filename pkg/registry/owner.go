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
