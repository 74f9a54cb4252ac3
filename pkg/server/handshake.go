package server

import (
	"errors"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc/credentials"
)

// errAbandoned ends the handshake of a client that is gone.
var errAbandoned = errors.New("the client has gone before its handshake")

// orderly are credentials under which few handshakes are under way at a time, and fewer compute.
//
// When ten thousand clients come at once, the scheduler would give each handshake its share, all of them would be through at
// the same late moment, and clients with less patience would give up the lot. So instead some are through at any moment, and the
// work of a client that gave up meanwhile is not begun. As handshakes get half of the processors at most, those who are
// connected already do not suffer from those who knock, be they ten thousand friends or somebody who is never let in.
type orderly struct {
	credentials.TransportCredentials
	// places are for handshakes that are under way, turns for those that compute.
	places, turns *semaphore
}

const (
	// handshakesUnderWay is how many there are, unless clients are slow.
	handshakesUnderWay = 64
	// slowClient is how long a client may keep its place, so that those who fall silent do not keep others out.
	slowClient = 250 * time.Millisecond
)

func newOrderly(c credentials.TransportCredentials) *orderly {
	return &orderly{
		TransportCredentials: c,
		// Whoever waited longest is likely to give up next, and whoever came last can be somebody who comes again and again. So
		// nobody is preferred.
		places: newSemaphore(handshakesUnderWay, rand.IntN),
		turns:  newSemaphore(max(1, runtime.GOMAXPROCS(0)/2), oldest),
	}
}

// Clone implements credentials.TransportCredentials.
func (o *orderly) Clone() credentials.TransportCredentials {
	return &orderly{TransportCredentials: o.TransportCredentials.Clone(), places: o.places, turns: o.turns}
}

// ServerHandshake implements credentials.TransportCredentials.
func (o *orderly) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c := &queued{Conn: raw, orderly: o}
	defer c.finish()
	return o.TransportCredentials.ServerHandshake(c)
}

// queued is a connection whose handshake computes only in its turn. It has none while it waits for its client; what it writes
// fits into the buffers of a new connection.
type queued struct {
	net.Conn
	orderly *orderly

	// These are used by the goroutine of the handshake, which ends before others read.
	began, turn, done bool
	// leave gives the place back, once.
	leave func()
	// ahead was read and is not handed out yet: TLS asks for few bytes at a time, and a turn is for all that the client said.
	ahead []byte
}

// Read implements net.Conn.
func (c *queued) Read(b []byte) (int, error) {
	if len(c.ahead) == 0 {
		if c.done {
			return c.Conn.Read(b)
		}
		if err := c.hear(); err != nil {
			return 0, err
		}
	}
	n := copy(b, c.ahead)
	if c.ahead = c.ahead[n:]; len(c.ahead) == 0 {
		c.ahead = nil
	}
	return n, nil
}

// hear waits for what the client says, and then for a place and a turn.
func (c *queued) hear() error {
	c.rest()
	b := make([]byte, 4<<10)
	n, err := c.Conn.Read(b)
	if err != nil {
		return err
	}
	if !c.began {
		c.began = true
		c.enter()
		if gone(c.Conn) {
			return errAbandoned
		}
	}
	c.orderly.turns.take(nil)
	c.turn, c.ahead = true, b[:n]
	return nil
}

// enter waits for a place.
func (c *queued) enter() {
	places := c.orderly.places
	places.take(nil)
	c.leave = sync.OnceFunc(places.give)
	time.AfterFunc(slowClient, c.leave)
}

// rest gives the turn back.
func (c *queued) rest() {
	if c.turn {
		c.turn = false
		c.orderly.turns.give()
	}
}

func (c *queued) finish() {
	c.rest()
	if c.leave != nil {
		c.leave()
	}
	c.done = true
}

// gone tells whether the client has closed the connection. A client that has said hello says no more before it is answered, so
// there is nothing to read but the end.
func gone(c net.Conn) bool {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return true
	}
	ended := false
	err = raw.Control(func(fd uintptr) {
		n, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		ended = n == 0 && err == nil || errors.Is(err, syscall.ECONNRESET)
	})
	return ended || err != nil
}
