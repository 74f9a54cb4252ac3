package stage

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/nordix/meridio-nsp/test/netns"
)

// door is an address in a network namespace that leads to the same address outside. It takes the place of the cluster's network
// between pods and the nsp, so that nothing has to be set up, and cleared away, in the namespace of the machine.
type door struct {
	address  string
	listener net.Listener
	running  sync.WaitGroup

	mu   sync.Mutex
	open map[net.Conn]bool // nil when the door is closed
}

func openDoor(space *netns.Space, address string) (*door, error) {
	d := &door{address: address, open: make(map[net.Conn]bool)}
	err := space.Do(func() (err error) {
		d.listener, err = net.Listen("tcp", address) //nolint:noctx // returns at once
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("opening a door in %s: %w", space.Name, err)
	}
	d.running.Go(d.serve)
	return d, nil
}

func (d *door) serve() {
	for {
		in, err := d.listener.Accept()
		if err != nil {
			return
		}
		d.running.Go(func() { d.pass(in) })
	}
}

// pass copies both ways until either end closes.
func (d *door) pass(in net.Conn) {
	defer in.Close()
	var dialer net.Dialer
	out, err := dialer.DialContext(context.Background(), "tcp", d.address)
	if err != nil {
		return
	}
	defer out.Close()
	if !d.keep(in, out) {
		return
	}
	defer d.drop(in, out)
	var back sync.WaitGroup
	back.Go(func() {
		_, _ = io.Copy(in, out)
		in.Close()
	})
	_, _ = io.Copy(out, in)
	out.Close()
	back.Wait()
}

func (d *door) keep(conns ...net.Conn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.open == nil {
		return false
	}
	for _, c := range conns {
		d.open[c] = true
	}
	return true
}

func (d *door) drop(conns ...net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range conns {
		delete(d.open, c)
	}
}

// close cuts what is open and waits. It is safe to call again.
func (d *door) close() {
	d.listener.Close()
	d.mu.Lock()
	for c := range d.open {
		c.Close()
	}
	d.open = nil
	d.mu.Unlock()
	d.running.Wait()
}
