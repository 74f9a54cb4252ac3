package iface

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// kind is what an item is. Items are added in this order and removed in the reverse one: a packet that leaves a VIP finds its way
// from the first moment to the last.
type kind int

const (
	dead    kind = iota // the last route of the table: what finds no gateway must not leave by another interface
	route               // the default route of the table, by way of the gateways
	rule                // packets from a VIP look into the table
	anycast             // a local route: a range of VIPs is the pod's own
	address             // a VIP on the link
)

func (k kind) String() string {
	return [...]string{"blackhole route", "route", "rule", "local route", "address"}[k]
}

// item is one thing in the kernel.
type item struct {
	kind   kind
	prefix netip.Prefix
	// table is that of a route or rule.
	table int
	// priority is that of a rule.
	priority int
	// link is the index of the interface of an address or route.
	link int
	// via are the gateways of a route, sorted.
	via string
}

func (i item) String() string { return fmt.Sprintf("%s %s", i.kind, i.prefix) }

// layout is what the kernel has, or shall have.
type layout map[item]bool

// plan are the settings that turn VIPs into a layout.
type plan struct {
	gateways        []netip.Addr
	table, priority int
	// secondary and vips are the indices of the interface to the gateways and of the link that bears the VIPs; routes to VIPs
	// of a range lead to loopback.
	secondary, vips, loopback int
}

// layout is what makes the VIPs the pod's own and leads what is sent from them to the gateways. Where a family has no gateway its
// VIPs leave by the pod's other routes.
func (p plan) layout(vips []netip.Prefix) layout {
	l := layout{}
	for _, vip := range vips {
		if vip.IsSingleIP() {
			l[item{kind: address, prefix: vip, link: p.vips}] = true
		} else {
			l[item{kind: anycast, prefix: vip, link: p.loopback}] = true
		}
		via := p.via(vip.Addr())
		if via == "" {
			continue
		}
		l[item{kind: rule, prefix: vip, table: p.table, priority: p.priority}] = true
		l[item{kind: route, prefix: all(vip.Addr()), table: p.table, link: p.secondary, via: via}] = true
		l[item{kind: dead, prefix: all(vip.Addr()), table: p.table}] = true
	}
	return l
}

// via are the gateways of the family of an address.
func (p plan) via(of netip.Addr) string {
	var same []netip.Addr
	for _, g := range p.gateways {
		if g.Is4() == of.Is4() {
			same = append(same, g)
		}
	}
	return joinAddrs(same)
}

func joinAddrs(addrs []netip.Addr) string {
	slices.SortFunc(addrs, netip.Addr.Compare)
	var names []string
	for _, a := range slices.Compact(addrs) {
		names = append(names, a.String())
	}
	return strings.Join(names, ",")
}

// gateways are those of a route.
func (i item) gateways() []netip.Addr {
	var out []netip.Addr
	for name := range strings.SplitSeq(i.via, ",") {
		if a, err := netip.ParseAddr(name); err == nil {
			out = append(out, a)
		}
	}
	return out
}

// all is everything of the family of an address.
func all(of netip.Addr) netip.Prefix {
	if of.Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

// step is one change.
type step struct {
	item   item
	remove bool
}

// steps lead from what there is to what shall be. Routes and rules in have are all ours, as they bear our mark. Addresses bear
// none: only those that were made are removed. Where the whole wish is not known, nothing is removed.
func steps(have, want layout, made map[netip.Prefix]bool, partial bool) []step {
	var add, remove []step
	replaced := map[item]bool{}
	for i := range want {
		if !have[i] {
			add = append(add, step{item: i})
			replaced[i.place()] = true
		}
	}
	for i := range have {
		switch {
		case want[i], partial, i.kind == address && !made[i.prefix]:
		case i.kind == route && replaced[i.place()]: // Replacing it leaves no gap.
		default:
			remove = append(remove, step{item: i, remove: true})
		}
	}
	slices.SortFunc(add, func(a, b step) int { return a.item.compare(b.item) })
	slices.SortFunc(remove, func(a, b step) int { return b.item.compare(a.item) })
	return append(add, remove...)
}

// place is where a route is, wherever it leads.
func (i item) place() item { return item{kind: i.kind, prefix: i.prefix, table: i.table} }

func (i item) compare(o item) int {
	return cmp.Or(cmp.Compare(i.kind, o.kind), i.prefix.Addr().Compare(o.prefix.Addr()), cmp.Compare(i.prefix.Bits(), o.prefix.Bits()),
		cmp.Compare(i.table, o.table), cmp.Compare(i.priority, o.priority), cmp.Compare(i.link, o.link), cmp.Compare(i.via, o.via))
}

// usable are the VIPs, sorted, each once, that can be the pod's own, and errors about the others. What holds a gateway or an address
// of the secondary interface would cut the pod off.
func usable(vips []netip.Prefix, taken []netip.Addr) (good []netip.Prefix, bad []error) {
	set := map[netip.Prefix]bool{}
	for _, vip := range vips {
		vip = vip.Masked()
		a := vip.Addr()
		switch {
		case vip.Bits() == 0, a.IsLoopback(), a.IsMulticast(), a.IsLinkLocalUnicast(), a.IsUnspecified():
			bad = append(bad, fmt.Errorf("the VIP %s is no address that a pod can bear", vip))
		case slices.ContainsFunc(taken, vip.Contains):
			bad = append(bad, fmt.Errorf("the VIP %s holds a gateway or an address of the secondary interface", vip))
		default:
			set[vip] = true
		}
	}
	return slices.SortedFunc(maps.Keys(set), netip.Prefix.Compare), bad
}
