// Package netns makes network namespaces and what connects them, for tests and demonstrations on real packets. It needs root
// and a Linux kernel, but no program: neither ip nor nft.
//
// A Space has no name in the file system. It is gone when it is closed, or when the process that made it dies, unless a program
// that was started in it still runs.
//
//	router, host := netns.Test(t, "router"), netns.Test(t, "host")
//	router.Forward()
//	netns.Connect(t, netns.End{Space: router, Link: "eth1", Addresses: []string{"10.0.0.1/24"}},
//		netns.End{Space: host, Link: "eth0", Addresses: []string{"10.0.0.2/24"}})
//	host.Route(t, "0.0.0.0/0", "10.0.0.1")
//	err := host.Do(func() error { conn, err = net.Dial("udp", "10.0.0.1:53"); return err })
package netns

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	vns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/nordix/meridio-nsp/test/process"
)

// Space is a network namespace.
type Space struct {
	// Name is for messages only.
	Name   string
	handle vns.NsHandle
	nl     *netlink.Handle
}

// Available says why there can be no namespaces here; nil where there can.
func Available() error {
	if os.Geteuid() != 0 {
		return errors.New("network namespaces need root")
	}
	s, err := New("probe")
	if err != nil {
		return err
	}
	s.Close()
	return nil
}

// Test is New for a test: the namespace goes with it. Without root the test is skipped.
func Test(t testing.TB, name string) *Space {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	s, err := New(name)
	if errors.Is(err, unix.EPERM) {
		t.Skip("network namespaces are not permitted here")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// New makes a namespace in which the loopback is up, IPv6 addresses are usable at once, and nobody checks the way back.
func New(name string) (*Space, error) {
	s := &Space{Name: name}
	if err := onThread(s.make); err != nil {
		return nil, fmt.Errorf("making the network namespace %s: %w", name, err)
	}
	if err := s.prepare(); err != nil {
		s.Close()
		return nil, fmt.Errorf("preparing the network namespace %s: %w", name, err)
	}
	return s, nil
}

// make leaves the thread in the new namespace; it ends afterwards.
func (s *Space) make() error {
	handle, err := vns.New()
	if err != nil {
		return err
	}
	s.handle = handle
	if s.nl, err = netlink.NewHandleAt(handle); err != nil {
		return errors.Join(err, s.handle.Close())
	}
	return nil
}

func (s *Space) prepare() error {
	lo, err := s.nl.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := s.nl.LinkSetUp(lo); err != nil {
		return err
	}
	for _, which := range []string{"all", "default"} {
		for path, value := range map[string]string{
			"net/ipv4/conf/" + which + "/rp_filter":            "0",
			"net/ipv6/conf/" + which + "/accept_dad":           "0",
			"net/ipv6/conf/" + which + "/router_solicitations": "0",
			"net/ipv6/conf/" + which + "/accept_ra":            "0",
		} {
			if err := s.Sysctl(path, value); err != nil {
				return err
			}
		}
	}
	return nil
}

// Close lets go of the namespace. It is safe to call again.
func (s *Space) Close() {
	if s.nl != nil {
		s.nl.Close()
		s.nl = nil
	}
	if s.handle.IsOpen() {
		_ = s.handle.Close()
	}
}

// Do runs f in the namespace. Sockets made by f stay there; goroutines and connections to host names started by f do not.
func (s *Space) Do(f func() error) error {
	return onThread(func() error {
		if err := s.Enter(); err != nil {
			return err
		}
		return f()
	})
}

// Enter moves the calling thread into the namespace, for good. The caller has locked it and never unlocks it.
func (s *Space) Enter() error {
	if err := vns.Set(s.handle); err != nil {
		return fmt.Errorf("entering the network namespace %s: %w", s.Name, err)
	}
	return nil
}

// onThread runs f on a thread that ends with it, so that whatever f does to it spoils nobody else.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		done <- f()
	}()
	return <-done
}

// Netlink works on links, addresses, routes and rules of the namespace.
func (s *Space) Netlink() *netlink.Handle { return s.nl }

// FD is the namespace as an open file, which belongs to the Space.
func (s *Space) FD() int { return int(s.handle) }

// Sysctl sets a value below /proc/sys.
func (s *Space) Sysctl(path, value string) error {
	return s.Do(func() error {
		if err := os.WriteFile("/proc/sys/"+path, []byte(value), 0); err != nil {
			return fmt.Errorf("setting %s in the network namespace %s: %w", path, s.Name, err)
		}
		return nil
	})
}

// Forward makes the namespace a router for both families.
func (s *Space) Forward() error {
	return errors.Join(s.Sysctl("net/ipv4/ip_forward", "1"), s.Sysctl("net/ipv6/conf/all/forwarding", "1"))
}

// Start runs a program in the namespace.
func (s *Space) Start(cfg process.Config) (*process.Process, error) {
	cfg.Thread = s.Enter
	return process.Start(cfg)
}
