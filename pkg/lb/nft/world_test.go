package nft

import (
	"bufio"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nordix/meridio-nsp/test/netns"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	vip4, vip6       = "20.0.0.1", "2000::1"
	client4, client6 = "10.0.0.2", "fd00:10::2"
)

// world is a client, a load balancer and targets, each in a namespace.
//
//	client --- 10.0.0.0/24, fd00:10::/64 --- lb (br0) --- 172.16.0.0/16, fd00:16::/64 --- targets
type world struct {
	t          testing.TB
	client, lb *netns.Space
	targets    []*netns.Space
	plane      *Plane
	// patience is how long an answer is waited for.
	patience time.Duration
}

// briefly is the world in which no answer is expected.
func (w *world) briefly() *world {
	brief := *w
	brief.patience = answerTime
	return &brief
}

func newWorld(t testing.TB, targets int) *world {
	t.Helper()
	w := &world{t: t, patience: patience, client: netns.Test(t, "client"), lb: netns.Test(t, "lb")}
	require.NoError(t, w.lb.Forward())
	require.NoError(t, w.lb.AddBridge("br0", "172.16.0.1/16", "fd00:16::1/64"))
	netns.Connect(t, netns.End{Space: w.lb, Link: "client", Addresses: []string{"10.0.0.1/24", "fd00:10::1/64"}},
		netns.End{Space: w.client, Link: "eth0", Addresses: []string{client4 + "/24", client6 + "/64"}})
	w.client.Route(t, "0.0.0.0/0", "10.0.0.1")
	w.client.Route(t, "::/0", "fd00:10::1")
	for i := range targets {
		w.addTarget(i + 1)
	}
	w.plane = w.newPlane()
	return w
}

func (w *world) newPlane() *Plane {
	w.t.Helper()
	p, err := New(Config{Netns: w.lb.FD()})
	require.NoError(w.t, err)
	w.t.Cleanup(p.Close)
	p.cfg.Linger = 0 // a test does not wait; see TestRestartAndChangesLoseNothing
	return p
}

func address4(id int) string { return fmt.Sprintf("172.16.%d.%d", 1+id/200, 1+id%200) }
func address6(id int) string { return fmt.Sprintf("fd00:16::1:%x", id) }

func (w *world) addTarget(id int) *netns.Space {
	w.t.Helper()
	s := netns.Test(w.t, fmt.Sprintf("target-%d", id))
	netns.Connect(w.t, netns.End{Space: w.lb, Link: fmt.Sprintf("t%d", id), Bridge: "br0"},
		netns.End{Space: s, Link: "eth0", Addresses: []string{address4(id) + "/16", address6(id) + "/64"}})
	s.Route(w.t, "0.0.0.0/0", "172.16.0.1")
	s.Route(w.t, "::/0", "fd00:16::1")
	for _, a := range []string{vip4 + "/32", vip6 + "/128"} {
		require.NoError(w.t, s.AddAddress("lo", a))
	}
	w.targets = append(w.targets, s)
	return s
}

// target is the desired target of a namespace.
func target(id int) Target {
	return Target{Identifier: uint32(id), Addresses: []netip.Addr{netip.MustParseAddr(address4(id)), netip.MustParseAddr(address6(id))}}
}

func targets(ids ...int) []Target {
	var out []Target
	for _, id := range ids {
		out = append(out, target(id))
	}
	return out
}

func prefixes(s ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range s {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

var allVIPs = prefixes(vip4+"/32", vip6+"/128")

func ports(s ...string) []PortRange {
	var out []PortRange
	for _, p := range s {
		r, err := ParsePortRange(p)
		if err != nil {
			panic(err)
		}
		out = append(out, r)
	}
	return out
}

// simple is one stream whose flow takes all of both VIPs.
func simple(ids ...int) *Desired {
	return &Desired{
		VIPs: allVIPs, Streams: []Stream{{Name: "stream-a", MaxTargets: 100, Targets: targets(ids...)}},
		Flows: []Flow{{Name: "flow-a", Stream: "stream-a", VIPs: allVIPs}},
	}
}

func (w *world) apply(d *Desired) Result {
	w.t.Helper()
	r, err := w.plane.Apply(d)
	require.NoError(w.t, err)
	return r
}

// serve has every target answer UDP on a port of the VIPs with its number.
func (w *world) serve(port int) {
	w.t.Helper()
	for i, s := range w.targets {
		for _, vip := range []string{vip4, vip6} {
			w.serveUDP(s, net.JoinHostPort(vip, fmt.Sprint(port)), fmt.Sprint(i+1))
		}
	}
}

func (w *world) serveUDP(s *netns.Space, address, name string) {
	w.t.Helper()
	var c net.PacketConn
	require.NoError(w.t, s.Do(func() (err error) { c, err = net.ListenPacket("udp", address); return err }))
	var done sync.WaitGroup
	done.Go(func() {
		buf := make([]byte, 1<<16)
		for {
			n, from, err := c.ReadFrom(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				_, _ = c.WriteTo(fmt.Appendf(nil, "%s %d", name, n), from)
			}
		}
	})
	w.t.Cleanup(func() { c.Close(); done.Wait() })
}

// ask sends a packet of a size to a port of a VIP and returns which target answered; empty where none did.
func (w *world) ask(vip string, port, size int, from ...string) string {
	w.t.Helper()
	local := &net.UDPAddr{}
	if len(from) > 0 {
		a, err := net.ResolveUDPAddr("udp", from[0])
		require.NoError(w.t, err)
		local = a
	}
	var c *net.UDPConn
	require.NoError(w.t, w.client.Do(func() (err error) {
		c, err = net.DialUDP("udp", local, &net.UDPAddr{IP: net.ParseIP(vip), Port: port})
		return err
	}))
	defer c.Close()
	_, err := c.Write(make([]byte, size))
	require.NoError(w.t, err)
	require.NoError(w.t, c.SetReadDeadline(time.Now().Add(w.patience)))
	buf := make([]byte, 100)
	n, err := c.Read(buf)
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, syscall.ECONNREFUSED) {
		return ""
	}
	require.NoError(w.t, err)
	var name string
	var got int
	_, err = fmt.Sscan(string(buf[:n]), &name, &got)
	require.NoError(w.t, err)
	require.Equal(w.t, size, got)
	return name
}

// A test waits for a packet that must not come for answerTime, and for one that must come for patience: others keep the machine busy.
const (
	answerTime = 150 * time.Millisecond
	patience   = 10 * time.Second
)

// shares asks so often, from different ports, and counts who answered.
func (w *world) shares(vip string, port, times int) map[string]int {
	out := map[string]int{}
	for range times {
		out[w.ask(vip, port, 10)]++
	}
	return out
}

func names(shares map[string]int) []string { return slices.Sorted(maps.Keys(shares)) }

// serveTCP has every target accept TCP connections on a port of the VIPs, and say its number.
func (w *world) serveTCP(port int) {
	w.t.Helper()
	for i, s := range w.targets {
		for _, vip := range []string{vip4, vip6} {
			var l net.Listener
			require.NoError(w.t, s.Do(func() (err error) {
				l, err = net.Listen("tcp", net.JoinHostPort(vip, fmt.Sprint(port)))
				return err
			}))
			w.t.Cleanup(acceptAll(l, fmt.Sprint(i+1)))
		}
	}
}

// acceptAll serves a listener until the function that it returns is called.
func acceptAll(l net.Listener, name string) (stop func()) {
	var done sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	done.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			done.Go(func() { answerTCP(c, name) })
		}
	})
	return func() {
		l.Close()
		mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		done.Wait()
	}
}

// answerTCP answers each byte by the target's number.
func answerTCP(c net.Conn, name string) {
	defer c.Close()
	for {
		if _, err := c.Read(make([]byte, 1)); err != nil {
			return
		}
		if _, err := c.Write([]byte(name + "\n")); err != nil {
			return
		}
	}
}

// dialTCP connects from an address of the client; nil where nobody answers.
func (w *world) dialTCP(vip string, port int, from string) net.Conn {
	w.t.Helper()
	d := net.Dialer{Timeout: w.patience}
	if from != "" {
		a, err := net.ResolveTCPAddr("tcp", from)
		require.NoError(w.t, err)
		d.LocalAddr = a
	}
	var c net.Conn
	if w.client.Do(func() (err error) { c, err = d.Dial("tcp", net.JoinHostPort(vip, fmt.Sprint(port))); return err }) != nil {
		return nil
	}
	w.t.Cleanup(func() { c.Close() })
	return c
}

// said is which target is at the other end of a connection; empty where none answers in time.
func (w *world) said(c net.Conn) string {
	if c == nil {
		return ""
	}
	_ = c.SetDeadline(time.Now().Add(w.patience))
	if _, err := c.Write([]byte{'?'}); err != nil {
		return ""
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return ""
	}
	return strings.TrimSpace(line)
}

func (w *world) askTCP(vip string, port int, from string) string {
	c := w.dialTCP(vip, port, from)
	if c != nil {
		defer c.Close()
	}
	return w.said(c)
}

// trace is what the data plane says of a packet.
func (w *world) trace(vip string, protocol Protocol, from string, port int) *Trace {
	w.t.Helper()
	source := netip.MustParseAddrPort(from)
	t, err := w.plane.Trace(Packet{
		Source: source.Addr(), Destination: netip.MustParseAddr(vip), Protocol: protocol,
		SourcePort: source.Port(), DestinationPort: uint16(port), Start: true,
	})
	require.NoError(w.t, err)
	return t
}
