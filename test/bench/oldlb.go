package main

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
)

// Legacy, in a client process, are load balancers of Meridio 1.x: each, on a connection of its own, watches the ENABLED targets
// of every stream and is sent whole lists. They look at no list, so that they take little time from what is measured.
type Legacy struct {
	all     []*oldBalancer
	ctx     context.Context
	end     context.CancelFunc
	running sync.WaitGroup
}

type oldBalancer struct {
	mu sync.Mutex
	// at and size are, by stream, of the last list.
	at   []int64
	size []int
	// bytes and lists add up.
	bytes, lists int
}

// LegacyArgs say how many there shall be.
type LegacyArgs struct {
	Dial           dial
	Count, Streams int
}

// Connect adds load balancers until there are Count, and returns when each has all its lists.
func (l *Legacy) Connect(a LegacyArgs, took *time.Duration) error {
	began := time.Now()
	if l.ctx == nil {
		l.ctx, l.end = context.WithCancel(context.Background())
	}
	for len(l.all) < a.Count {
		conn, err := a.Dial.open(connectLimit)
		if err != nil {
			return err
		}
		context.AfterFunc(l.ctx, func() { _ = conn.Close() })
		lb := &oldBalancer{at: make([]int64, a.Streams), size: make([]int, a.Streams)}
		l.all = append(l.all, lb)
		for s := range a.Streams {
			l.running.Go(func() { lb.run(l.ctx, conn, s) })
		}
	}
	err := until(time.Minute, "connecting all load balancers", func() bool {
		return l.every(func(lb *oldBalancer) bool {
			for _, at := range lb.at {
				if at == 0 {
					return false
				}
			}
			return true
		})
	})
	*took = time.Since(began)
	return err
}

// Close ends everything.
func (l *Legacy) Close(None, *None) error {
	if l.end != nil {
		l.end()
		l.running.Wait()
	}
	*l = Legacy{}
	return nil
}

func (l *Legacy) every(holds func(*oldBalancer) bool) bool {
	for _, lb := range l.all {
		lb.mu.Lock()
		ok := holds(lb)
		lb.mu.Unlock()
		if !ok {
			return false
		}
	}
	return true
}

func (lb *oldBalancer) run(ctx context.Context, conn *grpc.ClientConn, stream int) {
	codec := grpc.ForceCodecV2(newLengths())
	for ctx.Err() == nil {
		w, err := nspv1.NewTargetRegistryClient(conn).Watch(ctx, &nspv1.Target{Stream: legacyStream(stream)},
			codec, grpc.WaitForReady(true))
		for err == nil {
			var n length
			if err = w.RecvMsg(&n); err == nil {
				lb.take(stream, int(n), time.Now().UnixNano())
			}
		}
		pause(ctx, 500*time.Millisecond)
	}
}

func (lb *oldBalancer) take(stream, size int, now int64) {
	lb.mu.Lock()
	defer lb.mu.Unlock()
	lb.at[stream], lb.size[stream] = now, size
	lb.bytes += size
	lb.lists++
}

// ListArgs ask for a list of a stream after a time.
type ListArgs struct {
	Stream int
	Since  int64
}

// ListReply is when each load balancer got the list, and how long it is in bytes.
type ListReply struct {
	At   []int64
	Size int
}

// List waits until every load balancer has had a list of the stream since then. Where nothing else changes, the list tells of
// the change that was made at that time.
func (l *Legacy) List(a ListArgs, r *ListReply) error {
	err := until(30*time.Second, "getting a list", func() bool {
		return l.every(func(lb *oldBalancer) bool { return lb.at[a.Stream] >= a.Since })
	})
	for _, lb := range l.all {
		lb.mu.Lock()
		r.At, r.Size = append(r.At, lb.at[a.Stream]), max(r.Size, lb.size[a.Stream])
		lb.mu.Unlock()
	}
	return err
}

// Quiet waits until no list has come for a while.
func (l *Legacy) Quiet(d time.Duration, _ *None) error {
	return until(time.Minute, "waiting for the last list", func() bool {
		now := time.Now().UnixNano()
		return l.every(func(lb *oldBalancer) bool {
			for _, at := range lb.at {
				if now-at < int64(d) {
					return false
				}
			}
			return true
		})
	})
}

// Volume is what was sent.
type Volume struct{ Lists, Bytes int }

// Volume tells what all were sent since it was last asked.
func (l *Legacy) Volume(_ None, v *Volume) error {
	for _, lb := range l.all {
		lb.mu.Lock()
		v.Lists, v.Bytes = v.Lists+lb.lists, v.Bytes+lb.bytes
		lb.lists, lb.bytes = 0, 0
		lb.mu.Unlock()
	}
	return nil
}
