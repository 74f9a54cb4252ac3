package external

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// FollowConfig says how to follow a source.
type FollowConfig struct {
	Source Source
	// MaxStale is for how long the last good endpoints count after a failure; 0: not at all.
	MaxStale time.Duration
	// Last are endpoints that were good before, of another process perhaps, and count as held until the first report is good.
	Last []Endpoint
	// Since is when the source began to fail, if that process saw it fail; else zero. MaxStale counts from then.
	Since time.Time
}

// Follow runs the source and publishes what counts, each time that it changes, until ctx ends. Nothing is published before the
// first report: a process that has just begun does not know better than the one before it.
func Follow(ctx context.Context, cfg FollowConfig, publish func(State)) {
	ctx, cancel := context.WithCancel(ctx)
	reports := make(chan Report)
	var running sync.WaitGroup
	running.Go(func() {
		cfg.Source.Run(ctx, func(r Report) {
			select {
			case reports <- r:
			case <-ctx.Done():
			}
		})
	})
	defer func() { cancel(); running.Wait() }()

	f := &follower{maxStale: cfg.MaxStale, since: cfg.Since, last: cfg.Last, publish: publish}
	for {
		select {
		case <-ctx.Done():
			return
		case r := <-reports:
			f.take(r)
		case <-f.expiry():
			f.expire()
		}
	}
}

// follower is what Follow remembers.
type follower struct {
	maxStale time.Duration
	publish  func(State)

	since time.Time  // see FollowConfig
	last  []Endpoint // good, now or before
	state State      // published
	any   bool       // something was published
	// until is when last stops to count, while the source fails.
	until time.Time
	timer <-chan time.Time
}

func (f *follower) take(r Report) {
	if r.Failure == nil {
		state := accept(r.Endpoints)
		f.last, f.since, f.until, f.timer = state.Endpoints, time.Time{}, time.Time{}, nil
		f.say(state)
		return
	}
	if f.until.IsZero() {
		if f.since.IsZero() {
			f.since = time.Now()
		}
		f.until = f.since.Add(f.maxStale)
		f.timer = time.After(time.Until(f.until))
	}
	if !time.Now().Before(f.until) {
		f.last, f.timer = nil, nil
	}
	f.say(f.held(*r.Failure))
}

// held is the state while the source fails.
func (f *follower) held(why Failure) State {
	if len(f.last) == 0 {
		return State{Reason: why.Reason, Message: why.Message + " No address counts."}
	}
	return State{Endpoints: f.last, Reason: why.Reason, Message: fmt.Sprintf("%s The last known addresses count until %s.",
		why.Message, f.until.UTC().Format(time.RFC3339))}
}

func (f *follower) expiry() <-chan time.Time { return f.timer }

func (f *follower) expire() {
	f.last, f.timer = nil, nil
	f.say(State{Reason: f.state.Reason, Message: fmt.Sprintf("Since %s before %s there was no good answer. No address counts.",
		f.maxStale, f.until.UTC().Format(time.RFC3339))})
}

func (f *follower) say(s State) {
	if f.any && s.Equal(f.state) {
		return
	}
	f.any, f.state = true, s
	f.publish(s)
}
