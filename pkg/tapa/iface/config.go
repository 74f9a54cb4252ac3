package iface

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/nordix/meridio-nsp/pkg/stream"
	"github.com/nordix/meridio-nsp/pkg/tapa"
)

// Config says what the connector works on.
type Config struct {
	// Namespace is that of all streams.
	Namespace string
	// Server is the address of the namespace-wide NSP, where targets are registered.
	Server string
	// TrenchServer is the address of a trench's NSP, in which TRENCH stands for its name; empty is
	// nsp-service-TRENCH.<Namespace>:7778.
	TrenchServer string
	// Credentials of the transport, and of the calls; PerRPC is optional.
	Credentials credentials.TransportCredentials
	PerRPC      credentials.PerRPCCredentials

	// Interface leads to the gateways; its addresses are those of the target.
	Interface string
	// VIPLink bears the VIPs; default lo.
	VIPLink string
	// Gateways of both families; packets from VIPs of a family without one leave by the pod's other routes.
	Gateways []netip.Addr
	// Table is the routing table of what is sent from VIPs, Priority that of the rules that lead there; default 110 both.
	Table, Priority int

	// EntryTimeout is that of the NSP: how long a registration lasts without being renewed. Default 60 s.
	EntryTimeout time.Duration
	// ReleaseTimeout is how long unregistering may take at the end. Default 5 s.
	ReleaseTimeout time.Duration
	// Resync is how often the kernel is compared with what it shall have. Default 10 s.
	Resync time.Duration
	// StateFile keeps what has to be undone; it outlives the container.
	StateFile string
	// Netns is an open network namespace to work in; 0 is that of the process.
	Netns int
	// Log defaults to slog.Default().
	Log *slog.Logger
}

// Bounds of numbers that the kernel has other uses for: the tables default, main and local, and the rules that lead there.
const (
	maxTable     = 1<<31 - 1
	defaultTable = 110
	lastRule     = 32765
)

func (c Config) withDefaults() Config {
	c.VIPLink = cmp.Or(c.VIPLink, "lo")
	c.Table = cmp.Or(c.Table, defaultTable)
	c.Priority = cmp.Or(c.Priority, defaultTable)
	c.EntryTimeout = cmp.Or(c.EntryTimeout, time.Minute)
	c.ReleaseTimeout = cmp.Or(c.ReleaseTimeout, 5*time.Second)
	c.Resync = cmp.Or(c.Resync, 10*time.Second)
	c.TrenchServer = cmp.Or(c.TrenchServer, "nsp-service-TRENCH."+c.Namespace+":7778")
	c.Log = cmp.Or(c.Log, slog.Default())
	return c
}

// Validate says what is missing or makes no sense.
func (c Config) Validate() error {
	c = c.withDefaults()
	switch {
	case c.Interface == "":
		return errors.New("--interface is empty: name the pod's interface to the secondary network, as net1")
	case c.Table < 1 || c.Table > maxTable || c.Table >= 253 && c.Table <= 255:
		return fmt.Errorf("--route-table is %d: choose another than the kernel's own, 253 to 255", c.Table)
	case c.Priority < 1 || c.Priority > lastRule:
		return fmt.Errorf("--rule-priority is %d: choose one of 1 to %d", c.Priority, lastRule)
	case c.EntryTimeout < 0:
		return fmt.Errorf("--entry-timeout is %s: choose that of the NSP", c.EntryTimeout)
	}
	for _, g := range c.Gateways {
		if !g.IsValid() || g.IsUnspecified() || g.IsMulticast() || g.IsLoopback() {
			return fmt.Errorf("--gateway is %s: write the address of a router", g)
		}
	}
	return nil
}

func (c Config) trenchServer(trench string) string {
	return strings.ReplaceAll(c.TrenchServer, "TRENCH", trench)
}

// kernel is the network namespace of the pod. Interfaces are named by their index.
type kernel interface {
	link(name string) (int, error)
	// addresses are those of an interface that can be used, with prefix lengths.
	addresses(link int) ([]netip.Prefix, error)
	// read is all addresses of a link, and the routes and rules that bear our mark.
	read(link int) (layout, error)
	// apply makes one change; one that is made already is no error.
	apply(s step) error
	close()
}

// registry is where targets are registered.
type registry interface {
	// reserve gets the target an identifier; with wait it waits until ctx ends.
	reserve(ctx context.Context, k stream.Key, addrs []netip.Prefix, wait bool) (uint32, error)
	// enable registers the target as ENABLED, or renews that.
	enable(ctx context.Context, k stream.Key, addrs []netip.Prefix, id uint32) error
	// enabled is the identifier under which the target is ENABLED; 0 where it is not.
	enabled(ctx context.Context, k stream.Key, addrs []netip.Prefix) (uint32, error)
	unregister(ctx context.Context, k stream.Key, addrs []netip.Prefix, id uint32) error
	close()
}

// configuration is where the settings of trenches come from.
type configuration interface {
	// watch tells the settings at once and at every change, until ctx or what is watched ends.
	watch(ctx context.Context, trench string, tell func(*settings)) error
}

var _ tapa.Connector = (*Connector)(nil)
