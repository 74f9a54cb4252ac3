package nft

import (
	"fmt"
	"slices"

	"github.com/nordix/meridio-nsp/pkg/lb/maglev"
)

// tableCache keeps the tables that the last program had, so that a change of one stream costs nothing for the others.
type tableCache struct {
	last, next map[string][]uint32
}

func (c *tableCache) get(size int, identifiers []uint32) []uint32 {
	ids := slices.Sorted(slices.Values(identifiers))
	key := fmt.Sprint(size, ids)
	table, ok := c.last[key]
	if !ok {
		if table, ok = c.next[key]; !ok {
			table = maglev.Build(size, ids)
		}
	}
	if c.next == nil {
		c.next = map[string][]uint32{}
	}
	c.next[key] = table
	return table
}

// sweep forgets what was not asked for since the last sweep.
func (c *tableCache) sweep() { c.last, c.next = c.next, nil }
