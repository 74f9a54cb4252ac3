package server

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/registry"
)

var (
	all       = &nspv1.Target{Status: nspv1.Target_ANY}
	enabled   = &nspv1.Target{Status: nspv1.Target_ENABLED, Stream: wire(x1)}
	frontends = &nspv1.Target{Status: nspv1.Target_ANY, Type: nspv1.Target_FRONTEND}
)

// What a TAPA of Meridio 1.x does to open a stream, and what it reads back.
func TestTAPAOpens(t *testing.T) {
	n := start(t, setup{})
	conn := n.dial()
	mine := registration(x1, 7, "172.16.0.7/24")
	filter := &nspv1.Target{Status: nspv1.Target_ANY, Stream: wire(x1)}
	lb := n.legacy(n.dial(), enabled)

	require.Empty(t, n.next(lb))
	require.Empty(t, n.read(conn, filter))
	n.register(conn, disabled(mine))
	equal(n, []*nspv1.Target{disabled(mine)}, n.read(conn, filter))
	n.register(conn, mine)
	equal(n, []*nspv1.Target{mine}, n.read(conn, filter))
	equal(n, []*nspv1.Target{mine}, n.next(lb))

	n.unregister(conn, with(mine, func(t *nspv1.Target) { t.Context, t.Status = nil, nspv1.Target_DISABLED }))
	require.Empty(t, n.next(lb), "only the key counts")
	n.register(conn, mine)
	equal(n, []*nspv1.Target{disabled(mine)}, n.read(conn, filter)) // an ENABLED first registration is stored DISABLED
}

// P13: a refresh that changes nothing wakes nobody.
func TestRefreshesNotifyNobody(t *testing.T) {
	n := start(t, setup{})
	conn := n.dial()
	mine, other := registration(x1, 7, "172.16.0.7/24"), registration(x1, 8, "172.16.0.8/24")
	n.enable(conn, mine)
	lists, old, lb := n.legacy(conn, all), n.legacy(conn, enabled), n.feed(conn, nil)
	equal(n, []*nspv1.Target{mine}, n.next(lists))
	equal(n, []*nspv1.Target{mine}, n.next(old))
	n.committed(lb)
	sent := func() int {
		return len(n.seen.sizes(nspv1.TargetRegistry_Watch_FullMethodName)) + len(n.seen.sizes(targetpoolv1.TargetFeed_Watch_FullMethodName))
	}
	before := sent()

	for range 100 {
		n.register(conn, mine)
	}
	n.settle()
	require.Equal(t, before, sent())

	n.register(conn, other)
	equal(n, []*nspv1.Target{mine, disabled(other)}, n.next(lists))
	n.committed(lb)
	require.Len(t, lb.changes, 1)
	n.register(conn, other)
	equal(n, []*nspv1.Target{mine, other}, n.next(old))
}

// The same addresses in another order and spelling are the same entry, echoed as in the latest Register.
func TestEchoIsThatOfTheLatestRegister(t *testing.T) {
	n := start(t, setup{})
	conn := n.dial()
	first := registration(x1, 7, "172.16.0.7/24", "fd00::7/64")
	again := registration(x1, 7, "FD00:0:0::0007/64", "172.16.0.7/24")
	n.register(conn, first)
	n.register(conn, again)
	equal(n, []*nspv1.Target{again}, n.read(conn, all))
}

// P16: an identifier belongs to its stream.
func TestSameIdentifierInTwoStreams(t *testing.T) {
	n := start(t, setup{})
	conn := n.dial()
	a, b := registration(x1, 7, "172.16.0.1/24"), registration(x2, 7, "172.16.0.2/24")
	n.enable(conn, a)
	n.enable(conn, b)
	lb := n.feed(conn, nil)
	n.committed(lb)
	require.Len(t, lb.targets, 2)
	for _, target := range lb.targets {
		require.EqualValues(t, 7, target.GetIdentifier())
		require.Equal(t, targetpoolv1.Target_STATE_ACTIVE, target.GetState())
	}
	n.unregister(conn, a)
	equal(n, []*nspv1.Target{b}, n.read(conn, &nspv1.Target{Stream: wire(x2)}))
}

// P28: one stream name in two conduits and trenches.
func TestSameNameElsewhere(t *testing.T) {
	n := start(t, setup{})
	conn := n.dial()
	a := registration(x1, 7, "172.16.0.1/24")
	b := with(a, func(t *nspv1.Target) { t.Stream.Conduit.Name = "conduit-b" })
	c := with(a, func(t *nspv1.Target) { t.Stream.Conduit.Trench.Name = "trench-b" })
	for _, x := range []*nspv1.Target{a, b, c} {
		n.enable(conn, x)
	}
	equal(n, []*nspv1.Target{a, b, c}, n.read(conn, all))
	for _, x := range []*nspv1.Target{a, b, c} {
		equal(n, []*nspv1.Target{x}, n.read(conn, &nspv1.Target{Stream: x.Stream}))
	}
	n.unregister(conn, a)
	equal(n, []*nspv1.Target{b, c}, n.read(conn, all))
}

// An old load balancer, which asks for ENABLED, gets the active targets; whoever asks for anything else gets what is registered.
// The order is that in which the keys were first stored. (P1)
func TestLegacyLists(t *testing.T) {
	n := start(t, setup{})
	n.engine.Post(service(x1), slice(x1, 1, ready(2), ready(3)))
	a, b, c := registration(x1, 9, "172.16.0.9/24"), registration(x1, 2, "172.16.0.2/24"), registration(x1, 5, "172.16.0.5/24")
	n.enable(n.dial(from(2)), a)
	n.enable(n.dial(from(3)), b)
	n.enable(n.dial(from(4)), c) // of no pool
	host := &nspv1.Target{Ips: []string{"lb-0"}, Context: map[string]string{"identifier": "lb-0"}, Type: nspv1.Target_FRONTEND}
	conn := n.dial()
	n.enable(conn, host)

	active, every, hosts := n.legacy(conn, enabled), n.legacy(conn, all), n.legacy(conn, frontends)
	echo := with(host, func(t *nspv1.Target) { t.Stream = emptyStream() })
	equal(n, []*nspv1.Target{a, b, c}, n.next(active))
	equal(n, []*nspv1.Target{a, b, c}, n.next(every))
	equal(n, []*nspv1.Target{echo}, n.next(hosts))
	before := len(n.seen.sizes(nspv1.TargetRegistry_Watch_FullMethodName))

	n.engine.Post(slice(x1, 2, notReady(2), ready(3)))
	equal(n, []*nspv1.Target{b, c}, n.next(active))
	n.engine.Post(slice(x1, 3, ready(2), notReady(3)))
	equal(n, []*nspv1.Target{a, c}, n.next(active))
	equal(n, []*nspv1.Target{a, b, c}, n.read(conn, all))
	equal(n, []*nspv1.Target{echo}, n.read(conn, frontends))
	require.Len(t, n.seen.sizes(nspv1.TargetRegistry_Watch_FullMethodName), before+4, "nobody else was told")

	n.unregister(n.dial(from(2)), a)
	n.register(n.dial(from(2)), a)
	equal(n, []*nspv1.Target{b, c, disabled(a)}, n.read(conn, all)) // who left and came back is last
}

// emptyStream is how no stream is echoed.
func emptyStream() *nspv1.Stream {
	return &nspv1.Stream{Conduit: &nspv1.Conduit{Trench: &nspv1.Trench{}}}
}

// Oddities that Meridio 1.x accepts: statuses and types that are none, targets without anything.
func TestOddStatusesAndTypes(t *testing.T) {
	n := start(t, setup{})
	conn := n.dial()
	odd := func(status nspv1.Target_Status, kind nspv1.Target_Type, last int) *nspv1.Target {
		x := registration(x1, last, fmt.Sprintf("172.16.0.%d/24", last))
		x.Status, x.Type = status, kind
		return x
	}
	seven, whatever, nine := odd(7, 0, 1), odd(nspv1.Target_ANY, 0, 2), odd(nspv1.Target_ENABLED, 9, 3)
	for _, x := range []*nspv1.Target{seven, whatever, nine} {
		n.register(conn, x)
		equal(n, []*nspv1.Target{disabled(x)}, n.read(conn, &nspv1.Target{Status: nspv1.Target_DISABLED, Type: x.Type}))
		n.register(conn, x)
	}
	of := func(status nspv1.Target_Status, kind nspv1.Target_Type) []*nspv1.Target {
		return n.read(conn, &nspv1.Target{Status: status, Type: kind, Stream: wire(x1)})
	}
	equal(n, []*nspv1.Target{seven, whatever}, of(nspv1.Target_ANY, 0))
	equal(n, []*nspv1.Target{seven}, of(7, 0))
	require.Empty(t, of(nspv1.Target_ENABLED, 0))
	require.Empty(t, of(nspv1.Target_DISABLED, 0))
	equal(n, []*nspv1.Target{nine}, of(nspv1.Target_ENABLED, 9))

	// Addresses, context, maximum and names that are empty do not count in a filter.
	loose := &nspv1.Target{
		Status: nspv1.Target_ANY, Ips: []string{"1.2.3.4"}, Context: map[string]string{"identifier": "1"},
		Stream: &nspv1.Stream{MaxTargets: 5, Conduit: &nspv1.Conduit{Name: "conduit-a"}},
	}
	equal(n, []*nspv1.Target{seven, whatever}, n.read(conn, loose))

	bare := &nspv1.Target{Type: nspv1.Target_FRONTEND}
	n.register(conn, bare)
	equal(n, []*nspv1.Target{with(bare, func(t *nspv1.Target) { t.Status, t.Stream = nspv1.Target_DISABLED, emptyStream() })}, n.read(conn, frontends))
}

// P12: nsp.v1 sends whole lists. One that a client does not take by default is sent, for it may take more, and said in the log.
func TestGreatList(t *testing.T) {
	const count = 20_000
	n := start(t, setup{entries: stored(t, count, 5)})
	watch := func(opts ...grpc.CallOption) (*nspv1.TargetResponse, error) {
		ss, err := nspv1.NewTargetRegistryClient(n.dial()).Watch(n.ctx(), all, opts...)
		require.NoError(t, err)
		return ss.Recv()
	}
	_, err := watch()
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	require.NotEmpty(t, n.log.find("a list is larger than a gRPC client takes", "peer=127.0.0.1", "Status:2"))
	got, err := watch(grpc.MaxCallRecvMsgSize(16 << 20))
	require.NoError(t, err)
	require.Len(t, got.GetTargets(), count)
}

// A store that fails is told to the caller, and nothing has happened.
func TestStoreFails(t *testing.T) {
	var broken atomic.Bool
	n := start(t, setup{store: func(registry.Batch) error {
		if broken.Load() {
			return errors.New("no space left on device")
		}
		return nil
	}})
	conn := n.dial()
	mine := registration(x1, 7, "172.16.0.7/24")
	broken.Store(true)
	_, err := nspv1.NewTargetRegistryClient(conn).Register(n.ctx(), mine)
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.ErrorContains(t, err, "no space left")
	require.Empty(t, n.read(conn, all))
	broken.Store(false)
	n.register(conn, mine)
	require.Len(t, n.read(conn, all), 1)
}
