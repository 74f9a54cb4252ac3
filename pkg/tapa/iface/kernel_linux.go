package iface

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	vns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// protocolID marks routes and rules as ours (rtm_protocol), besides the numbers of /etc/iproute2/rt_protos and that of the load balancer.
const protocolID = 110

// deadMetric lets any other route of the table come first.
const deadMetric = 1<<31 - 1

// forever is the lifetime of an address that does not expire (INFINITY_LIFE_TIME).
const forever = 0xFFFFFFFF

// system is the kernel of one network namespace.
type system struct{ nl *netlink.Handle }

// openKernel works in the namespace of an open file, or in that of the process where it is 0.
func openKernel(netns int) (kernel, error) {
	handle := vns.None()
	if netns != 0 {
		handle = vns.NsHandle(netns)
	}
	nl, err := netlink.NewHandleAt(handle, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening a connection to the kernel: %w", err)
	}
	return &system{nl}, nil
}

func (s *system) close() { s.nl.Close() }

// link implements kernel.
func (s *system) link(name string) (int, error) {
	l, err := s.nl.LinkByName(name)
	if err != nil {
		return 0, fmt.Errorf("the interface %s: %w", name, err)
	}
	return l.Attrs().Index, nil
}

// addresses implements kernel.
func (s *system) addresses(link int) ([]netip.Prefix, error) {
	return s.list(link, unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED)
}

// list is all addresses that have none of the flags.
func (s *system) list(link, without int) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, family := range families {
		list, err := s.nl.AddrList(index(link), family)
		if err != nil {
			return nil, fmt.Errorf("listing addresses: %w", err)
		}
		for _, a := range list {
			if p, ok := prefixOf(a.IPNet); ok && a.Flags&without == 0 {
				out = append(out, p)
			}
		}
	}
	return out, nil
}

var families = []int{netlink.FAMILY_V4, netlink.FAMILY_V6}

func index(link int) netlink.Link {
	attrs := netlink.NewLinkAttrs()
	attrs.Index = link
	return &netlink.GenericLink{LinkAttrs: attrs}
}

func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	a, ok := netip.AddrFromSlice(n.IP)
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(a.Unmap(), ones), ok
}

// read implements kernel.
func (s *system) read(link int) (layout, error) {
	l := layout{}
	on, err := s.list(link, 0)
	if err != nil {
		return nil, err
	}
	for _, p := range on {
		l[item{kind: address, prefix: p, link: link}] = true
	}
	for _, family := range families {
		rules, err := s.nl.RuleList(family)
		if err != nil {
			return nil, fmt.Errorf("listing rules: %w", err)
		}
		for _, r := range rules {
			if p, ok := prefixOf(r.Src); ok && r.Protocol == protocolID {
				l[item{kind: rule, prefix: p, table: r.Table, priority: r.Priority}] = true
			}
		}
		filter := &netlink.Route{Table: unix.RT_TABLE_UNSPEC, Protocol: protocolID}
		routes, err := s.nl.RouteListFiltered(family, filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
		if err != nil {
			return nil, fmt.Errorf("listing routes: %w", err)
		}
		for _, r := range routes {
			l[routeItem(family, r)] = true
		}
	}
	return l, nil
}

func routeItem(family int, r netlink.Route) item {
	p, ok := prefixOf(r.Dst)
	if !ok {
		p = all(netip.IPv4Unspecified())
		if family == netlink.FAMILY_V6 {
			p = all(netip.IPv6Unspecified())
		}
	}
	switch r.Type {
	case unix.RTN_BLACKHOLE:
		return item{kind: dead, prefix: p, table: r.Table}
	case unix.RTN_LOCAL:
		return item{kind: anycast, prefix: p, link: r.LinkIndex}
	}
	i := item{kind: route, prefix: p, table: r.Table, link: r.LinkIndex}
	var via []netip.Addr
	for _, hop := range append([]*netlink.NexthopInfo{{Gw: r.Gw, LinkIndex: r.LinkIndex}}, r.MultiPath...) {
		if a, ok := netip.AddrFromSlice(hop.Gw); ok {
			via, i.link = append(via, a.Unmap()), hop.LinkIndex
		}
	}
	i.via = joinAddrs(via)
	return i
}

// apply implements kernel. What is there already, or gone already, is no error.
func (s *system) apply(st step) error {
	var err error
	switch st.item.kind {
	case address:
		err = s.applyAddress(st)
	case rule:
		err = s.applyRule(st)
	default:
		err = s.applyRoute(st)
	}
	doing := "adding"
	harmless := []error{unix.EEXIST}
	if st.remove {
		doing, harmless = "removing", []error{unix.ENOENT, unix.ESRCH, unix.EADDRNOTAVAIL, unix.ENODEV}
	}
	for _, e := range harmless {
		if errors.Is(err, e) {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("%s the %s: %w", doing, st.item, err)
	}
	return nil
}

// applyAddress adds a VIP at once usable, and of IPv6 as deprecated: no connection that the pod opens shall come from it unless bound.
func (s *system) applyAddress(st step) error {
	a := &netlink.Addr{IPNet: network(st.item.prefix)}
	if st.remove {
		return s.nl.AddrDel(index(st.item.link), a)
	}
	if st.item.prefix.Addr().Is6() {
		a.Flags, a.ValidLft = unix.IFA_F_NODAD, forever
	}
	return s.nl.AddrAdd(index(st.item.link), a)
}

func (s *system) applyRule(st step) error {
	r := netlink.NewRule()
	r.Src, r.Table, r.Priority, r.Protocol = network(st.item.prefix), st.item.table, st.item.priority, protocolID
	r.Family = familyOf(st.item.prefix.Addr())
	if st.remove {
		return s.nl.RuleDel(r)
	}
	return s.nl.RuleAdd(r)
}

func (s *system) applyRoute(st step) error {
	if st.remove {
		return s.nl.RouteDel(st.item.route())
	}
	return s.nl.RouteReplace(st.item.route())
}

func (i item) route() *netlink.Route {
	r := &netlink.Route{Dst: network(i.prefix), Table: i.table, Protocol: protocolID, Family: familyOf(i.prefix.Addr())}
	switch i.kind {
	case dead:
		r.Type, r.Priority = unix.RTN_BLACKHOLE, deadMetric
	case anycast:
		r.Type, r.Table, r.Scope, r.LinkIndex = unix.RTN_LOCAL, unix.RT_TABLE_LOCAL, netlink.SCOPE_HOST, i.link
	default:
		for _, a := range i.gateways() {
			r.MultiPath = append(r.MultiPath, &netlink.NexthopInfo{Gw: a.AsSlice(), LinkIndex: i.link})
		}
	}
	return r
}

func familyOf(a netip.Addr) int {
	if a.Is4() {
		return netlink.FAMILY_V4
	}
	return netlink.FAMILY_V6
}

func network(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
