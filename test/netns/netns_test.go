package netns

import (
	"bytes"
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nordix/meridio-nsp/test/process"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A host reaches another one behind a router, on both families.
func TestThreeSpaces(t *testing.T) {
	a, router, b := Test(t, "a"), Test(t, "router"), Test(t, "b")
	require.NoError(t, router.Forward())
	require.NoError(t, router.AddBridge("br0", "10.0.2.1/24", "fd00:2::1/64"))
	Connect(t, End{Space: router, Link: "a", Addresses: []string{"10.0.1.1/24", "fd00:1::1/64"}},
		End{Space: a, Link: "eth0", Addresses: []string{"10.0.1.2/24", "fd00:1::2/64"}})
	Connect(t, End{Space: router, Link: "b", Bridge: "br0"},
		End{Space: b, Link: "eth0", Addresses: []string{"10.0.2.2/24", "fd00:2::2/64"}, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 9}})
	for _, s := range []struct {
		space *Space
		via   [2]string
	}{{a, [2]string{"10.0.1.1", "fd00:1::1"}}, {b, [2]string{"10.0.2.1", "fd00:2::1"}}} {
		s.space.Route(t, "0.0.0.0/0", s.via[0])
		s.space.Route(t, "::/0", s.via[1])
	}
	for _, address := range []string{"10.0.2.2:7", "[fd00:2::2]:7"} {
		var server net.PacketConn
		require.NoError(t, b.Do(func() (err error) { server, err = net.ListenPacket("udp", address); return err }))
		defer server.Close()
		var client net.Conn
		require.NoError(t, a.Do(func() (err error) { client, err = net.Dial("udp", address); return err }))
		defer client.Close()
		_, err := client.Write([]byte("hello"))
		require.NoError(t, err)
		got := make([]byte, 9)
		n, from, err := server.ReadFrom(got)
		require.NoError(t, err)
		require.Equal(t, "hello", string(got[:n]))
		require.Equal(t, client.LocalAddr().String(), from.String())
	}
}

// A program that is started in a namespace is in it, and the process that started it is not.
func TestStart(t *testing.T) {
	s := Test(t, "s")
	before, err := os.Readlink("/proc/self/ns/net")
	require.NoError(t, err)
	var inside string
	require.NoError(t, s.Do(func() (err error) { inside, err = os.Readlink("/proc/thread-self/ns/net"); return err }))
	require.NotEqual(t, before, inside)
	var out bytes.Buffer
	p, err := s.Start(process.Config{Path: "/bin/readlink", Args: []string{"/proc/self/ns/net"}, Output: &out})
	require.NoError(t, err)
	<-p.Exited()
	require.Equal(t, inside+"\n", out.String())
	after, err := os.Readlink("/proc/self/ns/net")
	require.NoError(t, err)
	require.Equal(t, before, after)
}

// A service outside is reached from inside.
func TestPipe(t *testing.T) {
	outside, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer outside.Close()
	s := Test(t, "s")
	address, stop, err := s.Pipe(outside.Addr().String())
	require.NoError(t, err)
	defer stop()
	var c net.Conn
	require.NoError(t, s.Do(func() (err error) { c, err = net.Dial("tcp", address); return err }))
	defer c.Close()
	in, err := outside.Accept()
	require.NoError(t, err)
	defer in.Close()
	for _, ends := range [][2]net.Conn{{c, in}, {in, c}} {
		_, err = ends[0].Write([]byte("hello"))
		require.NoError(t, err)
		got := make([]byte, 5)
		_, err = ends[1].Read(got)
		require.NoError(t, err)
		require.Equal(t, "hello", string(got))
	}
}
