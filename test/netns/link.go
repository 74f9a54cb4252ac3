package netns

import (
	"fmt"
	"net"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// End is one end of a cable.
type End struct {
	Space *Space
	// Link is the name of the interface.
	Link string
	// Addresses with prefix lengths.
	Addresses []string
	// MAC is drawn by the kernel where it is nil.
	MAC net.HardwareAddr
	// Bridge is the bridge of the same Space that the interface is a port of; empty for none.
	Bridge string
	// MTU is the kernel's, 1500, where it is 0.
	MTU int
}

// Cable connects two namespaces by a pair of interfaces, which are up afterwards and go with either of them.
func Cable(a, b End) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr, attrs.MTU = a.Link, a.MAC, a.MTU
	pair := &netlink.Veth{
		LinkAttrs: attrs, PeerName: b.Link, PeerHardwareAddr: b.MAC, PeerNamespace: netlink.NsFd(b.Space.FD()), PeerMTU: uint32(b.MTU),
	}
	if err := a.Space.nl.LinkAdd(pair); err != nil {
		return fmt.Errorf("connecting %s to %s: %w", a.Space.Name, b.Space.Name, err)
	}
	for _, e := range []End{a, b} {
		if err := e.up(); err != nil {
			return fmt.Errorf("setting up %s in %s: %w", e.Link, e.Space.Name, err)
		}
	}
	return nil
}

func (e End) up() error {
	link, err := e.Space.nl.LinkByName(e.Link)
	if err != nil {
		return err
	}
	if e.Bridge != "" {
		bridge, err := e.Space.nl.LinkByName(e.Bridge)
		if err != nil {
			return err
		}
		if err := e.Space.nl.LinkSetMaster(link, bridge); err != nil {
			return err
		}
	}
	for _, a := range e.Addresses {
		if err := e.Space.AddAddress(e.Link, a); err != nil {
			return err
		}
	}
	return e.Space.nl.LinkSetUp(link)
}

// AddBridge makes a bridge that is up, with addresses.
func (s *Space) AddBridge(name string, addresses ...string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	bridge := &netlink.Bridge{LinkAttrs: attrs}
	if err := s.nl.LinkAdd(bridge); err != nil {
		return fmt.Errorf("making the bridge %s in %s: %w", name, s.Name, err)
	}
	for _, a := range addresses {
		if err := s.AddAddress(name, a); err != nil {
			return err
		}
	}
	return s.nl.LinkSetUp(bridge)
}

// AddAddress adds an address with its prefix length to a link.
func (s *Space) AddAddress(link, address string) error {
	return s.address(link, address, s.nl.AddrAdd, "adding")
}

// DeleteAddress removes what AddAddress added.
func (s *Space) DeleteAddress(link, address string) error {
	return s.address(link, address, s.nl.AddrDel, "deleting")
}

func (s *Space) address(link, address string, do func(netlink.Link, *netlink.Addr) error, doing string) error {
	l, err := s.nl.LinkByName(link)
	if err != nil {
		return fmt.Errorf("%s %s in %s: %w", doing, address, s.Name, err)
	}
	a, err := netlink.ParseAddr(address)
	if err != nil {
		return fmt.Errorf("%s %s: %w", doing, address, err)
	}
	if a.IP.To4() == nil {
		a.Flags |= unix.IFA_F_NODAD // else it could not be used for a moment
	}
	if err := do(l, a); err != nil {
		return fmt.Errorf("%s %s on %s in %s: %w", doing, address, link, s.Name, err)
	}
	return nil
}

// AddRoute sends a destination, a CIDR, by way of a gateway. It replaces a route to the same destination.
func (s *Space) AddRoute(destination, gateway string) error {
	_, dst, err := net.ParseCIDR(destination)
	if err != nil {
		return fmt.Errorf("the destination of a route: %w", err)
	}
	via := net.ParseIP(gateway)
	if via == nil {
		return fmt.Errorf("the gateway %q is no address", gateway)
	}
	if err := s.nl.RouteReplace(&netlink.Route{Dst: dst, Gw: via}); err != nil {
		return fmt.Errorf("routing %s by way of %s in %s: %w", destination, gateway, s.Name, err)
	}
	return nil
}

// Connect is Cable for a test.
func Connect(t testing.TB, a, b End) {
	t.Helper()
	if err := Cable(a, b); err != nil {
		t.Fatal(err)
	}
}

// Route is AddRoute for a test.
func (s *Space) Route(t testing.TB, destination, gateway string) {
	t.Helper()
	if err := s.AddRoute(destination, gateway); err != nil {
		t.Fatal(err)
	}
}
