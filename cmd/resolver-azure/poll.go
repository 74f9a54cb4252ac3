package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	resolverv1 "github.com/nordix/meridio-nsp/api/resolver/v1"
)

const (
	// atOnce is how many scale sets are asked for at the same time.
	atOnce = 8
	// patience is how long one reading may take, with all its pages.
	patience = 2 * time.Minute
	// longestPause is the longest pause after failures, unless Azure asks for a longer one.
	longestPause = 5 * time.Minute
	// longestRetryAfter is the longest pause that is granted to Azure.
	longestRetryAfter = time.Hour
)

// state is what a poll knows: the answer, or why it has none now, or neither yet.
type state struct {
	answer *resolverv1.WatchResponse
	err    error
}

// poll asks for one scale set, for all streams that follow it.
type poll struct {
	set    scaleSet
	reader *reader

	// Of the polls' mutex.
	state    state
	changed  chan struct{} // closed at the next change
	watchers int
	asked    bool // whether a stream has come since the last reading
}

// polls are all there are, by resource id. The goroutines of polls end with the context of newPolls.
type polls struct {
	azure    azure
	interval time.Duration
	log      *slog.Logger
	slots    chan struct{}
	spawn    func(*poll)
	running  sync.WaitGroup

	mu  sync.Mutex
	all map[string]*poll
}

func newPolls(ctx context.Context, a azure, interval time.Duration, log *slog.Logger) *polls {
	p := &polls{azure: a, interval: interval, log: log, slots: make(chan struct{}, atOnce), all: map[string]*poll{}}
	p.spawn = func(one *poll) { p.running.Go(func() { p.run(ctx, one) }) }
	return p
}

// join finds the poll of the scale set, or starts it.
func (p *polls) join(set scaleSet) (*poll, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	one := p.all[set.id()]
	if one == nil {
		reader, err := p.azure.reader(set)
		if err != nil {
			return nil, err
		}
		one = &poll{set: set, reader: reader, changed: make(chan struct{})}
		p.all[set.id()] = one
		p.spawn(one)
	}
	one.watchers++
	one.asked = true
	return one, nil
}

func (p *polls) leave(one *poll) {
	p.mu.Lock()
	defer p.mu.Unlock()
	one.watchers--
}

// look returns what is known and a channel that is closed when it has changed.
func (p *polls) look(one *poll) (state, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return one.state, one.changed
}

func (p *polls) publish(one *poll, s state) {
	p.mu.Lock()
	defer p.mu.Unlock()
	one.state, one.asked = s, false
	close(one.changed)
	one.changed = make(chan struct{})
}

// wanted returns whether anybody follows, or has since the last reading; if not, the poll is forgotten. That it outlives its
// streams is what holds up those that come again after a failure: they find the fault, and do not ask Azure early.
func (p *polls) wanted(one *poll) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if one.watchers > 0 || one.asked {
		return true
	}
	delete(p.all, one.set.id())
	return false
}

func (p *polls) run(ctx context.Context, one *poll) {
	failures := 0
	for {
		found, err := p.read(ctx, one.reader)
		if ctx.Err() != nil {
			return
		}
		pause := p.interval
		if err == nil {
			failures = 0
			p.publish(one, state{answer: &resolverv1.WatchResponse{Endpoints: found}})
		} else {
			failures++
			pause = backoff(p.interval, failures, retryAfter(err, time.Now()))
			p.publish(one, state{err: fault(one.set, err)})
			p.log.Warn("a scale set cannot be read", "id", one.set.id(), "again", pause.String(), "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		if !p.wanted(one) {
			return
		}
	}
}

func (p *polls) read(ctx context.Context, r *reader) ([]*resolverv1.Endpoint, error) {
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	slow := fmt.Errorf("reading took longer than %s: %w", patience, context.DeadlineExceeded)
	ctx, cancel := context.WithTimeoutCause(ctx, patience, slow)
	defer cancel()
	found, err := r.read(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = context.Cause(ctx)
	}
	return found, err
}

// backoff is the pause after so many failures in a row: the interval doubled each time, and never less than Azure asks for.
func backoff(interval time.Duration, failures int, retryAfter time.Duration) time.Duration {
	pause := interval << min(failures-1, 10)
	return max(interval, min(pause, longestPause), min(retryAfter, longestRetryAfter))
}
