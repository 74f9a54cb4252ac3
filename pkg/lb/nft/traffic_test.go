package nft

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/nordix/meridio-nsp/test/netns"
)

var vips = []string{vip4, vip6}

func clientOf(vip string) string {
	if vip == vip4 {
		return client4
	}
	return client6
}

func TestTrafficReachesAllTargets(t *testing.T) {
	w := newWorld(t, 3)
	w.apply(simple(1, 2, 3))
	w.serve(5000)
	w.serveTCP(5000)
	for _, vip := range vips {
		require.Equal(t, []string{"1", "2", "3"}, names(w.shares(vip, 5000, 40)), vip)
		tcp := map[string]int{}
		for range 30 {
			tcp[w.askTCP(vip, 5000, "")]++
		}
		require.Equal(t, []string{"1", "2", "3"}, names(tcp), vip)
	}
}

// Target 1 has the stream of flow a, target 2 that of flow b, which has less priority and takes all of both VIPs.
func twoFlows(a Flow) *Desired {
	a.Name, a.Stream, a.Priority = "a", "stream-a", 2
	if a.VIPs == nil {
		a.VIPs = allVIPs
	}
	return &Desired{
		VIPs:    append(prefixes("20.0.1.0/24"), allVIPs...),
		Streams: []Stream{{Name: "stream-a", Targets: targets(1)}, {Name: "stream-b", Targets: targets(2)}},
		Flows:   []Flow{{Name: "b", Stream: "stream-b", Priority: 1, VIPs: allVIPs}, a},
	}
}

// Every field of a flow decides on real packets, of both families.
func TestEveryFieldOfAFlow(t *testing.T) {
	w := newWorld(t, 2)
	for _, a := range []string{"10.0.0.3/24", "fd00:10::3/64"} {
		require.NoError(t, w.client.AddAddress("eth0", a))
	}
	for _, port := range []int{80, 90, 95} {
		w.serve(port)
		w.serveTCP(port)
	}
	type probe struct {
		port int
		from string // host, port
		udp  string
		tcp  string
	}
	for name, c := range map[string]struct {
		flow   Flow
		v4, v6 []probe
	}{
		"destination ports": {
			Flow{DestinationPorts: ports("80", "91-95")},
			[]probe{{80, "", "1", "1"}, {90, "", "2", "2"}, {95, "", "1", "1"}}, []probe{{80, "", "1", "1"}, {90, "", "2", "2"}, {95, "", "1", "1"}},
		},
		"protocols": {Flow{Protocols: []Protocol{TCP}}, []probe{{80, "", "2", "1"}}, []probe{{80, "", "2", "1"}}},
		"source subnets": {
			Flow{Sources: prefixes("10.0.0.3/32", "fd00:10::2/127")},
			[]probe{{80, "10.0.0.2:0", "2", "2"}, {80, "10.0.0.3:0", "1", "1"}},
			[]probe{{80, "[fd00:10::2]:0", "1", "1"}, {80, "[fd00:10::3]:0", "1", "1"}},
		},
		"sources of one family": {Flow{Sources: prefixes("0.0.0.0/0")}, []probe{{80, "", "1", "1"}}, []probe{{80, "", "2", "2"}}},
		"source ports": {
			Flow{SourcePorts: ports("4000-4010")},
			[]probe{{80, "10.0.0.2:4005", "1", "1"}, {80, "10.0.0.2:4011", "2", "2"}},
			[]probe{{80, "[fd00:10::2]:4010", "1", "1"}, {80, "[fd00:10::2]:3999", "2", "2"}},
		},
		"VIPs": {Flow{VIPs: prefixes("20.0.0.0/31")}, []probe{{80, "", "1", "1"}}, []probe{{80, "", "2", "2"}}},
		"bytes": { // the window of the SYN is not 0; the length of the datagram is 18
			Flow{ByteMatches: []ByteMatch{{UDP, 4, 2, 0x00ff, 18}}}, []probe{{80, "", "1", "2"}}, []probe{{80, "", "1", "2"}},
		},
		"other bytes": {Flow{ByteMatches: []ByteMatch{{UDP, 4, 2, 0xffff, 17}}}, []probe{{80, "", "2", "2"}}, []probe{{80, "", "2", "2"}}},
		"everything":  {Flow{DestinationPorts: ports("any"), SourcePorts: ports("0-65535")}, []probe{{80, "", "1", "1"}}, []probe{{80, "", "1", "1"}}},
	} {
		t.Run(name, func(t *testing.T) {
			r := w.apply(twoFlows(c.flow))
			require.Empty(t, r.Refused)
			for vip, probes := range map[string][]probe{vip4: c.v4, vip6: c.v6} {
				for _, p := range probes {
					var from []string
					if p.from != "" {
						from = []string{p.from}
					}
					require.Equal(t, p.udp, w.ask(vip, p.port, 10, from...), "udp %s %+v", vip, p)
					require.Equal(t, p.tcp, w.askTCP(vip, p.port, p.from), "tcp %s %+v", vip, p)
				}
			}
		})
	}
}

// What is sent to a VIP and matches no flow is dropped; what is for nobody's VIP is routed as ever.
func TestNoFlow(t *testing.T) {
	w := newWorld(t, 1)
	d := simple(1)
	d.Flows[0].DestinationPorts = ports("80")
	w.apply(d)
	w.serve(80)
	w.serve(81)
	w.serveUDP(w.targets[0], "172.16.1.2:81", "plain")
	for _, vip := range vips {
		require.Equal(t, "1", w.ask(vip, 80, 10))
		require.Empty(t, w.briefly().ask(vip, 81, 10))
	}
	require.Equal(t, "plain", w.ask("172.16.1.2", 81, 10))
	counts, err := w.plane.Counters()
	require.NoError(t, err)
	require.Equal(t, uint64(2), counts.Drops["no-flow"].Packets)
	require.Equal(t, uint64(2), counts.Flows["flow-a"].Packets)
	require.Equal(t, uint64(2), counts.Targets[TargetRef{"stream-a", 1}].Packets)
}

// The later fragments of a datagram go where the first goes. 60 kB is 41 fragments and more.
func TestFragments(t *testing.T) {
	w := newWorld(t, 3)
	w.apply(simple(1, 2, 3))
	w.serve(5000)
	for _, vip := range vips {
		for _, size := range []int{1400, 1500, 3000, 60000} {
			got := map[string]int{}
			for range 12 {
				got[w.ask(vip, 5000, size)]++
			}
			require.NotContains(t, got, "", "%s, %d bytes", vip, size)
			require.Greater(t, len(got), 1, "%s, %d bytes", vip, size)
		}
	}
}

// connected has a target send from the VIP's port to a peer, as the application does, so that the kernel tells it of errors.
// Packets that shall be lost on the way have no hop left after the first.
func connected(t *testing.T, s *netns.Space, vip, peer string, lost syscall.Errno) *net.UDPConn {
	t.Helper()
	local, err := net.ResolveUDPAddr("udp", net.JoinHostPort(vip, "6000"))
	require.NoError(t, err)
	remote, err := net.ResolveUDPAddr("udp", peer)
	require.NoError(t, err)
	var c *net.UDPConn
	require.NoError(t, s.Do(func() (err error) { c, err = net.DialUDP("udp", local, remote); return err }))
	t.Cleanup(func() { c.Close() })
	raw, err := c.SyscallConn()
	require.NoError(t, err)
	hops := 64
	if lost == syscall.EHOSTUNREACH {
		hops = 1
	}
	require.NoError(t, raw.Control(func(fd uintptr) { // also of errors that may pass
		if vip == vip4 {
			err = errors.Join(unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_RECVERR, 1), unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_TTL, hops))
		} else {
			err = errors.Join(unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_RECVERR, 1),
				unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_UNICAST_HOPS, hops))
		}
	}))
	require.NoError(t, err)
	return c
}

// refused is whether the connection is told of an error in time.
func refused(c *net.UDPConn) error {
	_ = c.SetReadDeadline(time.Now().Add(patience))
	_, err := c.Read(make([]byte, 1))
	return err
}

// An ICMP error about a target's packet reaches that target: from the client, and from the load balancer itself.
func TestICMPErrorsReachTheTarget(t *testing.T) {
	w := newWorld(t, 3)
	w.apply(simple(1, 2, 3))
	require.NoError(t, w.lb.Sysctl("net/ipv4/icmp_ratelimit", "0"))
	require.NoError(t, w.lb.Sysctl("net/ipv6/icmp/ratelimit", "0"))
	// What this machine sends is routed before it is marked, so there must be some route to the VIP.
	require.NoError(t, w.lb.AddRoute("0.0.0.0/0", client4))
	require.NoError(t, w.lb.AddRoute("::/0", client6))
	for vip, peers := range map[string]map[string]syscall.Errno{
		vip4: {"10.0.0.2": syscall.ECONNREFUSED, "10.0.0.9": syscall.EHOSTUNREACH},
		vip6: {"[fd00:10::2]": syscall.ECONNREFUSED, "[fd00:10::9]": syscall.EHOSTUNREACH},
	} {
		for peer, want := range peers {
			met := map[uint32]bool{}
			for port := 7000; len(met) < 3 && port < 7100; port++ {
				from := fmt.Sprintf("%s:%d", peer, port)
				id := w.trace(vip, UDP, from, 6000).Identifier
				if met[id] {
					continue
				}
				met[id] = true
				var conns []*net.UDPConn
				for _, s := range w.targets {
					conns = append(conns, connected(t, s, vip, from, want))
				}
				_, err := conns[id-1].Write([]byte("anybody there?"))
				require.NoError(t, err)
				require.ErrorIs(t, refused(conns[id-1]), want, "%s to %s", vip, from)
				for _, c := range conns {
					c.Close()
				}
			}
			require.Len(t, met, 3)
		}
	}
}

// A ping of a VIP is answered by a target, and always by the same one.
func TestPing(t *testing.T) {
	w := newWorld(t, 3)
	w.apply(simple(1, 2, 3))
	require.NoError(t, w.client.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		request := []byte{8, 0, 0xf7, 0xfd, 0, 1, 0, 1}
		if err := unix.Sendto(fd, request, 0, &unix.SockaddrInet4{Addr: [4]byte{20, 0, 0, 1}}); err != nil {
			return err
		}
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10}); err != nil {
			return err
		}
		buf := make([]byte, 100)
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err != nil || n < 28 || buf[20] != 0 {
			return fmt.Errorf("no echo reply: %d %w", n, err)
		}
		return nil
	}))
	counts, err := w.plane.Counters()
	require.NoError(t, err)
	require.Equal(t, uint64(1), counts.Flows["flow-a"].Packets)
}

// The kernel hashes as Trace does, whatever the connection.
func TestTracePredictsTheTarget(t *testing.T) {
	w := newWorld(t, 5)
	w.apply(simple(1, 2, 3, 4, 5))
	w.serve(5000)
	for i := range 15 {
		for _, vip := range vips {
			from := netip.AddrPortFrom(netip.MustParseAddr(clientOf(vip)), uint16(10000+i*37)).String()
			trace := w.trace(vip, UDP, from, 5000)
			require.True(t, trace.Forwarded)
			require.Equal(t, fmt.Sprint(trace.Identifier), w.ask(vip, 5000, 10, from))
			require.Equal(t, "flow-a", trace.Flow)
			require.Equal(t, "stream-a", trace.Stream)
			require.Equal(t, uint32(10007), trace.Slots)
			require.Equal(t, target(int(trace.Identifier)).Addresses[map[string]int{vip4: 0, vip6: 1}[vip]].String(), trace.Via)
		}
	}
}

func TestTraceSaysWhy(t *testing.T) {
	w := newWorld(t, 1)
	for why, d := range map[string]*Desired{
		"there is no table": nil,
		"no flow":           {VIPs: allVIPs},
		"no target":         simple(),
		"no VIP":            {},
	} {
		if d != nil {
			w.apply(d)
		}
		trace := w.trace(vip4, TCP, "10.0.0.2:1", 80)
		require.False(t, trace.Forwarded)
		require.Contains(t, trace.Why, why)
		require.NoError(t, w.plane.Remove())
	}
}

// 100 targets, and each gets its share.
func TestHundredTargets(t *testing.T) {
	w := newWorld(t, 100)
	var ids []int
	for i := range 100 {
		ids = append(ids, i+1)
	}
	w.apply(simple(ids...))
	w.serve(5000)
	got := w.shares(vip4, 5000, 1000)
	require.NotContains(t, got, "")
	require.Len(t, got, 100)
}

// sctp is a packet with one chunk, and a checksum of 0, which nobody here looks at.
func sctp(from, to uint16, chunk byte) []byte {
	return []byte{byte(from >> 8), byte(from), byte(to >> 8), byte(to), 0, 0, 0, 1, 0, 0, 0, 0, chunk, 0, 0, 4}
}

// rawSCTP has every target listen to SCTP of a family and tell its number for each packet.
func (w *world) rawSCTP(family int) <-chan string {
	w.t.Helper()
	got := make(chan string, 1000)
	for i, s := range w.targets {
		network := map[int]string{unix.AF_INET: "ip4:132", unix.AF_INET6: "ip6:132"}[family]
		var c net.PacketConn
		require.NoError(w.t, s.Do(func() (err error) { c, err = net.ListenPacket(network, ""); return err }))
		done := make(chan struct{})
		go func() {
			defer close(done)
			buf := make([]byte, 2000)
			for {
				n, _, err := c.ReadFrom(buf)
				if err != nil {
					return
				}
				got <- fmt.Sprintf("%d:%x", i+1, buf[:min(4, n)])
			}
		}()
		w.t.Cleanup(func() { c.Close(); <-done })
	}
	return got
}

func (w *world) sendSCTP(vip string, packet []byte) {
	w.t.Helper()
	network := "ip4:132"
	if strings.Contains(vip, ":") {
		network = "ip6:132"
	}
	require.NoError(w.t, w.client.Do(func() error {
		c, err := net.Dial(network, vip)
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write(packet)
		return err
	}))
}

func heard(got <-chan string) string {
	select {
	case s := <-got:
		return s
	case <-time.After(patience):
		return ""
	}
}

// The kernel of this machine may have no SCTP, so packets are made by hand.
func TestSCTP(t *testing.T) {
	w := newWorld(t, 2)
	w.apply(twoFlows(Flow{Protocols: []Protocol{SCTP}, DestinationPorts: ports("3868"), ByteMatches: []ByteMatch{{SCTP, 12, 1, 0xff, 1}}}))
	for family, vip := range map[int]string{unix.AF_INET: vip4, unix.AF_INET6: vip6} {
		got := w.rawSCTP(family)
		w.sendSCTP(vip, sctp(4000, 3868, 1))
		require.Equal(t, "1:0fa00f1c", heard(got), "an INIT")
		w.sendSCTP(vip, sctp(4000, 3868, 0))
		require.Equal(t, "2:0fa00f1c", heard(got), "DATA, which flow b takes")
		w.sendSCTP(vip, sctp(4000, 3869, 1))
		require.Equal(t, "2:0fa00f1d", heard(got), "another port")
	}
}
