package server

import (
	"cmp"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nordix/meridio-nsp/pkg/auth"
)

// Limits bound what callers may take. 0 is no limit. What is per peer does not hold for loopback, behind which there is
// kubectl port-forward or a proxy of the pod's own.
type Limits struct {
	// Watches are streams that are open; WatchesPerPod those of one pod or machine where that is proven, WatchesPerPeer those of one source
	// address where it is not, or of a trench process, which watches for others.
	Watches, WatchesPerPod, WatchesPerPeer int
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
	uid := cmp.Or(c.Pod.UID, c.Target.UID)
	switch {
	case uid != "":
		as = watchingAs{pod: uid}
		if !c.TrenchProcess {
			each = s.cfg.Limits.WatchesPerPod
		}
	case c.Local():
		each = 0
	}
	switch total, own := s.watches.take(as, s.cfg.Limits.Watches, each); {
	case !own:
		return nil, auth.TooMany(auth.TooManyWatches, "this caller has %d watches open already: close some first", each)
	case !total:
		return nil, auth.TooMany(auth.TooManyWatches, "%d watches are open already", s.cfg.Limits.Watches)
	}
	return func() { s.watches.give(as) }, nil
}

// limitedListener closes connections for which there is no room, before anything is read from them, and those that have not greeted
// when the server stops.
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
			return l.limit(c, addr), nil
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
	server *Server
	addr   netip.Addr
	closed atomic.Bool
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	if !c.closed.Swap(true) {
		c.server.connections.give(c.addr)
		c.server.arrivals.done(c)
	}
	return c.Conn.Close()
}

// SetDeadline implements net.Conn. gRPC lifts the deadline of a connection once its client has greeted.
func (c *limitedConn) SetDeadline(t time.Time) error {
	if t.IsZero() {
		c.server.arrivals.done(c)
	}
	return c.Conn.SetDeadline(t)
}

// limitedFile is a limitedConn with a file descriptor.
type limitedFile struct {
	*limitedConn
	syscall.Conn
}

// limit has a connection that has taken its place give it back.
func (l limitedListener) limit(c net.Conn, addr netip.Addr) net.Conn {
	limited := &limitedConn{Conn: c, server: l.server, addr: addr}
	l.server.arrivals.begin(limited, func() { _ = limited.Conn.Close() })
	if file, ok := c.(syscall.Conn); ok {
		return limitedFile{limited, file}
	}
	return limited
}
