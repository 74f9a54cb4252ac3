package play

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
)

// LegacyLB is a load balancer of Meridio 1.x as far as the NSP sees one: for each stream it watches the ENABLED targets over
// nsp.v1, gets full lists, and acts on differences. What it has survives a broken watch.
type LegacyLB struct {
	registry nspv1.TargetRegistryClient
	streams  []*targetpoolv1.Stream
	// OnUpdate, if set before Run, is called for each list that differs from the one before, for one stream at a time.
	OnUpdate func(LegacyUpdate)

	mu      sync.Mutex
	targets map[string]map[string]bool
	live    map[string]bool
	changed chan struct{}
}

// LegacyUpdate is what one list changed. Targets are named by their addresses, in their order, separated by commas.
type LegacyUpdate struct {
	Stream         string
	Added, Removed []string
	Received       time.Time
}

// NewLegacyLB makes a load balancer of some streams of a conduit.
func NewLegacyLB(conn grpc.ClientConnInterface, trench, conduit string, streams ...string) *LegacyLB {
	lb := &LegacyLB{
		registry: nspv1.NewTargetRegistryClient(conn), targets: make(map[string]map[string]bool),
		live: make(map[string]bool), changed: make(chan struct{}),
	}
	for _, s := range streams {
		lb.streams = append(lb.streams, &targetpoolv1.Stream{Trench: trench, Conduit: conduit, Name: s})
	}
	return lb
}

// Run watches until ctx ends. A watch that breaks is opened again after half a second, as Meridio does.
func (lb *LegacyLB) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	for _, s := range lb.streams {
		running.Go(func() {
			for ctx.Err() == nil {
				lb.watch(ctx, s)
				select {
				case <-ctx.Done():
				case <-time.After(500 * time.Millisecond):
				}
			}
		})
	}
	return nil
}

func (lb *LegacyLB) watch(ctx context.Context, s *targetpoolv1.Stream) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch, err := lb.registry.Watch(ctx, &nspv1.Target{
		Status: nspv1.Target_ENABLED, Type: nspv1.Target_DEFAULT, Stream: legacyStream(s),
	})
	for err == nil {
		var list *nspv1.TargetResponse
		if list, err = watch.Recv(); err == nil {
			lb.take(s.GetName(), list.GetTargets(), time.Now())
		}
	}
	lb.mu.Lock()
	defer lb.mu.Unlock()
	lb.live[s.GetName()] = false
	lb.wake()
}

// wake has those who wait look again; the lock is held.
func (lb *LegacyLB) wake() {
	close(lb.changed)
	lb.changed = make(chan struct{})
}

func (lb *LegacyLB) take(stream string, list []*nspv1.Target, now time.Time) {
	u := LegacyUpdate{Stream: stream, Received: now}
	targets := make(map[string]bool)
	for _, t := range list {
		targets[strings.Join(t.GetIps(), ",")] = true
	}
	lb.mu.Lock()
	before := lb.targets[stream]
	lb.targets[stream], lb.live[stream] = targets, true
	lb.wake()
	lb.mu.Unlock()
	for t := range before {
		if !targets[t] {
			u.Removed = append(u.Removed, t)
		}
	}
	for t := range targets {
		if !before[t] {
			u.Added = append(u.Added, t)
		}
	}
	if lb.OnUpdate != nil && len(u.Added)+len(u.Removed) > 0 {
		lb.OnUpdate(u)
	}
}

// Active are the targets of a stream, named by their addresses. The map must not be changed.
func (lb *LegacyLB) Active(stream string) map[string]bool {
	lb.mu.Lock()
	defer lb.mu.Unlock()
	return lb.targets[stream]
}

// Live is whether each of its watches has brought a list and has not broken since.
func (lb *LegacyLB) Live() bool {
	lb.mu.Lock()
	defer lb.mu.Unlock()
	for _, s := range lb.streams {
		if !lb.live[s.GetName()] {
			return false
		}
	}
	return true
}

// WaitFor waits until what the load balancer knows satisfies the condition.
func (lb *LegacyLB) WaitFor(ctx context.Context, condition func(*LegacyLB) bool) error {
	for {
		lb.mu.Lock()
		changed := lb.changed
		lb.mu.Unlock()
		if condition(lb) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("waiting for the load balancer to hear: %w", context.Cause(ctx))
		}
	}
}
