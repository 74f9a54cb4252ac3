package client

import (
	"context"
	"sync/atomic"
	"time"
)

// pulse watches over the signs of life of one stream. It runs only while the stream is waited for, so that a slow handler
// is not taken for a silent server.
type pulse struct {
	timeout time.Duration
	timer   *time.Timer
	live    func()
	beating bool
	// phase is how far the attempt got.
	phase atomic.Int32
}

// The phases of an attempt: nothing is known of the server, it is there, there is a stream.
const (
	dialing int32 = iota
	reached
	open
)

// newPulse starts it: the time to connect counts.
func newPulse(timeout time.Duration, cancel context.CancelCauseFunc, live func()) *pulse {
	return &pulse{
		timeout: timeout,
		timer:   time.AfterFunc(timeout, func() { cancel(errSilent) }),
		live:    live,
	}
}

// reached says that the server is there. A connection may take so long to be made, and a server that makes many is not silent.
func (p *pulse) reached(limit time.Duration) {
	if p.phase.CompareAndSwap(dialing, reached) {
		p.timer.Reset(limit + p.timeout)
	}
}

// committed says that the stream brought the receiver up to date.
func (p *pulse) committed() {
	if !p.beating {
		p.beating = true
		p.live()
	}
}

func (p *pulse) stop() { p.timer.Stop() }

// receive waits for one message.
func receive[T any](p *pulse, recv func() (T, error)) (T, error) {
	p.phase.Store(open)
	p.timer.Reset(p.timeout)
	defer p.timer.Stop()
	return recv()
}
