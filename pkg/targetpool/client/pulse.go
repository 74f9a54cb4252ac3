package client

import (
	"context"
	"time"
)

// pulse watches over the signs of life of one stream. It runs only while the stream is waited for, so that a slow handler
// is not taken for a silent server.
type pulse struct {
	timeout time.Duration
	timer   *time.Timer
	live    func()
	beating bool
}

// newPulse starts it: the time to connect counts.
func newPulse(timeout time.Duration, cancel context.CancelCauseFunc, live func()) *pulse {
	return &pulse{
		timeout: timeout,
		timer:   time.AfterFunc(timeout, func() { cancel(errSilent) }),
		live:    live,
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
	p.timer.Reset(p.timeout)
	defer p.timer.Stop()
	return recv()
}
