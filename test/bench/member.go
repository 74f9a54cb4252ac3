package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
)

// member is one TAPA of a fleet.
type member struct {
	number   int
	workload *targetpoolv1.Workload
	stream   *nspv1.Stream
	ips      []string
	max      int // identifiers
	// conn is the member's own, or one that many share.
	conn atomic.Pointer[grpc.ClientConn]
	dial dial
	own  bool

	// lists counts those that it was sent, upAt is when the first list of the present watch came.
	lists, upAt atomic.Int64
	// silent stops its refreshes.
	silent atomic.Bool

	mu     sync.Mutex
	id     uint32
	status nspv1.Target_Status
	opened bool
}

func newMember(a FleetArgs, i int, conn *grpc.ClientConn) *member {
	m := &member{
		number:   i,
		workload: &targetpoolv1.Workload{Namespace: a.Namespace, Pod: podName(i), PodUid: podUID(i)},
		stream:   legacyStream(i % a.Streams),
		ips:      []string{secondary(i) + "/24"},
		max:      a.MaxTargets,
		dial:     a.Dial, own: a.Connections == 0,
	}
	m.conn.Store(conn)
	return m
}

func (m *member) registry() nspv1.TargetRegistryClient {
	return nspv1.NewTargetRegistryClient(m.conn.Load())
}

func legacyStream(s int) *nspv1.Stream {
	return &nspv1.Stream{
		Name:    streamName(s),
		Conduit: &nspv1.Conduit{Name: conduit, Trench: &nspv1.Trench{Name: trench}},
	}
}

// watch keeps the member's TargetPool.Watch open and claims its address. Where the connection is its own, it is made anew as the
// client library does it: each time with more patience, while the server is there and takes longer.
func (m *member) watch(ctx context.Context) {
	for failures, limit := 0, connectLimit; ctx.Err() == nil; {
		m.upAt.Store(0)
		began := time.Now()
		_ = m.watchOnce(ctx) // it comes back, whatever it was
		switch {
		case m.upAt.Load() != 0:
			failures, limit = 0, connectLimit
		case time.Since(began) > limit:
			failures, limit = failures+1, min(2*limit, maxConnectLimit)
		default:
			failures++
		}
		pause(ctx, min(500*time.Millisecond<<min(failures, 4), 5*time.Second))
		if m.own && ctx.Err() == nil {
			m.redial(limit)
		}
	}
}

// redial makes the connection anew.
func (m *member) redial(limit time.Duration) {
	conn, err := m.dial.open(limit + rand.N(limit/2))
	if err != nil {
		return // The one that is there was made the same way.
	}
	_ = m.conn.Swap(conn).Close()
}

func (m *member) watchOnce(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := targetpoolv1.NewTargetPoolClient(m.conn.Load()).Watch(ctx, grpc.WaitForReady(!m.own))
	if err != nil {
		return err
	}
	err = stream.Send(&targetpoolv1.TargetPoolWatchRequest{
		Workload: m.workload, Report: &targetpoolv1.Report{Addresses: m.ips},
	})
	for err == nil {
		var resp *targetpoolv1.TargetPoolWatchResponse
		if resp, err = stream.Recv(); resp.GetAssignments() != nil {
			m.lists.Add(1)
			m.upAt.CompareAndSwap(0, time.Now().UnixNano())
		}
	}
	return err
}

// open plays the sequence of Meridio's TAPA: which identifiers are taken, register DISABLED with another one, look again whether
// somebody was faster, register ENABLED.
func (m *member) open(ctx context.Context) error {
	taken, err := m.taken(ctx)
	if err != nil {
		return err
	}
	id := m.identifier()
	for {
		if id, err = m.draw(id, taken); err != nil {
			return err
		}
		if err := m.register(ctx, id, nspv1.Target_DISABLED); err != nil {
			return err
		}
		if taken, err = m.taken(ctx); err != nil {
			return err
		}
		if !taken[id] {
			break
		}
		if err := m.unregister(ctx); err != nil {
			return err
		}
	}
	if err := m.register(ctx, id, nspv1.Target_ENABLED); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.opened = true
	return nil
}

func (m *member) identifier() uint32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.id
}

func (m *member) isOpen() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.opened
}

// draw keeps the identifier, or finds one that nobody has.
func (m *member) draw(id uint32, taken map[uint32]bool) (uint32, error) {
	if len(taken) >= m.max {
		return 0, fmt.Errorf("stream %s is full", m.stream.GetName())
	}
	for id == 0 || taken[id] {
		id = uint32(1 + rand.IntN(m.max))
	}
	return id, nil
}

// taken are the identifiers of the other targets of the stream.
func (m *member) taken(ctx context.Context) (map[uint32]bool, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch, err := m.registry().Watch(ctx, &nspv1.Target{Status: nspv1.Target_ANY, Stream: m.stream})
	if err != nil {
		return nil, fmt.Errorf("reading the targets: %w", err)
	}
	list, err := watch.Recv()
	if err != nil {
		return nil, fmt.Errorf("reading the targets: %w", err)
	}
	out := make(map[uint32]bool, len(list.GetTargets()))
	for _, other := range list.GetTargets() {
		if !slices.Equal(other.GetIps(), m.ips) {
			id, _ := strconv.ParseUint(other.GetContext()["identifier"], 10, 32)
			out[uint32(id)] = true
		}
	}
	return out, nil
}

// register states identifier and status, and remembers them for refreshes.
func (m *member) register(ctx context.Context, id uint32, status nspv1.Target_Status) error {
	m.mu.Lock()
	m.id, m.status = id, status
	target := m.target()
	m.mu.Unlock()
	if _, err := m.registry().Register(ctx, target); err != nil {
		return fmt.Errorf("registering: %w", err)
	}
	return nil
}

func (m *member) unregister(ctx context.Context) error {
	m.mu.Lock()
	target := m.target()
	m.opened = false
	m.mu.Unlock()
	if _, err := m.registry().Unregister(ctx, target); err != nil {
		return fmt.Errorf("unregistering: %w", err)
	}
	return nil
}

// target is called with mu held.
func (m *member) target() *nspv1.Target {
	return &nspv1.Target{
		Ips: m.ips, Context: map[string]string{"identifier": strconv.FormatUint(uint64(m.id), 10)},
		Status: m.status, Stream: m.stream,
	}
}

// again registers once more what is registered.
func (m *member) again(ctx context.Context) error {
	m.mu.Lock()
	target := m.target()
	m.mu.Unlock()
	_, err := m.registry().Register(ctx, target)
	return err
}

// flip registers the other status.
func (m *member) flip(ctx context.Context) error {
	m.mu.Lock()
	m.status = nspv1.Target_Status(1 - m.status)
	target := m.target()
	m.mu.Unlock()
	_, err := m.registry().Register(ctx, target)
	return err
}

// refresh renews the lease and reads the list, as Meridio's TAPA does.
func (m *member) refresh(ctx context.Context, codec grpc.CallOption) error {
	if err := m.again(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch, err := m.registry().Watch(ctx, &nspv1.Target{Status: nspv1.Target_ANY, Stream: m.stream}, codec)
	if err != nil {
		return err
	}
	return watch.RecvMsg(new(length))
}
