package main

import "time"

// HeardArgs ask when a pod was last turned on, or off, after a time.
type HeardArgs struct {
	// Pod is namespace/name.
	Pod   string
	On    bool
	Since int64
	// Limit is how long to wait; 0 is 30 s.
	Limit time.Duration
}

// Heard waits until every load balancer has heard it, and returns when each did.
func (b *Balancers) Heard(a HeardArgs, at *[]int64) error {
	if a.Limit == 0 {
		a.Limit = 30 * time.Second
	}
	when := func(lb *balancer) int64 {
		pod := b.names.find(a.Pod)
		if pod < 0 || pod >= len(lb.since) {
			return 0
		}
		if a.On {
			return lb.since[pod]
		}
		return -lb.since[pod]
	}
	err := until(a.Limit, "hearing of "+a.Pod, func() bool {
		return b.every(func(lb *balancer) bool { return when(lb) >= a.Since })
	})
	for _, lb := range b.all {
		lb.mu.Lock()
		*at = append(*at, when(lb))
		lb.mu.Unlock()
	}
	return err
}

// Traffic is what the deltas since the last question amount to, at the first load balancer.
type Traffic struct {
	// Deltas are messages, Bytes their size with the prefix of gRPC; Wire is all that was read from the connection.
	Deltas, Bytes, Wire int
}

// Traffic tells what was sent to the first load balancer since it was last asked.
func (b *Balancers) Traffic(_ None, t *Traffic) error {
	lb := b.all[0]
	lb.mu.Lock()
	defer lb.mu.Unlock()
	*t = Traffic{Deltas: lb.deltas, Bytes: lb.deltaBytes, Wire: int(lb.read.Swap(0))}
	lb.deltas, lb.deltaBytes = 0, 0
	return nil
}

// Snapshots is what load balancers were given at once, ordered as they are.
type Snapshots struct {
	At           []int64
	Size, Active []int
	Stale        bool
}

// Snapshots waits until every load balancer has had a snapshot since then.
func (b *Balancers) Snapshots(since int64, s *Snapshots) error {
	err := until(gatherLimit, "getting snapshots", func() bool {
		return b.every(func(lb *balancer) bool { return lb.snapshot.at >= since })
	})
	for _, lb := range b.all {
		lb.mu.Lock()
		s.At = append(s.At, lb.snapshot.at)
		s.Size, s.Active = append(s.Size, lb.snapshot.size), append(s.Active, lb.snapshot.active)
		s.Stale = s.Stale || lb.snapshot.stale
		lb.mu.Unlock()
	}
	return err
}

// RemovedArgs ask for a number of removals.
type RemovedArgs struct {
	Count int
	Limit time.Duration
}

// Removed waits until every load balancer has heard of so many removals since it was last asked, and returns the times of the
// first one at any and the last one at all.
func (b *Balancers) Removed(a RemovedArgs, span *[2]int64) error {
	err := until(a.Limit, "hearing of removals", func() bool {
		return b.every(func(lb *balancer) bool { return lb.removed >= a.Count })
	})
	for _, lb := range b.all {
		lb.mu.Lock()
		if span[0] == 0 || lb.firstRemoved < span[0] {
			span[0] = lb.firstRemoved
		}
		span[1] = max(span[1], lb.lastRemoved)
		lb.mu.Unlock()
	}
	return err
}

// Forget forgets the removals so far.
func (b *Balancers) Forget(None, *None) error {
	for _, lb := range b.all {
		lb.mu.Lock()
		lb.removed, lb.firstRemoved, lb.lastRemoved = 0, 0, 0
		lb.mu.Unlock()
	}
	return nil
}
