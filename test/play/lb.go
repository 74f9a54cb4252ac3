package play

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/targetpool/client"
)

// LB is a load balancer as far as the NSP sees one: it watches the feed of a conduit and remembers when it heard what.
type LB struct {
	feed *client.Feed

	mu      sync.Mutex
	targets map[client.Key]*client.Target
	updates int
	heard   time.Time
	changed chan struct{}
	observe func()
	// OnUpdate, if set before Run, is called for each update.
	OnUpdate func(client.Update)
}

// NewLB makes a load balancer of a conduit.
func NewLB(c *client.Client, trench, conduit string) (*LB, error) {
	lb := &LB{targets: make(map[client.Key]*client.Target), changed: make(chan struct{})}
	feed, err := c.WatchFeed(client.FeedConfig{
		Conduit: &targetpoolv1.Conduit{Trench: trench, Name: conduit},
		Handler: lb.update,
	})
	if err != nil {
		return nil, fmt.Errorf("making a load balancer: %w", err)
	}
	lb.feed = feed
	return lb, nil
}

// Run watches until ctx ends.
func (lb *LB) Run(ctx context.Context) error { return lb.feed.Run(ctx) }

func (lb *LB) update(u client.Update) {
	if lb.OnUpdate != nil {
		lb.OnUpdate(u)
	}
	defer lb.observed()
	lb.mu.Lock()
	defer lb.mu.Unlock()
	for _, t := range u.Removed {
		delete(lb.targets, t.Key)
	}
	for _, t := range u.Set {
		lb.targets[t.Key] = t
	}
	lb.updates++
	lb.heard = u.Received
	close(lb.changed)
	lb.changed = make(chan struct{})
}

// Observe has f called after each update that comes from now on.
func (lb *LB) Observe(f func()) {
	lb.mu.Lock()
	defer lb.mu.Unlock()
	lb.observe = f
}

func (lb *LB) observed() {
	lb.mu.Lock()
	f := lb.observe
	lb.mu.Unlock()
	if f != nil {
		f()
	}
}

// Updates is how often the load balancer was told something.
func (lb *LB) Updates() int {
	lb.mu.Lock()
	defer lb.mu.Unlock()
	return lb.updates
}

// Targets are those that it knows now.
func (lb *LB) Targets() map[client.Key]*client.Target {
	lb.mu.Lock()
	defer lb.mu.Unlock()
	return maps.Clone(lb.targets)
}

// Active are the pods, as namespace/name, that take traffic of a stream.
func (lb *LB) Active(stream string) map[string]bool {
	out := make(map[string]bool)
	for _, t := range lb.Targets() {
		if t.GetStream() == stream && t.GetState() == targetpoolv1.Target_STATE_ACTIVE {
			out[t.GetPod()] = true
		}
	}
	return out
}

// Live is whether it watches: the last connection that it made has brought a complete answer and has not broken since.
func (lb *LB) Live() bool { return lb.feed.Status().Live }

// WaitFor waits until what the load balancer knows satisfies the condition, and returns when it heard the last of it.
func (lb *LB) WaitFor(ctx context.Context, condition func(*LB) bool) (time.Time, error) {
	for {
		lb.mu.Lock()
		changed, heard := lb.changed, lb.heard
		lb.mu.Unlock()
		if condition(lb) {
			return heard, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("waiting for the load balancer to hear: %w", context.Cause(ctx))
		}
	}
}
