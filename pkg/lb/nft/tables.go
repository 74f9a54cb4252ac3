package nft

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"

	"github.com/nordix/meridio-nsp/pkg/lb/maglev"
)

// tableCache keeps the tables that the last program had, so that a change of one stream costs nothing for the others. That a table is the
// same one tells those who compare that it has not changed.
type tableCache struct {
	last, next map[string][]uint32
}

// member is a target with its mark.
type member struct{ identifier, mark uint32 }

// get returns the mark of each slot.
func (c *tableCache) get(size int, members []member) []uint32 {
	slices.SortFunc(members, func(a, b member) int { return int(a.identifier) - int(b.identifier) })
	key := fmt.Sprint(size, members)
	table, ok := c.last[key]
	if !ok {
		if table, ok = c.next[key]; !ok {
			table = marked(size, members)
		}
	}
	if c.next == nil {
		c.next = map[string][]uint32{}
	}
	c.next[key] = table
	return table
}

func marked(size int, members []member) []uint32 {
	ids, marks := make([]uint32, len(members)), make(map[uint32]uint32, len(members))
	for i, m := range members {
		ids[i], marks[m.identifier] = m.identifier, m.mark
	}
	table := make([]uint32, size)
	for slot, id := range maglev.Build(size, ids) {
		table[slot] = marks[id]
	}
	return table
}

// sweep forgets what was not asked for since the last sweep.
func (c *tableCache) sweep() { c.last, c.next = c.next, nil }

// classCache keeps what the last program had for finding flows, which seldom changes.
type classCache struct {
	vips  []netip.Prefix
	flows []Flow
	part  *Program
}

// get classifies anew where VIPs or flows are others than the last time. It keeps copies, as what it is given is the caller's.
func (c *classCache) get(desired *Desired, flows []*Flow) *Program {
	copies := make([]Flow, len(flows))
	for i, f := range flows {
		copies[i] = *f
	}
	if c.part != nil && slices.Equal(c.vips, desired.VIPs) && reflect.DeepEqual(c.flows, copies) {
		return c.part
	}
	part := newProgram()
	part.addBase()
	(&classifier{part, flows, map[string]string{}}).classify(desired)
	c.part, c.vips, c.flows = part, slices.Clone(desired.VIPs), copies
	return part
}
