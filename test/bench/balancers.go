package main

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
)

// Balancers, in a client process, are load balancers that watch a feed, each on a connection of its own. They keep no table: of
// each pod they note since when it takes traffic, or takes none.
type Balancers struct {
	all     []*balancer
	names   names
	ctx     context.Context
	end     context.CancelFunc
	running sync.WaitGroup
}

// names number the pods, so that a load balancer needs no map; known says which pod a target is.
type names struct {
	mu     sync.RWMutex
	number map[string]int
	known  map[uint64]int
}

// of returns the number of the pod of a change, or -1.
func (n *names) of(c *targetpoolv1.Change) int {
	n.mu.RLock()
	known, ok := n.known[c.GetId()]
	n.mu.RUnlock()
	if ok {
		return known
	}
	pod := c.GetTarget().GetPod()
	if pod == "" {
		return -1
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	number, ok := n.number[pod]
	if !ok {
		number = len(n.number)
		n.number[pod] = number
	}
	n.known[c.GetId()] = number
	return number
}

// find returns the number of a pod, or -1.
func (n *names) find(pod string) int {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if number, ok := n.number[pod]; ok {
		return number
	}
	return -1
}

// balancer is one of them.
type balancer struct {
	dial  dial
	names *names
	eager bool
	// read counts the bytes that came off the wire, TLS and all.
	read atomic.Int64

	mu sync.Mutex
	// since is, by the number of a pod, the time of its last change: positive where it takes traffic.
	since []int64
	snapshot
	deltas, deltaBytes, removed int
	firstRemoved, lastRemoved   int64
	pending                     snapshot
}

// snapshot is what a load balancer got at once.
type snapshot struct {
	at           int64
	size, active int
	stale        bool
}

// BalancersArgs say how many there shall be.
type BalancersArgs struct {
	Dial  dial
	Count int
}

// Connect adds load balancers until there are Count, and returns when each has its snapshot. The first one reconnects without
// pause: it shows when the server answers, not when jitter lets it ask.
func (b *Balancers) Connect(a BalancersArgs, took *time.Duration) error {
	began := time.Now()
	if b.ctx == nil {
		b.ctx, b.end = context.WithCancel(context.Background())
		b.names = names{number: make(map[string]int), known: make(map[uint64]int)}
	}
	for len(b.all) < a.Count {
		lb := &balancer{dial: a.Dial, names: &b.names, eager: len(b.all) == 0}
		b.all = append(b.all, lb)
		b.running.Go(func() { lb.run(b.ctx) })
	}
	err := until(time.Minute, "connecting all load balancers", func() bool {
		return b.every(func(lb *balancer) bool { return lb.snapshot.at != 0 })
	})
	*took = time.Since(began)
	return err
}

// Close ends everything.
func (b *Balancers) Close(None, *None) error {
	if b.end != nil {
		b.end()
		b.running.Wait()
	}
	*b = Balancers{}
	return nil
}

func (b *Balancers) every(holds func(*balancer) bool) bool {
	for _, lb := range b.all {
		lb.mu.Lock()
		ok := holds(lb)
		lb.mu.Unlock()
		if !ok {
			return false
		}
	}
	return true
}

func (lb *balancer) run(ctx context.Context) {
	for ctx.Err() == nil {
		_ = lb.watch(ctx) // it comes back, whatever it was
		if lb.eager {
			wait(ctx, 5*time.Millisecond)
		} else {
			pause(ctx, 500*time.Millisecond)
		}
	}
}

func (lb *balancer) watch(ctx context.Context) error {
	conn, err := lb.dial.open(connectLimit, grpc.WithContextDialer(lb.connect))
	if err != nil {
		return err
	}
	defer conn.Close()
	stream, err := targetpoolv1.NewTargetFeedClient(conn).Watch(ctx, &targetpoolv1.TargetFeedWatchRequest{
		Conduit: &targetpoolv1.Conduit{Trench: trench, Name: conduit},
	})
	for err == nil {
		var m *targetpoolv1.TargetFeedWatchResponse
		if m, err = stream.Recv(); err == nil {
			lb.take(m, time.Now().UnixNano())
		}
	}
	return err
}

// connect counts what is read.
func (lb *balancer) connect(ctx context.Context, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return counted{conn, &lb.read}, nil
}

type counted struct {
	net.Conn
	read *atomic.Int64
}

// Read implements net.Conn.
func (c counted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.read.Add(int64(n))
	return n, err
}

// take notes what a message says.
func (lb *balancer) take(m *targetpoolv1.TargetFeedWatchResponse, now int64) {
	lb.mu.Lock()
	defer lb.mu.Unlock()
	for _, c := range m.GetChanges() {
		lb.change(c, now)
	}
	switch m.GetKind() {
	case targetpoolv1.TargetFeedWatchResponse_KIND_SNAPSHOT:
		lb.piece(m, now)
	case targetpoolv1.TargetFeedWatchResponse_KIND_DELTA:
		lb.deltas++
		lb.deltaBytes += proto.Size(m) + 5 // the prefix of a gRPC message
	}
}

func (lb *balancer) piece(m *targetpoolv1.TargetFeedWatchResponse, now int64) {
	lb.pending.size += len(m.GetChanges())
	for _, c := range m.GetChanges() {
		if c.GetTarget().GetState() == targetpoolv1.Target_STATE_ACTIVE {
			lb.pending.active++
		}
	}
	if m.GetCommit() {
		lb.pending.at, lb.pending.stale = now, m.GetStale()
		lb.snapshot, lb.pending = lb.pending, snapshot{}
	}
}

func (lb *balancer) change(c *targetpoolv1.Change, now int64) {
	if c.GetTarget() == nil {
		if lb.removed++; lb.firstRemoved == 0 {
			lb.firstRemoved = now
		}
		lb.lastRemoved = now
	}
	pod := lb.names.of(c)
	if pod < 0 {
		return
	}
	if missing := pod + 1 - len(lb.since); missing > 0 {
		lb.since = append(lb.since, make([]int64, missing)...)
	}
	on := c.GetTarget().GetState() == targetpoolv1.Target_STATE_ACTIVE
	switch was := lb.since[pod]; {
	case on && was <= 0:
		lb.since[pod] = now
	case !on && was >= 0:
		lb.since[pod] = -now
	}
}
