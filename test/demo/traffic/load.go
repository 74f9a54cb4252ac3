package traffic

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"github.com/nordix/meridio-nsp/test/netns"
)

// Load is what a client sends.
type Load struct {
	// Space is where the client is.
	Space *netns.Space
	// To is address and port.
	To netip.AddrPort
	// Packets and Connections are how many UDP packets and TCP connections there are a second.
	Packets, Connections int
	// Flows is from how many ports the packets come, in turn.
	Flows int
	// UDP and TCP keep account.
	UDP, TCP *Ledger
}

// answerTime is how long a connection may take until its answer is there.
const answerTime = 500 * time.Millisecond

// callers is how many connections there can be at once.
const callers = 10

// Run sends until ctx ends, and closes everything.
func (l Load) Run(ctx context.Context) error {
	sockets, err := l.sockets()
	defer func() {
		for _, s := range sockets {
			s.Close()
		}
	}()
	if err != nil {
		return err
	}
	var running sync.WaitGroup
	defer running.Wait()
	failed := make(chan error, callers)
	for i := range callers {
		running.Go(func() { failed <- l.call(ctx, time.Duration(i)*time.Second/time.Duration(l.Connections)) })
	}
	if err := l.send(ctx, sockets); err != nil {
		return err
	}
	running.Wait()
	for range callers {
		if err := <-failed; err != nil {
			return err
		}
	}
	return nil
}

// sockets are not connected, so that an ICMP error about one packet does not keep the next one from being sent.
func (l Load) sockets() (all []*net.UDPConn, err error) {
	err = l.Space.Do(func() error {
		for range l.Flows {
			s, err := net.ListenUDP("udp4", nil)
			if err != nil {
				return fmt.Errorf("opening a socket of the client: %w", err)
			}
			all = append(all, s)
		}
		return nil
	})
	return all, err
}

// backlog is for how long the sender catches up with what it did not send in time, because this machine was busy.
const backlog = 20 * time.Millisecond

// send keeps the pace: what is late is sent at once, what is later than backlog is not sent.
func (l Load) send(ctx context.Context, sockets []*net.UDPConn) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	began, sent := time.Now(), 0
	due := func(d time.Duration) int { return int(d * time.Duration(l.Packets) / time.Second) }
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now := due(time.Since(began))
		for sent = max(sent, now-due(backlog)); sent < now; sent++ {
			text := binary.BigEndian.AppendUint32(make([]byte, 0, 4), l.UDP.Send(time.Now()))
			if _, err := sockets[sent%len(sockets)].WriteToUDPAddrPort(text, l.To); err != nil {
				return fmt.Errorf("sending a packet: %w", err)
			}
		}
	}
}

// call makes one connection after the other, each for one answer.
func (l Load) call(ctx context.Context, offset time.Duration) error {
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	if err := l.Space.Enter(); err != nil {
		return err
	}
	wait := time.NewTimer(offset)
	defer wait.Stop()
	pace := callers * time.Second / time.Duration(l.Connections)
	for next := time.Now().Add(offset); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-wait.C:
		}
		number := l.TCP.Send(time.Now())
		if target := l.ask(); target != Nowhere {
			l.TCP.Took(number, target)
		}
		next = later(next.Add(pace), time.Now())
		wait.Reset(time.Until(next))
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// ask connects and returns who answers. A connection to an address is made on the thread that asks for it.
func (l Load) ask() (target int) {
	deadline := time.Now().Add(answerTime)
	dialer := net.Dialer{Deadline: deadline}
	conn, err := dialer.Dial("tcp4", l.To.String()) //nolint:noctx // the deadline bounds it
	if err != nil {
		return Nowhere
	}
	defer conn.Close()
	_ = conn.SetDeadline(deadline)
	var answer [2]byte
	if _, err := io.ReadFull(conn, answer[:]); err != nil {
		return Nowhere
	}
	return int(binary.BigEndian.Uint16(answer[:]))
}
