package nft

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
)

// span is a range of keys, from lo and before hi, where an empty hi has no end. Keys are numbers in network order, so that they
// compare as strings. Members are any numbers that the caller gives a meaning.
type span struct {
	lo, hi  string
	members []int
}

// flatten makes ranges that may overlap into ranges that do not, each with all the members, sorted, of those that covered it.
// The kernel refuses overlapping ranges in one set.
func flatten(spans []span) []span {
	var bounds []string
	for _, s := range spans {
		bounds = append(bounds, s.lo)
		if s.hi != "" {
			bounds = append(bounds, s.hi)
		}
	}
	slices.Sort(bounds)
	bounds = slices.Compact(bounds)
	var flat []span
	for i, lo := range bounds {
		piece := span{lo: lo}
		if i+1 < len(bounds) {
			piece.hi = bounds[i+1]
		}
		for _, s := range spans {
			if s.lo <= lo && (s.hi == "" || lo < s.hi) {
				piece.members = append(piece.members, s.members...)
			}
		}
		if piece.members == nil {
			continue
		}
		slices.Sort(piece.members)
		piece.members = slices.Compact(piece.members)
		flat = appendMerged(flat, piece)
	}
	return flat
}

// appendMerged extends the last range where the next one is its continuation.
func appendMerged(flat []span, next span) []span {
	if n := len(flat); n > 0 && flat[n-1].hi == next.lo && slices.Equal(flat[n-1].members, next.members) {
		flat[n-1].hi = next.hi
		return flat
	}
	return append(flat, next)
}

// prefixSpan is the range of a prefix's addresses.
func prefixSpan(p netip.Prefix, members ...int) span {
	p = p.Masked()
	last := p.Addr().AsSlice()
	for bit := p.Bits(); bit < len(last)*8; bit++ {
		last[bit/8] |= 0x80 >> (bit % 8)
	}
	s := span{lo: string(p.Addr().AsSlice()), members: members}
	end, _ := netip.AddrFromSlice(last)
	if next := end.Next(); next.IsValid() {
		s.hi = string(next.AsSlice())
	}
	return s
}

// portSpan is a range of ports.
func portSpan(r PortRange, members ...int) span {
	s := span{lo: string(binary.BigEndian.AppendUint16(nil, r.From)), members: members}
	if r.To < 65535 {
		s.hi = string(binary.BigEndian.AppendUint16(nil, r.To+1))
	}
	return s
}

// everything says whether ranges leave no key out. zero is the least key.
func everything(flat []span, zero string) bool {
	return len(flat) == 1 && cmp.Compare(flat[0].lo, zero) == 0 && flat[0].hi == ""
}
