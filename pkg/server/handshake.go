package server

import (
	"errors"
	"net"
	"runtime"
	"sync"
	"syscall"

	"google.golang.org/grpc/credentials"
)

// errAbandoned ends the handshake of a client that is gone.
var errAbandoned = errors.New("the client has gone before its handshake")

// orderly are credentials under which only a few handshakes compute at a time, in the order in which their clients came, those
// that are under way before those that begin.
//
// When ten thousand clients come at once, the scheduler would give each handshake its share, all of them would be through at
// the same late moment, and clients with less patience would give up the lot. So instead some are through at any moment. The
// work of a client that gave up meanwhile is not begun. And as handshakes get half of the processors at most, those who are
// connected already do not suffer from those who knock, be they ten thousand friends or somebody who is never let in.
type orderly struct {
	credentials.TransportCredentials
	turns *turns
}

func newOrderly(c credentials.TransportCredentials) *orderly {
	return &orderly{TransportCredentials: c, turns: newTurns(max(1, runtime.GOMAXPROCS(0)/2))}
}

// Clone implements credentials.TransportCredentials.
func (o *orderly) Clone() credentials.TransportCredentials {
	return &orderly{TransportCredentials: o.TransportCredentials.Clone(), turns: o.turns}
}

// ServerHandshake implements credentials.TransportCredentials.
func (o *orderly) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c := &queued{Conn: raw, turns: o.turns}
	defer c.finish()
	return o.TransportCredentials.ServerHandshake(c)
}

// queued is a connection whose handshake computes only in its turn. While it waits for its client it has none, so clients that
// fall silent keep nobody waiting. What it writes fits into the buffers of a new connection.
type queued struct {
	net.Conn
	turns *turns

	// These are used by the goroutine of the handshake, which ends before others read.
	began, has, done bool
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

// hear waits for what the client says, and then for a turn.
func (c *queued) hear() error {
	c.release()
	b := make([]byte, 4<<10)
	n, err := c.Conn.Read(b)
	if err != nil {
		return err
	}
	c.turns.take(c.began)
	c.has = true
	if !c.began && gone(c.Conn) {
		return errAbandoned
	}
	c.began, c.ahead = true, b[:n]
	return nil
}

func (c *queued) release() {
	if c.has {
		c.has = false
		c.turns.give()
	}
}

func (c *queued) finish() {
	c.release()
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

// turns are given to those who wait in order, to the urgent ones first.
type turns struct {
	mu            sync.Mutex
	free          int
	urgent, first queue
}

func newTurns(n int) *turns { return &turns{free: n} }

// take waits for a turn.
func (t *turns) take(urgent bool) {
	t.mu.Lock()
	if t.free > 0 {
		t.free--
		t.mu.Unlock()
		return
	}
	mine := make(chan struct{})
	if urgent {
		t.urgent.push(mine)
	} else {
		t.first.push(mine)
	}
	t.mu.Unlock()
	<-mine
}

// give passes a turn on.
func (t *turns) give() {
	t.mu.Lock()
	defer t.mu.Unlock()
	next, ok := t.urgent.pop()
	if !ok {
		next, ok = t.first.pop()
	}
	if !ok {
		t.free++
		return
	}
	close(next)
}

// queue is first in, first out.
type queue struct{ waiting []chan struct{} }

func (q *queue) push(c chan struct{}) { q.waiting = append(q.waiting, c) }

func (q *queue) pop() (chan struct{}, bool) {
	if len(q.waiting) == 0 {
		return nil, false
	}
	c := q.waiting[0]
	q.waiting[0] = nil
	q.waiting = q.waiting[1:]
	return c, true
}
