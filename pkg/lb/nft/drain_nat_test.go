package nft

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// While a target drains, connections that it has stay with it, new ones go elsewhere and stay there when the next one drains too.
func TestDraining(t *testing.T) {
	w := newWorld(t, 3)
	w.serveTCP(5000)
	w.serve(5000)
	w.apply(simple(1, 2, 3))
	d := simple(1, 2, 3)
	for _, vip := range vips {
		of := map[string]net.Conn{}
		for len(of) < 3 {
			c := w.dialTCP(vip, 5000, "")
			of[w.said(c)] = c
		}
		d.Streams[0].Targets[0].Draining = true
		w.apply(d)
		for name, c := range of {
			require.Equal(t, name, w.said(c), "a connection from before")
		}
		young := map[string]net.Conn{}
		for range 60 {
			c := w.dialTCP(vip, 5000, "")
			young[w.said(c)] = c
		}
		require.Equal(t, []string{"2", "3"}, names(countKeys(young)), "new connections")
		require.Equal(t, []string{"2", "3"}, names(w.shares(vip, 5000, 30)), "UDP")
		d.Streams[0].Targets[1].Draining = true
		w.apply(d)
		for name, c := range young {
			require.Equal(t, name, w.said(c), "a connection from during the first drain")
		}
		require.Equal(t, "1", w.said(of["1"]))
		require.Equal(t, "3", w.askTCP(vip, 5000, ""))
		w.apply(simple(3))
		require.Equal(t, "3", w.said(of["3"]))
		require.Empty(t, w.briefly().said(of["1"]))
		d = simple(1, 2, 3)
		w.apply(d)
	}
}

// SCTP drains as TCP does: an association that began before stays, one that begins meanwhile goes elsewhere with all its packets.
func TestDrainingSCTP(t *testing.T) {
	w := newWorld(t, 2)
	d := simple(1, 2)
	w.apply(d)
	got := w.rawSCTP(unix.AF_INET)
	port := map[string]uint16{}
	for p := uint16(4000); len(port) < 2; p++ {
		w.sendSCTP(vip4, sctp(p, 3868, 1))
		port[heard(got)[:1]] = p
	}
	d.Streams[0].Targets[0].Draining = true
	w.apply(d)
	w.sendSCTP(vip4, sctp(port["1"], 3868, 0))
	require.Equal(t, "1", heard(got)[:1], "DATA of an association from before")
	w.sendSCTP(vip4, sctp(port["1"], 3868, 1))
	require.Equal(t, "2", heard(got)[:1], "a new INIT from the same port")
	w.sendSCTP(vip4, sctp(port["1"], 3868, 0))
	require.Equal(t, "2", heard(got)[:1], "what comes after it")
}

func countKeys(m map[string]net.Conn) map[string]int {
	out := map[string]int{}
	for k := range m {
		out[k]++
	}
	return out
}

// The destination port is rewritten on the way to the target and back, and in the errors about what comes back.
func TestPortNAT(t *testing.T) {
	w := newWorld(t, 2)
	d := simple(1, 2)
	d.Flows[0].DestinationPorts = ports("80")
	for _, p := range Protocols {
		d.NATs = append(d.NATs, PortNAT{Protocol: p, Port: 80, TargetPort: 8080})
	}
	// What comes out of one translation does not go into another.
	d.NATs = append(d.NATs, PortNAT{Protocol: TCP, Port: 8080, TargetPort: 8081})
	d.NATs = append(d.NATs, PortNAT{Protocol: UDP, Port: 80, TargetPort: 8081, VIPs: prefixes("30.0.0.1/32")})
	require.Empty(t, w.apply(d).Refused)
	for _, vip := range vips {
		natError(t, w, vip)
	}
	w.serve(8080)
	w.serveTCP(8080)
	for _, vip := range vips {
		require.Equal(t, []string{"1", "2"}, names(w.shares(vip, 80, 20)), vip)
		require.Equal(t, "1", w.ask(vip, 80, 3000, w.portOf(vip, UDP, 1)), "fragments")
		require.NotEmpty(t, w.askTCP(vip, 80, ""))
		require.Empty(t, w.briefly().ask(vip, 8080, 10))
		require.Equal(t, uint16(8080), w.trace(vip, TCP, netip.AddrPortFrom(netip.MustParseAddr(clientOf(vip)), 9).String(), 80).TargetPort)
	}
	require.NotEmpty(t, w.askWithoutChecksum(80))
	got := w.rawSCTP(unix.AF_INET)
	w.sendSCTP(vip4, sctp(4000, 80, 1))
	require.Contains(t, heard(got), ":0fa01f90")
}

// askWithoutChecksum sends a datagram that has none.
func (w *world) askWithoutChecksum(port int) string {
	w.t.Helper()
	var c *net.UDPConn
	require.NoError(w.t, w.client.Do(func() (err error) {
		c, err = net.DialUDP("udp4", nil, &net.UDPAddr{IP: net.ParseIP(vip4), Port: port})
		return err
	}))
	defer c.Close()
	raw, err := c.SyscallConn()
	require.NoError(w.t, err)
	require.NoError(w.t, raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_NO_CHECK, 1) }))
	require.NoError(w.t, err)
	_, err = c.Write([]byte("unchecked"))
	require.NoError(w.t, err)
	require.NoError(w.t, c.SetReadDeadline(time.Now().Add(w.patience)))
	buf := make([]byte, 100)
	n, err := c.Read(buf)
	require.NoError(w.t, err)
	return string(buf[:n])
}

// portOf is a source port from which a target is reached.
func (w *world) portOf(vip string, p Protocol, id uint32) string {
	for port := uint16(20000); ; port++ {
		from := netip.AddrPortFrom(netip.MustParseAddr(clientOf(vip)), port).String()
		if w.trace(vip, p, from, 80).Identifier == id {
			return from
		}
	}
}

// natError has a target answer from port 8080 to a client that has gone.
func natError(t *testing.T, w *world, vip string) {
	from := netip.MustParseAddrPort(w.portOf(vip, UDP, 2))
	var c *net.UDPConn
	require.NoError(t, w.targets[1].Do(func() (err error) {
		c, err = net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP(vip), Port: 8080}, net.UDPAddrFromAddrPort(from))
		return err
	}))
	defer c.Close()
	_, err := c.Write([]byte("anybody there?"))
	require.NoError(t, err)
	require.ErrorIs(t, refused(c), unix.ECONNREFUSED, vip)
}
