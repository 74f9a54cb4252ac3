package registry

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Limits bound one registration of type Default.
type Limits struct {
	// Context is the size of the context in bytes, keys and values together; 0 means 8 KiB.
	Context int
	// Addresses is the number of addresses; 0 means 4096. (Meridio 1.x takes 2000 without complaint.)
	Addresses int
}

func (l Limits) withDefaults() Limits {
	return Limits{Context: cmp.Or(l.Context, 8<<10), Addresses: cmp.Or(l.Addresses, 4096)}
}

// identifierKey is where a target states its number in the stream; the name is Meridio's.
const identifierKey = "identifier"

// KeyOf is the key under which a target is stored; own is the namespace of every stream here. The error wraps ErrInvalid.
func KeyOf(t Target, own string) (Key, error) {
	k, _, err := canonical(t, own)
	return k, err
}

// ParseAddress reads an IP or CIDR; a bare address gets its full length, host bits stay, and an IPv4 address that is
// written as an IPv6 one is the IPv4 address.
func ParseAddress(s string) (netip.Prefix, error) {
	if strings.IndexByte(s, '/') < 0 {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return netip.Prefix{}, err
		}
		if a.Zone() != "" {
			return netip.Prefix{}, fmt.Errorf("address %q has a zone", s)
		}
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return netip.Prefix{}, err
	}
	const mapped = 96 // ::ffff:0:0/96, RFC 4291 section 2.5.5.2
	if p.Addr().Is4In6() && p.Bits() >= mapped {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-mapped)
	}
	return p, nil
}

// newEntry is the entry that the target asks for, its status as asked and without ID.
func newEntry(t Target, c Caller, own string, l Limits) (Entry, error) {
	k, prefixes, err := canonical(t, own)
	if err != nil {
		return Entry{}, err
	}
	c.Sole = false
	e := Entry{
		Key: k, IPs: slices.Clone(t.IPs), Context: maps.Clone(t.Context), Prefixes: prefixes,
		Status: t.Status, Identifier: identifier(t.Context), Caller: c,
	}
	return e, validate(t, l)
}

// derive fills in the fields that a store does not keep.
func derive(e Entry) (*Entry, error) {
	t := Target{Scope: e.Scope, Type: e.Type, Stream: e.Stream, IPs: e.IPs}
	k, prefixes, err := canonical(t, e.Stream.Namespace)
	if err != nil {
		return nil, err
	}
	if k != e.Key {
		return nil, fmt.Errorf("%w %s: stored under another key", ErrInvalid, describe(t))
	}
	e.Prefixes, e.Identifier = prefixes, identifier(e.Context)
	return &e, nil
}

func canonical(t Target, own string) (Key, []netip.Prefix, error) {
	k := Key{Scope: cmp.Or(t.Stream.Trench, t.Scope), Type: t.Type, Stream: t.Stream}
	k.Stream.Namespace = cmp.Or(k.Stream.Namespace, own)
	if k.Stream.Namespace != own {
		return Key{}, nil, invalid(t, "its stream is in another namespace; register it with the NSP of that namespace")
	}
	if t.Type != Default {
		k.Addrs = nameSet(t.IPs)
		return k, nil, nil
	}
	if t.Stream.Trench == "" || t.Stream.Conduit == "" || t.Stream.Name == "" {
		return Key{}, nil, invalid(t, "name its stream, the stream's conduit and the conduit's trench")
	}
	prefixes, err := parse(t)
	if err != nil {
		return Key{}, nil, err
	}
	k.Addrs = prefixSet(prefixes)
	return k, prefixes, nil
}

// parse is the set of addresses, sorted.
func parse(t Target) ([]netip.Prefix, error) {
	if len(t.IPs) == 0 {
		return nil, invalid(t, "it has no address; send at least one IP or CIDR")
	}
	ps := make([]netip.Prefix, 0, len(t.IPs))
	for _, s := range t.IPs {
		p, err := ParseAddress(s)
		if err != nil {
			return nil, invalid(t, "%.60q is no address; send an IP or CIDR without zone, as 172.16.1.1/24", s)
		}
		ps = append(ps, p)
	}
	slices.SortFunc(ps, netip.Prefix.Compare)
	return slices.Compact(ps), nil
}

func prefixSet(ps []netip.Prefix) string {
	b := make([]byte, 0, len(ps)*20)
	for i, p := range ps {
		if i > 0 {
			b = append(b, ',')
		}
		b = p.AppendTo(b)
	}
	return string(b)
}

// nameSet quotes every name, so that no separator inside one can make two sets look alike.
func nameSet(names []string) string {
	set := make([]string, 0, len(names))
	for _, s := range names {
		if p, err := ParseAddress(s); err == nil {
			s = p.String()
		}
		set = append(set, strconv.Quote(s))
	}
	slices.Sort(set)
	return strings.Join(slices.Compact(set), ",")
}

// maxName bounds each name in bytes, those of frontends included: nothing in Kubernetes or DNS has a longer one.
const maxName = 253

// moreForOthers is how many times as much context as a target of type Default others may have.
const moreForOthers = 8

// validate checks what is not part of the key, and that nothing is larger than it has reason to be.
func validate(t Target, l Limits) error {
	if n := max(len(t.Scope), len(t.Stream.Trench), len(t.Stream.Conduit), len(t.Stream.Name)); n > maxName {
		return invalid(t, "a name in it has %d characters; at most %d are kept", n, maxName)
	}
	size, ok := 0, utf8.ValidString(t.Scope+t.Stream.Trench+t.Stream.Conduit+t.Stream.Name)
	for k, v := range t.Context {
		size += len(k) + len(v)
		ok = ok && utf8.ValidString(k) && utf8.ValidString(v)
	}
	longest, most := 0, l.Context
	if t.Type != Default && most < math.MaxInt/moreForOthers {
		most *= moreForOthers
	}
	for _, s := range t.IPs {
		ok = ok && utf8.ValidString(s)
		longest = max(longest, len(s))
	}
	switch {
	case !ok:
		return invalid(t, "a string in it is not UTF-8")
	case longest > maxName:
		return invalid(t, "an address or host name in it has %d characters; at most %d are kept", longest, maxName)
	case size > most:
		return invalid(t, "its context has %d bytes; at most %d are kept", size, most)
	case len(t.IPs) > l.Addresses:
		return invalid(t, "it has %d addresses; at most %d are kept", len(t.IPs), l.Addresses)
	}
	return nil
}

// identifier is the number in the context, 0 where there is none that could be one.
func identifier(context map[string]string) uint32 {
	n, err := strconv.ParseUint(context[identifierKey], 10, 32)
	if err != nil {
		return 0
	}
	return uint32(n)
}

func invalid(t Target, format string, args ...any) error {
	return fmt.Errorf("%w %s: %s", ErrInvalid, describe(t), fmt.Sprintf(format, args...))
}

// describe names a target in a message, whatever its size.
func describe(t Target) string {
	const shown = 4
	ips, more := t.IPs, ""
	if len(ips) > shown {
		ips, more = ips[:shown], fmt.Sprintf(" and %d more", len(t.IPs)-shown)
	}
	return fmt.Sprintf("%.200q%s of stream %.200q", ips, more, t.Stream)
}
