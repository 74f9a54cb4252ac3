package server

import (
	"cmp"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/nordix/meridio-nsp/pkg/auth"
)

// Limits bound what callers may take. 0 is no limit. What is per peer does not hold for loopback, behind which there is
// kubectl port-forward or a proxy of the pod's own.
type Limits struct {
	// Watches are streams that are open; WatchesPerPeer those of one pod where that is proven, else of one source address.
	Watches, WatchesPerPeer int
	// Connections are those that are open, handshakes included.
	Connections, ConnectionsPerPeer int
	// RequestBytes is the largest message that is taken; 0 is gRPC's own limit of 4 MiB.
	RequestBytes int
}

// counted counts by key and in total.
type counted[K comparable] struct {
	mu    sync.Mutex
	total int
	by    map[K]int
}

// take takes one, unless there is no room: most in total, and mostEach for the key, where that is above 0.
func (c *counted[K]) take(k K, most, mostEach int) (total, each bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	total, each = most <= 0 || c.total < most, mostEach <= 0 || c.by[k] < mostEach
	if total && each {
		if c.by == nil {
			c.by = make(map[K]int)
		}
		c.total++
		c.by[k]++
	}
	return total, each
}

func (c *counted[K]) give(k K) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.total--
	if c.by[k]--; c.by[k] == 0 {
		delete(c.by, k)
	}
}

// watchingAs is what watches are counted by.
type watchingAs struct {
	addr netip.Addr
	pod  string
}

// beginWatch finds room for a watch; done gives it back.
func (s *Server) beginWatch(c auth.Caller) (done func(), err error) {
	as, each := watchingAs{addr: c.Addr}, s.cfg.Limits.WatchesPerPeer
	if uid := cmp.Or(c.Pod.UID, c.Target.UID); uid != "" {
		as = watchingAs{pod: uid}
	} else if c.Local() {
		each = 0
	}
	switch total, own := s.watches.take(as, s.cfg.Limits.Watches, each); {
	case !own:
		return nil, auth.TooMany(auth.TooManyWatches, "this peer has %d watches open already", each)
	case !total:
		return nil, auth.TooMany(auth.TooManyWatches, "%d watches are open already", s.cfg.Limits.Watches)
	}
	return func() { s.watches.give(as) }, nil
}

// limitedListener closes connections for which there is no room, before anything is read from them.
type limitedListener struct {
	net.Listener
	server *Server
}

// Accept implements net.Listener.
func (l limitedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		addr, each := netip.Addr{}, l.server.cfg.Limits.ConnectionsPerPeer
		if tcp, ok := c.RemoteAddr().(*net.TCPAddr); ok {
			addr = tcp.AddrPort().Addr().Unmap().WithZone("")
		}
		if !addr.IsValid() || addr.IsLoopback() {
			each = 0
		}
		if total, own := l.server.connections.take(addr, l.server.cfg.Limits.Connections, each); total && own {
			return limit(c, func() { l.server.connections.give(addr) }), nil
		}
		_ = c.Close()
		l.server.refused(auth.TooManyCalls)
		l.server.loud.Do(func() {
			l.server.cfg.Log.Warn("a connection was refused: too many are open", "peer", addr.String())
		})
	}
}

// limitedConn gives its place back when it is closed.
type limitedConn struct {
	net.Conn
	done   func()
	closed atomic.Bool
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	if !c.closed.Swap(true) {
		c.done()
	}
	return c.Conn.Close()
}

// limitedFile is a limitedConn with a file descriptor.
type limitedFile struct {
	*limitedConn
	syscall.Conn
}

// limit gives a connection's place back by done when it is closed.
func limit(c net.Conn, done func()) net.Conn {
	limited := &limitedConn{Conn: c, done: done}
	if file, ok := c.(syscall.Conn); ok {
		return limitedFile{limited, file}
	}
	return limited
}
