package client

import (
	"cmp"
	"maps"
	"slices"

	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
)

// limits are the streams of a conduit whose sources are limited, by name.
type limits map[string]*targetpoolv1.StreamSources

// after is what comes of a commit: of a snapshot, which says all, or of a delta.
func (l limits) after(snapshot bool, changes []*targetpoolv1.StreamSources) limits {
	next := limits{}
	if !snapshot {
		if len(changes) == 0 {
			return l
		}
		maps.Copy(next, l)
	}
	for _, c := range changes {
		if name := c.GetStream().GetName(); c.GetUnlimited() {
			delete(next, name)
		} else {
			next[name] = c
		}
	}
	return next
}

// since are the streams that are limited otherwise than before, sorted by name.
func (l limits) since(before limits) (changed []*targetpoolv1.StreamSources) {
	for name, now := range l {
		if last := before[name]; last == nil || !slices.Equal(last.GetPrefixes(), now.GetPrefixes()) {
			changed = append(changed, now)
		}
	}
	for name, last := range before {
		if l[name] == nil {
			changed = append(changed, &targetpoolv1.StreamSources{Stream: last.GetStream(), Unlimited: true})
		}
	}
	slices.SortFunc(changed, func(a, b *targetpoolv1.StreamSources) int {
		return cmp.Compare(a.GetStream().GetName(), b.GetStream().GetName())
	})
	return changed
}
