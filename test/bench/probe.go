package main

import (
	"context"
	"sync"
	"time"
)

// ProbeArgs say who registers, and what.
type ProbeArgs struct {
	// First and Count select the members that are registered, in turns; each of the callers uses the connections of its own.
	First, Count, Callers int
	For                   time.Duration
	// Change alternates the status, so that every call changes something; else every call is a refresh.
	Change bool
	// Pause is kept between two calls of a caller.
	Pause time.Duration
}

// ProbeReply is how it went.
type ProbeReply struct {
	Calls, Failed int
	Failure       string
	Took          time.Duration
	Each          []time.Duration
}

// perSecond is the rate.
func (r ProbeReply) perSecond() float64 { return float64(r.Calls) / r.Took.Seconds() }

// Probe calls Register for a while.
func (f *Fleet) Probe(a ProbeArgs, reply *ProbeReply) error {
	ctx, cancel := context.WithTimeout(f.ctx, a.For)
	defer cancel()
	var calling sync.WaitGroup
	var mu sync.Mutex
	began := time.Now()
	for c := range a.Callers {
		calling.Go(func() {
			mine := f.probe(ctx, a, c)
			mu.Lock()
			defer mu.Unlock()
			reply.Each = append(reply.Each, mine.Each...)
			reply.Failed += mine.Failed
			if mine.Failure != "" {
				reply.Failure = mine.Failure
			}
		})
	}
	calling.Wait()
	reply.Took, reply.Calls = time.Since(began), len(reply.Each)
	return nil
}

// probe is one caller. A call that is on its way when the time is up is finished and counts.
func (f *Fleet) probe(ctx context.Context, a ProbeArgs, caller int) ProbeReply {
	var r ProbeReply
	for i := caller; ctx.Err() == nil; i += a.Callers {
		m := f.members[a.First+i%a.Count]
		one, cancel := context.WithTimeout(f.ctx, time.Minute)
		began := time.Now()
		var err error
		if a.Change {
			err = m.flip(one)
		} else {
			err = m.again(one)
		}
		cancel()
		if err != nil {
			r.Failed, r.Failure = r.Failed+1, err.Error()
		} else {
			r.Each = append(r.Each, time.Since(began))
		}
		if a.Pause > 0 {
			wait(ctx, a.Pause)
		}
	}
	return r
}
