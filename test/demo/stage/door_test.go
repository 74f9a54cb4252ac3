package stage

import (
	"bufio"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/test/netns"
)

// A door leads outside, closes when what is behind it closes, and cuts what is open when it is closed itself.
func TestDoor(t *testing.T) {
	space := netns.Test(t, "pod")
	server, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer server.Close()
	d, err := openDoor(space, server.Addr().String())
	require.NoError(t, err)
	defer d.close()
	dial := func() (inside, outside net.Conn) {
		require.NoError(t, space.Do(func() (err error) { inside, err = net.Dial("tcp", server.Addr().String()); return err }))
		outside, err := server.Accept()
		require.NoError(t, err)
		require.NoError(t, inside.SetDeadline(time.Now().Add(10*time.Second)))
		return inside, outside
	}
	ended := func(c net.Conn) {
		_, err := c.Read(make([]byte, 1))
		require.Error(t, err)
		require.NotErrorIs(t, err, net.ErrClosed)
		var timeout net.Error
		require.False(t, errors.As(err, &timeout) && timeout.Timeout(), "it is still open")
		c.Close()
	}

	inside, outside := dial()
	_, err = inside.Write([]byte("hello\n"))
	require.NoError(t, err)
	line, err := bufio.NewReader(outside).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "hello\n", line)
	outside.Close()
	ended(inside)

	inside, outside = dial()
	defer outside.Close()
	d.close()
	ended(inside)
}
