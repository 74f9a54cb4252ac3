package nft

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Desired is all that the data plane shall do.
type Desired struct {
	// VIPs are the addresses that are answered for: what is sent to them and matches no flow is dropped.
	VIPs    []netip.Prefix
	Streams []Stream
	Flows   []Flow
	NATs    []PortNAT
}

// Stream is a set of targets that share the traffic of flows.
type Stream struct {
	Name string
	// MaxTargets decides how many slots there are, 0 is stream.DefaultMaxTargets; all load balancers of the stream must agree on it.
	MaxTargets int
	Targets    []Target
}

// Target takes packets.
type Target struct {
	// Identifier is unique in the stream, from 1.
	Identifier uint32
	// Addresses are next hops; the first of each family counts.
	Addresses []netip.Addr
	// Draining targets keep the connections they have. There are none where new connections may be cut.
	Draining bool
	// Instance changes when another machine bears the addresses, so that what is known of its link address is forgotten.
	Instance string
}

// address is the next hop in a family, which may be missing.
func (t Target) address(f family) (netip.Addr, bool) {
	i := slices.IndexFunc(t.Addresses, func(a netip.Addr) bool { return f.has(a) })
	if i < 0 {
		return netip.Addr{}, false
	}
	return t.Addresses[i].Unmap(), true
}

// Flow selects packets for a stream. Every field that is empty matches all, but for VIPs.
type Flow struct {
	// Name is unique among flows.
	Name, Stream string
	// Priority: the highest comes first, equal ones by name.
	Priority         int32
	VIPs             []netip.Prefix
	Sources          []netip.Prefix
	Protocols        []Protocol
	DestinationPorts []PortRange
	SourcePorts      []PortRange
	ByteMatches      []ByteMatch
}

// PortNAT rewrites the destination port of packets to VIPs, and the source port of the answers.
type PortNAT struct {
	// VIPs are all VIPs where there are none.
	VIPs             []netip.Prefix
	Protocol         Protocol
	Port, TargetPort uint16
}

// Protocol is that of layer 4.
type Protocol uint8

// The protocols that have ports.
const (
	TCP  Protocol = unix.IPPROTO_TCP
	UDP  Protocol = unix.IPPROTO_UDP
	SCTP Protocol = unix.IPPROTO_SCTP
)

// Protocols are all that can be balanced.
var Protocols = []Protocol{TCP, UDP, SCTP}

// ParseProtocol reads the name of a protocol.
func ParseProtocol(s string) (Protocol, error) {
	for _, p := range Protocols {
		if strings.EqualFold(s, p.String()) {
			return p, nil
		}
	}
	return 0, fmt.Errorf("the protocol %q is none of tcp, udp and sctp", s)
}

// String is the name of the protocol.
func (p Protocol) String() string {
	switch p {
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	case SCTP:
		return "sctp"
	}
	return fmt.Sprintf("protocol %d", uint8(p))
}

// PortRange is a range of ports, both ends included.
type PortRange struct{ From, To uint16 }

// ParsePortRange reads "80", "90-95" or "any".
func ParsePortRange(s string) (PortRange, error) {
	if strings.TrimSpace(s) == "any" {
		return PortRange{0, 65535}, nil
	}
	from, to, isRange := strings.Cut(s, "-")
	if !isRange {
		to = from
	}
	var r PortRange
	for _, end := range []struct {
		text string
		port *uint16
	}{{from, &r.From}, {to, &r.To}} {
		n, err := strconv.ParseUint(strings.TrimSpace(end.text), 10, 16)
		if err != nil {
			return r, fmt.Errorf("%q is no port and no range of ports", s)
		}
		*end.port = uint16(n)
	}
	if r.From > r.To {
		return r, fmt.Errorf("the range of ports %q ends before it begins", s)
	}
	return r, nil
}

// family is one of the two families of addresses.
type family uint8

const (
	ipv4 family = 4
	ipv6 family = 6
)

var families = []family{ipv4, ipv6}

func (f family) has(a netip.Addr) bool { return a.IsValid() && a.Unmap().Is6() == (f == ipv6) }

// size is the length of an address in bytes.
func (f family) size() uint32 {
	if f == ipv4 {
		return 4
	}
	return 16
}

func (f family) netlink() int {
	if f == ipv4 {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// only are the prefixes of a family.
func (f family) only(prefixes []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(prefixes), func(p netip.Prefix) bool { return !f.has(p.Addr()) })
}

// byPriority puts flows into the order in which they are tried.
func byPriority(a, b *Flow) int {
	return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Name, b.Name))
}

// check says why a flow cannot be programmed.
func (f *Flow) check(streams map[string]bool) error {
	switch {
	case f.Name == "" || len(f.Name) > maxName:
		return fmt.Errorf("its name has %d characters", len(f.Name))
	case !streams[f.Stream]:
		return fmt.Errorf("its stream %q does not exist in this conduit", f.Stream)
	case len(f.VIPs) == 0:
		return fmt.Errorf("it has no VIP")
	}
	for _, p := range slices.Concat(f.VIPs, f.Sources) {
		if !p.IsValid() || p.Addr().Is4In6() {
			return fmt.Errorf("%v is no prefix of addresses", p)
		}
	}
	for _, p := range f.Protocols {
		if !slices.Contains(Protocols, p) {
			return fmt.Errorf("%v cannot be balanced", p)
		}
	}
	for _, m := range f.ByteMatches {
		if err := m.check(f.protocols()); err != nil {
			return err
		}
	}
	return nil
}

func (f *Flow) protocols() []Protocol {
	if len(f.Protocols) == 0 {
		return Protocols
	}
	return f.Protocols
}
