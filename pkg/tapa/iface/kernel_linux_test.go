package iface

import (
	"context"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nordix/meridio-nsp/pkg/stream"
	"github.com/nordix/meridio-nsp/test/netns"
)

// real is a pod with a secondary interface, a gateway there, and another one on the pod's default route that leads nowhere. Behind
// the gateway is a client.
type real struct {
	*testing.T
	pod, router, client *netns.Space
	kernel              kernel
}

func newReal(t *testing.T) *real {
	t.Helper()
	r := &real{T: t, pod: netns.Test(t, "pod"), router: netns.Test(t, "router"), client: netns.Test(t, "client")}
	require.NoError(t, r.router.Forward())
	netns.Connect(t, netns.End{Space: r.pod, Link: "net1", Addresses: []string{"172.16.0.5/24", "fd00:1::5/64"}},
		netns.End{Space: r.router, Link: "pods", Addresses: []string{"172.16.0.1/24", "172.16.0.2/24", "fd00:1::1/64", "fd00:1::2/64"}})
	netns.Connect(t, netns.End{Space: r.client, Link: "eth0", Addresses: []string{"10.9.0.2/24", "fd00:9::2/64"}},
		netns.End{Space: r.router, Link: "clients", Addresses: []string{"10.9.0.1/24", "fd00:9::1/64"}})
	netns.Connect(t, netns.End{Space: r.pod, Link: "eth0", Addresses: []string{"10.8.0.2/24", "fd00:8::2/64"}},
		netns.End{Space: netns.Test(t, "primary"), Link: "eth0", Addresses: []string{"10.8.0.1/24", "fd00:8::1/64"}})
	r.pod.Route(t, "0.0.0.0/0", "10.8.0.1")
	r.pod.Route(t, "::/0", "fd00:8::1")
	r.client.Route(t, "0.0.0.0/0", "10.9.0.1")
	r.client.Route(t, "::/0", "fd00:9::1")
	r.router.Route(t, "20.0.0.0/16", "172.16.0.5")
	r.router.Route(t, "2000::/64", "fd00:1::5")
	var err error
	r.kernel, err = openKernel(r.pod.FD())
	require.NoError(t, err)
	t.Cleanup(r.kernel.close)
	return r
}

// answers tells whether a VIP answers the client, from the VIP.
func (r *real) answers(vip string) bool {
	r.Helper()
	var server net.PacketConn
	require.NoError(r, r.pod.Do(func() (err error) {
		server, err = net.ListenPacket("udp", net.JoinHostPort(vip, "7"))
		return err
	}), "an application can bind %s", vip)
	defer server.Close()
	var conn net.Conn
	require.NoError(r, r.client.Do(func() (err error) {
		conn, err = net.Dial("udp", net.JoinHostPort(vip, "7"))
		return err
	}))
	defer conn.Close()
	_, err := conn.Write([]byte("ping"))
	require.NoError(r, err)
	buffer := make([]byte, 10)
	require.NoError(r, server.SetReadDeadline(time.Now().Add(5*time.Second)))
	n, from, err := server.ReadFrom(buffer)
	require.NoError(r, err)
	_, err = server.WriteTo(buffer[:n], from)
	if err != nil {
		return false
	}
	require.NoError(r, conn.SetReadDeadline(time.Now().Add(5*time.Second)))
	_, err = conn.Read(buffer)
	return err == nil
}

// everything is all that the pod's kernel has, marked or not, but for link-local addresses: those come when links have settled.
func (r *real) everything() map[string]int {
	r.Helper()
	nl, out := r.pod.Netlink(), map[string]int{}
	addrs, err := nl.AddrList(nil, netlink.FAMILY_ALL)
	require.NoError(r, err)
	for _, a := range addrs {
		if !a.IP.IsLinkLocalUnicast() {
			out["address "+a.IPNet.String()]++
		}
	}
	for _, family := range families {
		rules, err := nl.RuleList(family)
		require.NoError(r, err)
		for _, rule := range rules {
			out[rule.String()]++
		}
		routes, err := nl.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
		require.NoError(r, err)
		for _, route := range routes {
			linkLocal := route.Dst != nil && route.Dst.IP.IsLinkLocalUnicast()
			if !linkLocal && (route.Table != unix.RT_TABLE_LOCAL || route.Protocol != unix.RTPROT_KERNEL) {
				out[route.String()]++
			}
		}
	}
	return out
}

// A connector on a real kernel: packets to VIPs are answered by way of the gateways, ranges too, in both families. A kill and another
// start change nothing; at the close everything is as before, what others made included.
func TestRealKernel(t *testing.T) {
	r := newReal(t)
	require.NoError(t, r.pod.AddAddress("lo", "20.0.0.9/32")) // Somebody else's, and a VIP too.
	require.NoError(t, r.pod.Netlink().RouteAdd(&netlink.Route{Table: 110, Dst: network(prefixList("99.0.0.0/24")[0]), Gw: net.ParseIP("172.16.0.1")}))
	foreign := netlink.NewRule()
	foreign.Src, foreign.Table, foreign.Priority, foreign.Family = network(prefixList("20.0.0.8/32")[0]), 110, 110, netlink.FAMILY_V4
	require.NoError(t, r.pod.Netlink().RuleAdd(foreign))
	before := r.everything()

	w := r.world(trenchOf("20.0.0.1/32", "20.0.0.9/32", "20.0.1.0/28", "2000::1/128", "2000::100/120"))
	w.startReal()
	require.NoError(t, w.Open(t.Context(), one))
	w.until(one, "OPEN")
	for _, vip := range []string{"20.0.0.1", "20.0.0.9", "20.0.1.7", "2000::1"} {
		require.True(t, r.answers(vip), vip)
	}
	require.Empty(t, steps(w.reads(), w.wants(), nil, false), "nothing is left to do")

	full := r.everything()
	w.kill()
	require.Equal(t, full, r.everything())
	w.startReal()
	w.until(one, "OPEN")
	require.Equal(t, full, r.everything())
	require.True(t, r.answers("20.0.0.1"))

	w.trench.set("a", trenchOf("2000::1/128"))
	require.Eventually(t, func() bool { return len(w.reads()) == 7 }, patience, time.Millisecond) // Three addresses are not ours.
	require.True(t, r.answers("2000::1"))
	require.NoError(t, w.Close(t.Context(), one))
	require.Equal(t, before, r.everything())
	w.stop()
}

// An interface that goes down loses its routes; they come back with it, and no packet leaves another way meanwhile.
func TestRoutesComeBack(t *testing.T) {
	r := newReal(t)
	w := r.world(trenchOf("20.0.0.1/32", "2000::1/128"))
	w.cfg.Resync = 20 * time.Millisecond
	w.startReal()
	require.NoError(t, w.Open(t.Context(), one))
	w.until(one, "OPEN")
	link, err := r.pod.Netlink().LinkByName("net1")
	require.NoError(t, err)
	require.NoError(t, r.pod.Netlink().LinkSetDown(link))
	for _, to := range []string{"10.9.0.2", "fd00:9::2"} {
		from := map[bool]string{true: "20.0.0.1", false: "2000::1"}[netip.MustParseAddr(to).Is4()]
		_, err = r.pod.Netlink().RouteGetWithOptions(net.ParseIP(to), &netlink.RouteGetOptions{SrcAddr: net.ParseIP(from)})
		require.Error(t, err, "from %s", from)
	}
	require.NoError(t, r.pod.Netlink().LinkSetUp(link))
	if err := r.pod.AddAddress("net1", "fd00:1::5/64"); err != nil { // An interface that goes down loses its addresses of IPv6.
		require.ErrorIs(t, err, unix.EEXIST)
	}
	require.Eventually(t, func() bool { return len(steps(w.reads(), w.wants(), nil, false)) == 0 }, patience, time.Millisecond)
	require.True(t, r.answers("20.0.0.1"))
	require.True(t, r.answers("2000::1"))
	w.stop()
	require.Empty(t, slices.DeleteFunc(slices.Collect(maps.Keys(w.reads())), func(i item) bool { return i.prefix.Addr().IsLoopback() }))
}

const patience = 20 * time.Second

// world is a connector on the real kernel, with a registry and a trench that the test plays.
func (r *real) world(s *settings) *realWorld {
	cfg := config(r.T)
	cfg.Netns = r.pod.FD()
	cfg.Gateways = append(cfg.Gateways, netip.MustParseAddr("172.16.0.2"), netip.MustParseAddr("fd00:1::2"))
	j := &journal{}
	return &realWorld{real: r, world: &world{
		T: r.T, journal: j, cfg: cfg,
		registry: &fakeRegistry{journal: j, entries: map[stream.Key]map[string]*entry{}, limit: 10, changed: make(chan struct{})},
		trench:   &fakeTrench{now: map[string]*settings{"a": s}, changed: make(chan struct{})},
	}}
}

type realWorld struct {
	*world
	real *real
	cut  *cutKernel
}

// cutKernel can be cut off, as a process that is killed is.
type cutKernel struct {
	kernel
	dead bool
}

func (k *cutKernel) link(name string) (int, error) {
	if k.dead {
		return 0, errDead
	}
	return k.kernel.link(name)
}

func (w *realWorld) startReal() {
	w.Helper()
	k, err := openKernel(w.cfg.Netns)
	require.NoError(w, err)
	w.cut = &cutKernel{kernel: k}
	w.Connector, err = newConnector(w.cfg, w.cut, w.registry, w.trench)
	require.NoError(w, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended, c := make(chan struct{}), w.Connector
	go func() { defer close(ended); _ = c.Run(ctx) }() // one that is killed fails
	w.stop = func() { cancel(); <-ended }
	w.Cleanup(w.stop)
}

func (w *realWorld) kill() {
	w.Helper()
	saved, err := os.ReadFile(w.cfg.StateFile)
	require.NoError(w, err)
	w.registry.set(func() { w.registry.away = true })
	w.plumbing.Lock()
	w.cut.dead = true
	w.plumbing.Unlock()
	w.stop()
	w.registry.set(func() { w.registry.away = false })
	require.NoError(w, os.WriteFile(w.cfg.StateFile, saved, 0o600))
}

func (w *realWorld) until(k stream.Key, status string) {
	w.Helper()
	require.Eventually(w, func() bool { return w.is(k) == status }, patience, time.Millisecond)
}

func (w *realWorld) reads() layout {
	w.Helper()
	lo, err := w.real.kernel.link("lo")
	require.NoError(w, err)
	l, err := w.real.kernel.read(lo)
	require.NoError(w, err)
	return l
}

func (w *realWorld) wants() layout {
	w.Helper()
	p, err := w.plan()
	require.NoError(w, err)
	known, _ := w.vips()
	return p.layout(known)
}
