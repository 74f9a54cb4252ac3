package main

import (
	"context"
	"fmt"
	"net"
	"net/rpc"
	"os"
	"path/filepath"
	"time"

	"github.com/nordix/meridio-nsp/test/process"
)

// socketEnv names, in the environment of a client process, the socket over which it is told what to do.
const socketEnv = "NSP_BENCH_SOCKET"

// peer is a client process.
type peer struct {
	process *process.Process
	rpc     *rpc.Client
}

// startPeer runs this program again as a client process.
func startPeer(ctx context.Context, dir, name string) (*peer, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program: %w", err)
	}
	socket := filepath.Join(dir, name+".sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listening for a client process: %w", err)
	}
	defer l.Close()
	if err := l.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return nil, err
	}
	p, err := process.Start(process.Config{
		Path: self,
		// The clients' garbage collection shall not take the processor from what is measured.
		Env: []string{socketEnv + "=" + socket, "GOGC=400"}, Output: os.Stderr,
	})
	if err != nil {
		return nil, err
	}
	conn, err := l.Accept()
	if err != nil {
		p.Kill()
		return nil, fmt.Errorf("waiting for a client process: %w", err)
	}
	return &peer{process: p, rpc: rpc.NewClient(conn)}, ctx.Err()
}

func (p *peer) stop() {
	_ = p.rpc.Close()
	p.process.Kill()
}

// call has a client process do something and waits for its answer.
func call[R any](ctx context.Context, p *peer, method string, args any) (R, error) {
	var reply R
	done := p.rpc.Go(method, args, &reply, make(chan *rpc.Call, 1)).Done
	select {
	case c := <-done:
		if c.Error != nil {
			return reply, fmt.Errorf("%s in a client process: %w", method, c.Error)
		}
		return reply, nil
	case <-ctx.Done():
		var none R
		return none, fmt.Errorf("%s in a client process: %w", method, context.Cause(ctx))
	}
}

// runClient is the main function of a client process: it does what it is told until its parent hangs up.
func runClient(socket string) error {
	if err := raiseFileLimit(); err != nil {
		return err
	}
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return fmt.Errorf("reaching the bench: %w", err)
	}
	s := rpc.NewServer()
	for _, service := range []any{&Fleet{}, &Balancers{}, &Legacy{}, &Sidecars{}, &Bare{}, &Flood{}} {
		if err := s.Register(service); err != nil {
			return fmt.Errorf("offering %T: %w", service, err)
		}
	}
	s.ServeConn(conn)
	return nil
}

// None is for calls without arguments or without an answer.
type None struct{}
