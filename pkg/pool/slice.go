package pool

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// The address types of discovery/v1 that have addresses.
const (
	AddressTypeIPv4 = "IPv4"
	AddressTypeIPv6 = "IPv6"
)

// class is the conditions of one endpoint as one word, from weak to strong.
type class uint8

const (
	gone     class = iota // terminating and not serving
	notReady              // neither ready nor terminating
	draining              // serving and terminating
	ready                 // ready and not terminating
	classes
)

func classify(e Endpoint) class {
	is := func(condition *bool, unset bool) bool {
		if condition == nil {
			return unset
		}
		return *condition
	}
	terminating, serving := is(e.Terminating, false), is(e.Serving, true)
	switch {
	case terminating && serving:
		return draining
	case terminating:
		return gone
	case is(e.Ready, true):
		return ready
	default:
		return notReady
	}
}

func (c class) condition() Condition {
	switch c {
	case ready:
		return Ready
	case draining:
		return Draining
	default:
		return NotReady
	}
}

// reading is what one slice says of one member.
type reading struct {
	class class
	name  string
	addrs []netip.Addr // sorted, each once
	// target is whether an ExternalTarget is behind it, rather than a pod.
	target bool
	// origin is the Target's.
	origin Component
}

func (r reading) equal(o reading) bool {
	return r.class == o.class && r.name == o.name && r.target == o.target && r.origin == o.origin && slices.Equal(r.addrs, o.addrs)
}

// merge is for a member that one slice lists more than once.
func (r reading) merge(o reading) reading {
	return reading{max(r.class, o.class), firstName(r.name, o.name), union(r.addrs, o.addrs), r.target && o.target, cmp.Or(r.origin, o.origin)}
}

// firstName is the lesser of those that are not empty: the names of one UID do not differ, unless somebody errs.
func firstName(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return min(a, b)
}

func union(a, b []netip.Addr) []netip.Addr {
	all := slices.Concat(a, b)
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// content is what a slice says of its members, and what of it was refused.
type content struct {
	readings map[MemberKey]reading
	problems []string
	// plain is whether nothing was refused and no member is listed twice, so that endpoints can be read one by one.
	plain bool
}

// reader reads slices of a pool: what may join, which ExternalTargets there are, and the name of this cluster.
type reader struct {
	permission Permission
	targets    map[Ref]*Target
	cluster    string
}

// read reads some endpoints of a slice.
func (r reader) read(s *Slice, endpoints []Endpoint) content {
	if s.AddressType != AddressTypeIPv4 && s.AddressType != AddressTypeIPv6 {
		return content{problems: []string{fmt.Sprintf("EndpointSlice %s/%s: address type %.40q is not supported; use IPv4 or IPv6",
			s.Namespace, s.Name, s.AddressType)}}
	}
	c := content{readings: make(map[MemberKey]reading, len(endpoints)), plain: true}
	add := func(k MemberKey, now reading) {
		if before, ok := c.readings[k]; ok {
			now, c.plain = before.merge(now), false
		}
		c.readings[k] = now
	}
	for i, e := range endpoints {
		if err := r.readEndpoint(s, e, add); err != nil {
			c.plain = false
			c.problems = append(c.problems, fmt.Sprintf("EndpointSlice %s/%s: endpoint %d: %s", s.Namespace, s.Name, i, err))
		}
	}
	return c
}

// trim cuts off what is equal at the beginning and at the end.
func trim(a, b []Endpoint) ([]Endpoint, []Endpoint) {
	for len(a) > 0 && len(b) > 0 && a[0].equal(b[0]) {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && a[len(a)-1].equal(b[len(b)-1]) {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	return a, b
}

func (e Endpoint) equal(o Endpoint) bool {
	return slices.Equal(e.Addresses, o.Addresses) && equalTo(e.Target, o.Target) &&
		equalTo(e.Ready, o.Ready) && equalTo(e.Serving, o.Serving) && equalTo(e.Terminating, o.Terminating)
}

func equalTo[T comparable](a, b *T) bool {
	return a == b || a != nil && b != nil && *a == *b
}

// readEndpoint adds nothing of an endpoint with an error.
func (r reader) readEndpoint(s *Slice, e Endpoint, add func(MemberKey, reading)) error {
	addrs, err := readAddresses(s.AddressType, e.Addresses)
	if err != nil {
		return err
	}
	if e.Target != nil && e.Target.Kind == kindTarget {
		key, now, err := r.readTarget(s, e, addrs)
		if err != nil {
			return err
		}
		add(key, now)
		return nil
	}
	if e.Target != nil {
		key, err := podKey(s.Namespace, *e.Target)
		if err != nil {
			return err
		}
		add(key, reading{class: classify(e), name: e.Target.Name, addrs: addrs})
		return nil
	}
	if !r.permission.Externals {
		return fmt.Errorf("has no targetRef, and namespace %s has no grant for members without a pod", s.Namespace)
	}
	for i, a := range addrs {
		add(MemberKey{Namespace: s.Namespace, Addr: a}, reading{class: classify(e), addrs: addrs[i : i+1 : i+1]})
	}
	return nil
}

// podKey takes a reference without a namespace as one to the slice's own.
func podKey(namespace string, t TargetRef) (MemberKey, error) {
	switch {
	case t.Kind != "Pod":
		return MemberKey{}, fmt.Errorf("targetRef is of kind %.40q; only Pod and ExternalTarget are supported", t.Kind)
	case t.Namespace != "" && t.Namespace != namespace:
		return MemberKey{}, fmt.Errorf("targetRef is in namespace %.63q, not in that of the EndpointSlice", t.Namespace)
	case t.UID == "":
		return MemberKey{}, fmt.Errorf("targetRef %.63q has no uid", t.Name)
	}
	return MemberKey{Namespace: namespace, UID: t.UID}, nil
}

func readAddresses(addressType string, texts []string) ([]netip.Addr, error) {
	if len(texts) == 0 {
		return nil, fmt.Errorf("has no address")
	}
	addrs := make([]netip.Addr, 0, len(texts))
	for _, text := range texts {
		a, err := readAddress(addressType, text)
		if err != nil {
			return nil, err
		}
		addrs = append(addrs, a)
	}
	if len(addrs) > 1 {
		addrs = union(addrs, nil)
	}
	return addrs, nil
}

// readAddress refuses what the API server refuses too, and what would send traffic back to the load balancer itself.
func readAddress(addressType, text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	switch {
	case err != nil || a.Zone() != "":
		return a, fmt.Errorf("%.63q is no IP address", text)
	case a.Is4In6():
		return a, fmt.Errorf("%s is an IPv4 address written as IPv6", a)
	case a.Is4() != (addressType == AddressTypeIPv4):
		return a, fmt.Errorf("%s is not of the slice's address type %s", a, addressType)
	case a.IsLoopback() || a.IsUnspecified() || a.IsMulticast():
		return a, fmt.Errorf("%s is a loopback, unspecified or multicast address", a)
	}
	return a, nil
}
