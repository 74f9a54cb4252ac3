package pool

import (
	"slices"
	"strings"
)

// Slices are the slices that name a Service, counted or not, sorted by name. It is for inspection.
func (t *Table) Slices(r Ref) []*Slice {
	p := t.pools[r]
	if p == nil {
		return nil
	}
	var all []*Slice
	for s := range p.slices {
		if s.last != nil {
			all = append(all, s.last)
		}
	}
	slices.SortFunc(all, func(a, b *Slice) int { return strings.Compare(a.Name, b.Name) })
	return all
}
