package conformance

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
)

// Guarantee is what a watch of nsp.v1 promises. There is no resuming: each message is a whole list. And a list may come twice, where
// something changed and changed back.
type Guarantee string

// Guarantees.
const (
	// Faithful: a target is shown as it was registered, and to those who asked for it.
	Faithful Guarantee = "faithful"
	// Reliable: what is shown was asked for before, and what was acknowledged or shown once is not lost, by a kill neither.
	Reliable Guarantee = "reliable"
	// Ordered: a watch never goes back to an earlier state.
	Ordered Guarantee = "ordered"
	// Atomic: each list is the state of one instant. Where it shows a write, it shows all that had been acknowledged before that began.
	Atomic Guarantee = "atomic"
	// ReadYourWrites: the first list shows all that was acknowledged before the watch began.
	ReadYourWrites Guarantee = "read your writes"
	// FirstAtOnce: a watch gets a list at once, also an empty one.
	FirstAtOnce Guarantee = "first at once"
	// LastWins: when nothing changes any more, every watch has got the last state.
	LastWins Guarantee = "last state wins"
)

// Violation is a guarantee that a history breaks.
type Violation struct {
	Guarantee Guarantee
	Detail    string
}

// String implements fmt.Stringer.
func (v Violation) String() string { return string(v.Guarantee) + ": " + v.Detail }

// bound is a version that a list must at least show, and why.
type bound struct {
	version int
	why     Guarantee
}

// checker goes through the lists of a history in the order in which they came. For each it looks for the earliest state that explains it. All constraints say
// that some version is no earlier than another, so that if there is any explanation, the earliest is one.
type checker struct {
	history *History
	// shown is the latest version of each target that is known to have been shown before, with the instant of the list.
	shown      []shownAt
	violations []Violation
}

type shownAt struct {
	received int
	versions map[string]int
}

// Check says which guarantees a history breaks.
func Check(h *History) []Violation {
	c := &checker{history: h}
	type told struct {
		w    *WatchRecord
		i    int
		view *View
	}
	var all []told
	last := make(map[*WatchRecord]map[string]int)
	for _, w := range h.Watches {
		for i, v := range w.Views {
			all = append(all, told{w, i, v})
		}
		if len(w.Views) == 0 && w.Open {
			c.violate(FirstAtOnce, "the watch that began at %d got nothing", w.Opened)
		}
	}
	slices.SortFunc(all, func(a, b told) int { return cmp.Compare(a.view.Received, b.view.Received) })
	for _, t := range all {
		versions, ok := c.explain(t.w, t.view, c.bounds(t.w, last[t.w]), t.view.Received)
		if ok && t.w.Open && t.i == len(t.w.Views)-1 {
			_, ok = c.explain(t.w, t.view, c.final(), never)
		}
		if !ok {
			return c.violations // what follows would follow from this
		}
		last[t.w] = versions
		c.shown = append(c.shown, shownAt{t.view.Received, versions})
	}
	return c.violations
}

// never is an instant after all others.
const never = math.MaxInt

func (c *checker) violate(g Guarantee, format string, args ...any) {
	c.violations = append(c.violations, Violation{g, fmt.Sprintf(format, args...)})
}

func raise(bounds map[string]bound, key string, version int, why Guarantee) (raised bool) {
	if version <= bounds[key].version {
		return false
	}
	bounds[key] = bound{version, why}
	return true
}

// bounds are the versions that a list of a watch has to show: those of the list before, and those acknowledged, or shown to anybody, before it began.
func (c *checker) bounds(w *WatchRecord, last map[string]int) map[string]bound {
	out := make(map[string]bound)
	for k, v := range last {
		raise(out, k, v, Ordered)
	}
	for k, writes := range c.history.Writes {
		for i, write := range writes {
			if write.Acked && write.Ended < w.Opened {
				raise(out, k, i+1, ReadYourWrites)
			}
		}
	}
	for _, s := range c.shown {
		if s.received < w.Opened {
			for k, v := range s.versions {
				raise(out, k, v, Reliable)
			}
		}
	}
	return out
}

// final are the versions that were acknowledged at last.
func (c *checker) final() map[string]bound {
	out := make(map[string]bound)
	for k, writes := range c.history.Writes {
		for i, w := range writes {
			if w.Acked {
				raise(out, k, i+1, LastWins)
			}
		}
	}
	return out
}

// explain finds the earliest versions that a list can show, as it was at an instant.
func (c *checker) explain(w *WatchRecord, v *View, bounds map[string]bound, at int) (map[string]int, bool) {
	versions := make(map[string]int)
	for k := range v.Targets {
		if c.history.Writes[k] == nil {
			c.violate(Faithful, "at %d: %s was never registered", v.Received, k)
			return nil, false
		}
	}
	for changed := true; changed; {
		changed = false
		for _, k := range slices.Sorted(maps.Keys(c.history.Writes)) {
			version, ok := c.version(w, v, k, bounds[k], at)
			if !ok {
				return nil, false
			}
			versions[k] = version
			changed = c.implied(k, version, bounds) || changed
		}
	}
	return versions, true
}

// implied raises the bounds of what had been acknowledged before a shown write began, and tells whether it did.
func (c *checker) implied(key string, version int, bounds map[string]bound) (raised bool) {
	if version == 0 {
		return false
	}
	began := c.history.Writes[key][version-1].Began
	for k, writes := range c.history.Writes {
		for i, w := range writes {
			if w.Acked && w.Ended < began {
				raised = raise(bounds, k, i+1, Atomic) || raised
			}
		}
	}
	return raised
}

// version is the earliest of a target, not before the bound, that looks as the list shows it.
func (c *checker) version(w *WatchRecord, v *View, key string, b bound, at int) (int, bool) {
	shown, visible := v.Targets[key]
	writes := c.history.Writes[key]
	if visible {
		switch {
		case shown.Version < 1 || shown.Version > len(writes) || writes[shown.Version-1].Began > v.Received:
			c.violate(Reliable, "at %d: version %d of %s had not been registered", v.Received, shown.Version, key)
		case !c.statuses(key, shown.Version)[shown.Status]:
			c.violate(Faithful, "at %d: version %d of %s is %v", v.Received, shown.Version, key, shown.Status)
		case !wants(w, shown):
			c.violate(Faithful, "at %d: %s is shown to a watch of %v %q", v.Received, key, w.Status, w.Stream)
		case shown.Version < b.version:
			c.violate(b.why, "at %d: version %d of %s is shown, which has to be at least %d", v.Received, shown.Version, key, b.version)
		default:
			return shown.Version, true
		}
		return 0, false
	}
	for version := b.version; version <= len(writes); version++ {
		if version > 0 && writes[version-1].Began > at {
			break
		}
		if c.mayBeHidden(w, key, version) {
			return version, true
		}
	}
	c.violate(cmp.Or(b.why, Reliable), "at %d: %s is missing, which has to be of version %d at least", v.Received, key, b.version)
	return 0, false
}

func wants(w *WatchRecord, s Shown) bool {
	return (w.Status == nspv1.Target_ANY || w.Status == s.Status) && (w.Stream == "" || w.Stream == s.Stream)
}

// mayBeHidden tells whether a list of the watch may leave out a target at a version.
func (c *checker) mayBeHidden(w *WatchRecord, key string, version int) bool {
	if version == 0 || c.history.Writes[key][version-1].Absent || w.Stream != "" && w.Stream != streamOfKey(key) {
		return true
	}
	for s := range c.statuses(key, version) {
		if w.Status != nspv1.Target_ANY && w.Status != s {
			return true
		}
	}
	return false
}

// statuses are those that a Register may have led to: the first one of a target is stored DISABLED.
func (c *checker) statuses(key string, version int) map[nspv1.Target_Status]bool {
	w := c.history.Writes[key][version-1]
	if w.Absent {
		return nil
	}
	there, gone := c.presence(key, version-1)
	out := make(map[nspv1.Target_Status]bool)
	if there {
		out[w.Status] = true
	}
	if gone {
		out[nspv1.Target_DISABLED] = true
	}
	return out
}

// presence tells whether a target may have been there, and whether it may not, after a write.
func (c *checker) presence(key string, version int) (there, gone bool) {
	gone = true
	for _, w := range c.history.Writes[key][:version] {
		if w.Acked {
			there, gone = !w.Absent, w.Absent
		} else {
			there, gone = there || !w.Absent, gone || w.Absent
		}
	}
	return there, gone
}
