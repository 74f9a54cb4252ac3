package netns

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// Pipe makes a TCP service outside reachable from inside the namespace, as that of a control plane. Inside it listens to a port of the
// loopback, whose address it returns; what arrives there is carried to the address outside, which need not exist yet. Call stop when
// nothing uses it any more.
func (s *Space) Pipe(outside string) (inside string, stop func(), err error) {
	var l net.Listener
	err = s.Do(func() (err error) {
		l, err = net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // returns at once
		return err
	})
	if err != nil {
		return "", nil, fmt.Errorf("listening in %s: %w", s.Name, err)
	}
	p := &pipe{to: outside, open: map[net.Conn]bool{}}
	p.running.Go(func() { p.accept(l) })
	return l.Addr().String(), func() {
		_ = l.Close()
		p.close()
		p.running.Wait()
	}, nil
}

type pipe struct {
	to      string
	running sync.WaitGroup
	mu      sync.Mutex
	open    map[net.Conn]bool
	closed  bool
}

func (p *pipe) accept(l net.Listener) {
	for {
		in, err := l.Accept()
		if err != nil {
			return
		}
		p.running.Go(func() {
			out, err := net.Dial("tcp", p.to) //nolint:noctx // to this machine
			if err != nil {
				_ = in.Close()
				return
			}
			p.carry(in, out)
		})
	}
}

// carry ends both connections when one ends.
func (p *pipe) carry(in, out net.Conn) {
	if !p.keep(in, out) {
		return
	}
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
		both.Go(func() {
			_, _ = io.Copy(way[0], way[1])
			_ = errors.Join(in.Close(), out.Close())
		})
	}
	both.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, in)
	delete(p.open, out)
}

func (p *pipe) keep(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		if p.closed {
			_ = c.Close()
			continue
		}
		p.open[c] = true
	}
	return !p.closed
}

func (p *pipe) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for c := range p.open {
		_ = c.Close()
	}
}
