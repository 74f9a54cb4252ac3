// Package sources is about who may use a stream, as prefixes of addresses.
package sources

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"go4.org/netipx"
)

// Nothing is the prefix from which no packet comes: Linux throws packets with this source away before anything can look at them
// (https://www.rfc-editor.org/rfc/rfc4291#section-2.5.3). A flow of Meridio 1.x without source subnets takes all sources, so one that
// shall take none needs a subnet.
var Nothing = netip.MustParsePrefix("::1/128")

// Set is a set of addresses. It is immutable; the zero Set, and a nil one, has none.
type Set struct {
	prefixes []netip.Prefix
}

// Of is the set of the addresses in all prefixes. Those that are invalid, or IPv4 written as IPv6, have none.
func Of(prefixes ...netip.Prefix) *Set {
	return &Set{prefixes: merge(prefixes)}
}

// Union is the set of the addresses in any of the sets.
func Union(sets ...*Set) *Set {
	var all []netip.Prefix
	for _, s := range sets {
		all = append(all, s.Prefixes()...)
	}
	return Of(all...)
}

// Prefixes are as few as possible, sorted, IPv4 first. They must not be modified.
func (s *Set) Prefixes() []netip.Prefix {
	if s == nil {
		return nil
	}
	return s.prefixes
}

// Strings are the prefixes as text.
func (s *Set) Strings() []string {
	var out []string
	for _, p := range s.Prefixes() {
		out = append(out, p.String())
	}
	return out
}

// Len is the number of prefixes.
func (s *Set) Len() int { return len(s.Prefixes()) }

// Equal tells whether both sets have the same addresses.
func (s *Set) Equal(o *Set) bool { return slices.Equal(s.Prefixes(), o.Prefixes()) }

// Limit are the source subnets of a flow, of which none means all, as far as they are in the set: Nothing where no address is left.
func (s *Set) Limit(subnets []netip.Prefix) []netip.Prefix {
	left := s.Prefixes()
	if len(subnets) > 0 {
		left = intersection(left, merge(subnets))
	}
	if len(left) == 0 {
		return []netip.Prefix{Nothing}
	}
	return left
}

func merge(prefixes []netip.Prefix) []netip.Prefix {
	var b netipx.IPSetBuilder
	for _, p := range prefixes {
		if p.IsValid() && !p.Addr().Is4In6() {
			b.AddPrefix(p)
		}
	}
	return built(&b)
}

func intersection(a, b []netip.Prefix) []netip.Prefix {
	var both, others netipx.IPSetBuilder
	for _, p := range a {
		both.AddPrefix(p)
	}
	for _, p := range b {
		others.AddPrefix(p)
	}
	set, err := others.IPSet()
	if err != nil {
		return nil // nobody gets in; it cannot be, as all prefixes are valid
	}
	both.Intersect(set)
	return built(&both)
}

func built(b *netipx.IPSetBuilder) []netip.Prefix {
	set, err := b.IPSet()
	if err != nil {
		return nil // as above
	}
	return set.Prefixes()
}

// Parse reads a CIDR, or a bare address as one of full length. Host bits do not count.
func Parse(text string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil || p.Addr().Is4In6() {
		return netip.Prefix{}, fmt.Errorf("%q is no address and no prefix", text)
	}
	return p.Masked(), nil
}

// ParseAll reads a list. What is not understood is in it as the invalid prefix, so that no list becomes an empty one, and the error
// says what that was.
func ParseAll(texts []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	var errs []error
	for _, text := range texts {
		p, err := Parse(text)
		out, errs = append(out, p), append(errs, err)
	}
	return out, errors.Join(errs...)
}
