package nft

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	vns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// RouteProtocol marks the routes and rules of the load balancer (rtm_protocol); nothing else is touched.
const RouteProtocol = 109

// blackholeMetric lets any other route of the table come first.
const blackholeMetric = 1<<31 - 1

// hop is the way to a target in one family. The routing table has the number of the mark.
type hop struct {
	mark   uint32
	family family
}

// hops is what the kernel has of ways: the next hop of the route, whether the blackhole behind it is there, and how many rules lead to it.
type hops struct {
	via       map[hop]netip.Addr
	blackhole map[hop]bool
	rules     map[hop]int
	// skips are the rules that lead past a group of rules; see groupSize.
	skips map[skip]bool
}

// groupSize is how many marks there are in a group. The kernel tries rules one after the other, so before each group stands one that
// leads packets with the marks of other groups past it.
const groupSize = 16

// skip is the rule before a group.
type skip struct {
	group  uint32
	family family
}

func newHops() *hops {
	return &hops{via: map[hop]netip.Addr{}, blackhole: map[hop]bool{}, rules: map[hop]int{}, skips: map[skip]bool{}}
}

// all are the ways of which there is anything.
func (h *hops) all() map[hop]bool {
	out := map[hop]bool{}
	for k := range h.via {
		out[k] = true
	}
	for k := range h.blackhole {
		out[k] = true
	}
	for k := range h.rules {
		out[k] = true
	}
	return out
}

// router works on routes and rules of one network namespace.
type router struct {
	nl       *netlink.Handle
	priority int
	base     uint32
	owns     func(mark uint32) bool
}

// newRouter works in the namespace of an open file, or in that of the process where it is 0.
func newRouter(netns, priority int, base uint32, owns func(uint32) bool) (*router, error) {
	handle := vns.None()
	if netns != 0 {
		handle = vns.NsHandle(netns)
	}
	nl, err := netlink.NewHandleAt(handle, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening a connection for routes: %w", err)
	}
	return &router{nl, priority, base, owns}, nil
}

func (r *router) close() { r.nl.Close() }

// read lists what the load balancer has.
func (r *router) read() (*hops, error) {
	h := newHops()
	for _, f := range families {
		rules, err := r.nl.RuleList(f.netlink())
		if err != nil {
			return nil, fmt.Errorf("listing rules: %w", err)
		}
		for _, rule := range rules {
			r.take(h, f, rule)
		}
		filter := &netlink.Route{Table: unix.RT_TABLE_UNSPEC, Protocol: RouteProtocol}
		routes, err := r.nl.RouteListFiltered(f.netlink(), filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
		if err != nil {
			return nil, fmt.Errorf("listing routes: %w", err)
		}
		for _, route := range routes {
			h.take(f, route, r.owns)
		}
	}
	return h, nil
}

func (r *router) take(h *hops, f family, rule netlink.Rule) {
	if rule.Protocol != RouteProtocol || !r.owns(rule.Mark) {
		return
	}
	switch k, s := (hop{rule.Mark, f}), (skip{r.group(rule.Mark), f}); {
	case rule.Invert && rule.Priority == r.skip(s).Priority:
		h.skips[s] = true
	case !rule.Invert && rule.Priority == r.rule(k).Priority && uint32(rule.Table) == rule.Mark:
		h.rules[k]++
	}
}

func (r *router) group(mark uint32) uint32 { return (mark - r.base) / groupSize }

func (h *hops) take(f family, route netlink.Route, owns func(uint32) bool) {
	k := hop{uint32(route.Table), f}
	if !owns(k.mark) {
		return
	}
	if route.Type == unix.RTN_BLACKHOLE {
		h.blackhole[k] = true
		return
	}
	if via, ok := netip.AddrFromSlice(route.Gw); ok {
		h.via[k] = via.Unmap()
	}
}

// errPending is a target that no link leads to yet.
var errPending = errors.New("no link leads to its address")

// ensure makes the way to a target, if it is not there: the blackhole, so that a packet never falls through to another table, then
// the route, then the rule. The kernel takes a next hop only where a link leads to it directly.
func (r *router) ensure(h *hops, k hop, via netip.Addr) error {
	if !h.blackhole[k] {
		if err := r.nl.RouteReplace(k.dead()); err != nil {
			return fmt.Errorf("adding the blackhole of table %d: %w", k.mark, err)
		}
		h.blackhole[k] = true
	}
	if h.via[k] != via {
		if err := r.lead(h, k, via); err != nil {
			return err
		}
	}
	if h.rules[k] == 0 {
		if err := r.nl.RuleAdd(r.rule(k)); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("adding the rule of mark %d: %w", k.mark, err)
		}
		h.rules[k] = 1
	}
	// Past a group the kernel goes to the rule before the next one, so that must be there too. Until it is, the rules are tried one by one.
	for _, s := range []skip{{r.group(k.mark), k.family}, {r.group(k.mark) + 1, k.family}} {
		if h.skips[s] || !r.owns(r.skip(s).Mark) {
			continue
		}
		if err := r.nl.RuleAdd(r.skip(s)); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("adding the rule before group %d: %w", s.group, err)
		}
		h.skips[s] = true
	}
	return nil
}

// tidy takes away the rules before groups that are past the last one in use.
func (r *router) tidy(h *hops) error {
	last := map[family]uint32{}
	for k := range h.rules {
		last[k.family] = max(last[k.family], r.group(k.mark)+1)
	}
	for s := range h.skips {
		if end, used := last[s.family]; used && s.group <= end {
			continue
		}
		if err := r.nl.RuleDel(r.skip(s)); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("deleting the rule before group %d: %w", s.group, err)
		}
		delete(h.skips, s)
	}
	return nil
}

// lead replaces the route. Where there is no way to the new address the old one goes all the same.
func (r *router) lead(h *hops, k hop, via netip.Addr) error {
	err := r.nl.RouteReplace(k.route(via))
	if err == nil {
		h.via[k] = via
		return nil
	}
	if old, ok := h.via[k]; ok {
		if err := r.nl.RouteDel(k.route(old)); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("deleting the route to %v: %w", old, err)
		}
		delete(h.via, k)
	}
	if slices.ContainsFunc([]error{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EINVAL, unix.ENETDOWN, unix.ENODEV}, func(e error) bool { return errors.Is(err, e) }) {
		return errPending
	}
	return fmt.Errorf("adding the route to %v: %w", via, err)
}

// remove takes the way away: the rules first, so that no packet meets half of it.
func (r *router) remove(h *hops, k hop) error {
	for h.rules[k] > 0 {
		if err := r.nl.RuleDel(r.rule(k)); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("deleting the rule of mark %d: %w", k.mark, err)
		}
		h.rules[k]--
	}
	delete(h.rules, k)
	if via, ok := h.via[k]; ok {
		if err := r.nl.RouteDel(k.route(via)); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("deleting the route to %v: %w", via, err)
		}
		delete(h.via, k)
	}
	if h.blackhole[k] {
		if err := r.nl.RouteDel(k.dead()); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("deleting the blackhole of table %d: %w", k.mark, err)
		}
		delete(h.blackhole, k)
	}
	return nil
}

func (k hop) any() *net.IPNet {
	n := int(k.family.size())
	return &net.IPNet{IP: make(net.IP, n), Mask: net.CIDRMask(0, 8*n)}
}

func (k hop) route(via netip.Addr) *netlink.Route {
	return &netlink.Route{Table: int(k.mark), Protocol: RouteProtocol, Dst: k.any(), Gw: via.AsSlice(), Family: k.family.netlink()}
}

func (k hop) dead() *netlink.Route {
	return &netlink.Route{
		Table: int(k.mark), Protocol: RouteProtocol, Dst: k.any(), Type: unix.RTN_BLACKHOLE, Priority: blackholeMetric, Family: k.family.netlink(),
	}
}

func (r *router) rule(k hop) *netlink.Rule {
	rule := netlink.NewRule()
	rule.Family, rule.Mark, rule.Table, rule.Protocol = k.family.netlink(), k.mark, int(k.mark), RouteProtocol
	rule.Priority = r.priority + 2*int(r.group(k.mark)) + 1
	return rule
}

func (r *router) skip(s skip) *netlink.Rule {
	rule := netlink.NewRule()
	rule.Family, rule.Mark, rule.Mask, rule.Invert = s.family.netlink(), r.base+s.group*groupSize, new(^uint32(groupSize-1)), true
	rule.Priority, rule.Protocol = r.priority+2*int(s.group), RouteProtocol
	rule.Goto = rule.Priority + 2
	return rule
}

// forget drops what is known of the link addresses behind an address, so that the next packet asks anew.
func (r *router) forget(a netip.Addr) error {
	f := ipv4
	if a.Is6() {
		f = ipv6
	}
	neighbours, err := r.nl.NeighList(0, f.netlink())
	if err != nil {
		return fmt.Errorf("listing neighbours: %w", err)
	}
	var errs []error
	for _, n := range neighbours {
		if known, ok := netip.AddrFromSlice(n.IP); ok && known.Unmap() == a && n.State&(netlink.NUD_PERMANENT|netlink.NUD_NOARP) == 0 {
			if err := r.nl.NeighDel(&n); err != nil && !errors.Is(err, unix.ENOENT) {
				errs = append(errs, fmt.Errorf("forgetting the neighbour %v: %w", a, err))
			}
		}
	}
	return errors.Join(errs...)
}
