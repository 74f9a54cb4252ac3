// Package maglev is the lookup table of "Maglev: A Fast and Reliable Software Network Load Balancer" (Eisenbud et al., NSDI
// 2016, section 3.4): slots are spread evenly over the targets, few slots change hands when a target comes or goes, and the
// same set of targets gives the same table everywhere.
//
// Targets are known by their identifiers, numbers that they keep for as long as they are registered.
package maglev

import (
	"fmt"
	"slices"
)

// SlotsPerTarget is how many slots there are for each target that a stream may have, as in Meridio 1.x. The paper advises at
// least that many for shares that differ by no more than one per cent.
const SlotsPerTarget = 100

// Size is the number of slots for so many targets at most: the first prime from 100 times that many.
func Size(maxTargets int) int {
	m := max(maxTargets, 1) * SlotsPerTarget
	for !isPrime(m) {
		m++
	}
	return m
}

func isPrime(n int) bool {
	if n < 4 {
		return n > 1
	}
	for d := 2; d*d <= n; d++ {
		if n%d == 0 {
			return false
		}
	}
	return true
}

// Build returns the identifier that each of m slots belongs to. The order of the identifiers does not matter, nor that one is
// named twice. m must be a prime and not smaller than the number of identifiers, which is the caller's fault otherwise. No
// identifiers give a nil table.
func Build(m int, identifiers []uint32) []uint32 {
	ids := slices.Compact(slices.Sorted(slices.Values(identifiers)))
	if len(ids) == 0 {
		return nil
	}
	if !isPrime(m) || m < len(ids) {
		panic(fmt.Sprintf("maglev: a table of %d slots for %d targets", m, len(ids)))
	}
	walks := make([]walk, len(ids))
	for i, id := range ids {
		walks[i] = newWalk(m, id)
	}
	return fill(m, ids, walks)
}

// fill lets the targets take turns: each takes the next free slot of its own permutation.
func fill(m int, ids []uint32, walks []walk) []uint32 {
	table, taken := make([]uint32, m), make([]bool, m)
	for filled := 0; ; {
		for i := range walks {
			slot := walks[i].next(m)
			for taken[slot] {
				slot = walks[i].next(m)
			}
			table[slot], taken[slot] = ids[i], true
			if filled++; filled == m {
				return table
			}
		}
	}
}

// walk is a permutation of the slots: as m is a prime, every skip visits all of them.
type walk struct {
	at, skip int
}

func newWalk(m int, id uint32) walk {
	return walk{
		at:   int(mix(uint64(id)) % uint64(m)),
		skip: 1 + int(mix(uint64(id)|1<<32)%uint64(max(m-1, 1))),
	}
}

func (w *walk) next(m int) int {
	slot := w.at
	if w.at += w.skip; w.at >= m {
		w.at -= m
	}
	return slot
}

// mix is the finalizer of splitmix64 (Steele, Lea, Flood, 2014): neighbouring identifiers get unrelated permutations. Changing it
// moves every connection of every load balancer that runs another version.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
