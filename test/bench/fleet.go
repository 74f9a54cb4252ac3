package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
)

// Fleet, in a client process, is many TAPAs. Its methods are called over net/rpc.
type Fleet struct {
	members []*member
	conns   []*grpc.ClientConn
	ctx     context.Context
	end     context.CancelFunc
	running sync.WaitGroup

	stopRefreshing  context.CancelFunc
	refreshed, late atomic.Int64
	// failure is the last failed refresh.
	failure atomic.Pointer[string]
}

// FleetArgs says how many TAPAs there are. Member i has the pod and the secondary address of number i and belongs to stream i
// modulo Streams.
type FleetArgs struct {
	Dial      dial
	Namespace string
	Members   int
	// Connections are shared by all; 0 gives each member one of its own.
	Connections         int
	Streams, MaxTargets int
	// Watch opens a TargetPool.Watch for each, which claims its address.
	Watch bool
}

// gatherLimit bounds how long a fleet may take to connect, openLimit how long a storm may last, as in the anchors.
const (
	gatherLimit = 2 * time.Minute
	openLimit   = 3 * time.Minute
)

// Connect connects all, and returns when each has its list.
func (f *Fleet) Connect(a FleetArgs, took *time.Duration) error {
	began := time.Now()
	f.ctx, f.end = context.WithCancel(context.Background())
	for i := range a.Members {
		if a.Connections == 0 || i < a.Connections {
			conn, err := a.Dial.open(connectLimit)
			if err != nil {
				return err
			}
			f.conns = append(f.conns, conn)
		}
		f.members = append(f.members, newMember(a, i, f.conns[i%len(f.conns)]))
	}
	if a.Watch {
		f.connect()
		if err := until(gatherLimit, "connecting all TAPAs", f.allUp(began)); err != nil {
			return err
		}
	}
	*took = time.Since(began)
	return nil
}

// connect opens the watches, 256 at a time: who connects first is no storm.
func (f *Fleet) connect() {
	slots := make(chan struct{}, 256)
	for _, m := range f.members {
		slots <- struct{}{}
		f.running.Go(func() { m.watch(f.ctx) })
		go func() {
			_ = until(gatherLimit, "connecting", func() bool { return m.upAt.Load() != 0 || f.ctx.Err() != nil })
			<-slots
		}()
	}
}

func (f *Fleet) allUp(since time.Time) func() bool {
	next := 0
	return func() bool {
		for next < len(f.members) && f.members[next].upAt.Load() >= since.UnixNano() {
			next++
		}
		return next == len(f.members)
	}
}

// UpReply is when the last member got its list, and how many have none.
type UpReply struct {
	Last    int64
	Missing int
}

// Up waits until each member has had a list since then, or it is no use to wait longer.
func (f *Fleet) Up(since int64, r *UpReply) error {
	_ = until(gatherLimit, "reconnecting all TAPAs", f.allUp(time.Unix(0, since))) // what is missing is in the reply
	for _, m := range f.members {
		at := m.upAt.Load()
		if r.Last = max(r.Last, at); at < since {
			r.Missing++
		}
	}
	return nil
}

// Close ends everything.
func (f *Fleet) Close(None, *None) error {
	if f.end == nil {
		return nil
	}
	f.end()
	if f.stopRefreshing != nil {
		f.stopRefreshing()
	}
	f.running.Wait()
	var closing sync.WaitGroup
	for _, c := range f.conns {
		closing.Go(func() { _ = c.Close() })
	}
	for _, m := range f.members {
		closing.Go(func() { _ = m.conn.Load().Close() })
	}
	closing.Wait()
	f.members, f.conns, f.stopRefreshing = nil, nil, nil
	return nil
}

// OpenArgs select members and say how they open.
type OpenArgs struct {
	First, Count int
	// Parallel is how many open at a time; 0 is all of them.
	Parallel int
}

// OpenReply is how a storm went.
type OpenReply struct {
	// Opened are open, Tries were needed; Took is how long it took all.
	Opened, Tries int
	Took          time.Duration
	// Each is how long each took that is open, retries included.
	Each []time.Duration
	// Failure is one of the failed tries.
	Failure string
}

// Open opens a stream for each of some members, each with 15 s per try and a retry after 1 s, as Meridio's TAPA does.
func (f *Fleet) Open(a OpenArgs, reply *OpenReply) error {
	if a.Parallel == 0 {
		a.Parallel = a.Count
	}
	ctx, cancel := context.WithTimeout(f.ctx, openLimit)
	defer cancel()
	var mu sync.Mutex
	var opening sync.WaitGroup
	slots := make(chan struct{}, a.Parallel)
	began := time.Now()
	for _, m := range f.members[a.First : a.First+a.Count] {
		slots <- struct{}{}
		opening.Go(func() {
			start := time.Now()
			tries, err := m.openStubbornly(ctx)
			<-slots
			mu.Lock()
			defer mu.Unlock()
			reply.Tries += tries
			if err != nil {
				reply.Failure = err.Error()
			}
			if m.isOpen() {
				reply.Opened++
				reply.Each = append(reply.Each, time.Since(start))
			}
		})
	}
	opening.Wait()
	reply.Took = time.Since(began)
	return nil
}

// openStubbornly returns how many tries it took and the last failure.
func (m *member) openStubbornly(ctx context.Context) (tries int, last error) {
	for ctx.Err() == nil {
		tries++
		try, cancel := context.WithTimeout(ctx, 15*time.Second)
		err := m.open(try)
		cancel()
		if err == nil {
			return tries, last
		}
		last = err
		wait(ctx, time.Second)
	}
	return tries, last
}

// Leave unregisters all that are open.
func (f *Fleet) Leave(None, *None) error {
	return f.each(func(m *member) error {
		if m.isOpen() {
			return m.unregister(f.ctx)
		}
		return nil
	})
}

// Refresh has every open member refresh once per period, one after the other, until the fleet is closed.
func (f *Fleet) Refresh(period time.Duration, _ *None) error {
	ctx, cancel := context.WithCancel(f.ctx)
	f.stopRefreshing = cancel
	codec := grpc.ForceCodecV2(newLengths())
	f.running.Go(func() {
		slots := make(chan struct{}, 256)
		for n, began := 0, time.Now(); ctx.Err() == nil; n++ {
			due := began.Add(time.Duration(n) * period / time.Duration(len(f.members)))
			if d := time.Until(due); d > time.Millisecond {
				wait(ctx, d)
			}
			m := f.members[n%len(f.members)]
			if !m.isOpen() || m.silent.Load() {
				continue
			}
			slots <- struct{}{}
			go func() {
				defer func() { <-slots }()
				f.refreshOne(ctx, m, codec)
			}()
		}
	})
	return nil
}

func (f *Fleet) refreshOne(ctx context.Context, m *member, codec grpc.CallOption) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	if err := m.refresh(ctx, codec); err != nil {
		if !errors.Is(ctx.Err(), context.Canceled) {
			f.late.Add(1)
			f.failure.Store(new(err.Error()))
		}
		return
	}
	f.refreshed.Add(1)
}

// Refreshed is how the refreshes went since it was last asked.
type Refreshed struct {
	OK, Failed int
	Failure    string
}

// Refreshes tells how the refreshes went since it was last asked.
func (f *Fleet) Refreshes(_ None, r *Refreshed) error {
	r.OK, r.Failed = int(f.refreshed.Swap(0)), int(f.late.Swap(0))
	if s := f.failure.Swap(nil); s != nil {
		r.Failure = *s
	}
	return nil
}

// Silence stops the refreshes of the first members.
func (f *Fleet) Silence(count int, _ *None) error {
	for _, m := range f.members[:count] {
		m.silent.Store(true)
	}
	return nil
}

// Lists is how many lists the watches were sent since it was last asked, and to which members.
type Lists struct {
	Count   int
	Members []int
}

// Woken counts lists.
func (f *Fleet) Woken(_ None, l *Lists) error {
	for _, m := range f.members {
		if n := int(m.lists.Swap(0)); n > 0 {
			l.Count += n
			l.Members = append(l.Members, m.number)
		}
	}
	return nil
}

// Call is when a call was sent and answered.
type Call struct{ Sent, Answered int64 }

// Flip registers the other status for one member.
func (f *Fleet) Flip(number int, c *Call) error {
	ctx, cancel := context.WithTimeout(f.ctx, 30*time.Second)
	defer cancel()
	c.Sent = time.Now().UnixNano()
	if err := f.members[number].flip(ctx); err != nil {
		return fmt.Errorf("flipping target %d: %w", number, err)
	}
	c.Answered = time.Now().UnixNano()
	return nil
}

// Settle registers every open member ENABLED that is not.
func (f *Fleet) Settle(None, *None) error {
	return f.each(func(m *member) error {
		m.mu.Lock()
		off := m.opened && m.status != nspv1.Target_ENABLED
		m.mu.Unlock()
		if off {
			return m.flip(f.ctx)
		}
		return nil
	})
}

// each does something for all members, 64 at a time, and returns one of the errors.
func (f *Fleet) each(do func(*member) error) error {
	var group errgroup.Group
	group.SetLimit(64)
	for _, m := range f.members {
		group.Go(func() error { return do(m) })
	}
	return group.Wait()
}
