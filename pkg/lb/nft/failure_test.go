package nft

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// failing is a kernel that refuses so many transactions.
type failing struct {
	tables
	failures int
	break_   bool
}

var errInjected = errors.New("injected")

func (f *failing) commit(steps []step) error {
	if f.failures == 0 {
		return f.tables.commit(steps)
	}
	f.failures--
	if !f.break_ {
		return errInjected
	}
	// The real kernel is given one step more, which it refuses with the whole transaction.
	return f.tables.commit(append(steps, delChain{"there-is-none"}))
}

// A failed transaction leaves the old state, and the next try brings the new one. (P21)
func TestFailedTransactionIsTriedAgain(t *testing.T) {
	w := newWorld(t, 3)
	w.serve(5000)
	w.apply(simple(1, 2))
	for _, really := range []bool{false, true} {
		before, err := w.plane.kernel.read()
		require.NoError(t, err)
		f := &failing{tables: w.plane.kernel, failures: 2, break_: really}
		w.plane.kernel = f
		for range 2 {
			_, err = w.plane.Apply(simple(2, 3))
			require.Error(t, err)
			now, err := f.tables.read()
			require.NoError(t, err)
			require.Equal(t, before, now)
			require.Equal(t, []string{"1", "2"}, names(w.shares(vip4, 5000, 20)))
		}
		w.apply(simple(2, 3))
		require.Equal(t, []string{"2", "3"}, names(w.shares(vip4, 5000, 20)))
		w.plane.kernel = f.tables
		w.apply(simple(1, 2))
	}
}

// halfway is a kernel that takes the preparation of a change and nothing after it, as if the process had been killed.
type halfway struct {
	tables
	taken int
}

func (h *halfway) commit(steps []step) error {
	if h.taken++; h.taken > 1 {
		return errInjected
	}
	return h.tables.commit(steps)
}

// A process that is killed between the preparation of a change and the change has not changed anything, and the next one completes it.
func TestKilledHalfway(t *testing.T) {
	w := newWorld(t, 3)
	w.serve(5000)
	w.apply(simple(1, 2))
	w.plane.kernel = &halfway{tables: w.plane.kernel}
	d := simple(2, 3)
	d.Flows = append(d.Flows, Flow{Name: "flow-b", Stream: "stream-a", VIPs: allVIPs, Priority: 2, DestinationPorts: ports("5000")})
	d.Streams[0].MaxTargets = 50
	_, err := w.plane.Apply(d)
	require.ErrorIs(t, err, errInjected)
	for _, vip := range vips {
		require.Equal(t, []string{"1", "2"}, names(w.shares(vip, 5000, 20)))
	}
	w.plane = w.newPlane()
	require.True(t, w.apply(d).Changed)
	for _, vip := range vips {
		require.Equal(t, []string{"2", "3"}, names(w.shares(vip, 5000, 20)))
	}
	has, err := w.plane.kernel.read()
	require.NoError(t, err)
	require.Equal(t, w.plane.state, has, "nothing is left over")
	require.False(t, w.apply(d).Changed)
}

// A route that could not be deleted is deleted later. (P21)
func TestFailedRemovalIsTriedAgain(t *testing.T) {
	w := newWorld(t, 2)
	w.apply(simple(1, 2))
	working := w.plane.router
	hops, err := working.read()
	require.NoError(t, err)
	require.Len(t, hops.rules, 4)
	w.plane.router = stubborn{working}
	for range 2 {
		_, err = w.plane.Apply(simple(1))
		require.ErrorIs(t, err, errInjected)
	}
	w.plane.router = working
	w.apply(simple(1))
	hops, err = working.read()
	require.NoError(t, err)
	require.Len(t, hops.all(), 2)
}

// stubborn routes stay.
type stubborn struct{ routes }

func (stubborn) remove(*hops, hop) error { return errInjected }

// neighbours writes down whose link addresses were forgotten, and fails so many times before that.
type neighbours struct {
	routes
	failures int
	forgot   []netip.Addr
}

func (n *neighbours) forget(a netip.Addr) error {
	if n.failures > 0 {
		n.failures--
		return errInjected
	}
	n.forgot = append(n.forgot, a)
	return nil
}

// That the link address of another machine could not be forgotten is made good, once. (P21)
func TestForgettingANeighbourIsTriedAgain(t *testing.T) {
	w := newWorld(t, 1)
	d := simple(1)
	d.Streams[0].Targets[0].Instance = "pod-1"
	w.apply(d)
	n := &neighbours{routes: w.plane.router, failures: 1}
	w.plane.router = n
	d.Streams[0].Targets[0].Instance = "pod-2"
	_, err := w.plane.Apply(d)
	require.ErrorIs(t, err, errInjected)
	n.forgot = nil
	w.apply(d)
	require.Equal(t, target(1).Addresses, n.forgot)
	w.apply(d)
	require.Len(t, n.forgot, 2, "once it is done it is not done again")
}

// A target that goes and comes back as another machine while the kernel still has it is told from one that the kernel had at the start.
func TestAnotherMachineBeforeTheOldOneIsClearedUp(t *testing.T) {
	w := newWorld(t, 1)
	w.plane.cfg.Linger = time.Hour
	d := simple(1)
	d.Streams[0].Targets[0].Instance = "pod-1"
	w.apply(d)
	n := &neighbours{routes: w.plane.router}
	w.plane.router = n
	w.apply(simple())
	w.apply(d)
	require.Empty(t, n.forgot, "the same machine")
	w.apply(simple())
	d.Streams[0].Targets[0].Instance = "pod-2"
	w.apply(d)
	require.Equal(t, target(1).Addresses, n.forgot)
}

// What somebody else has spoiled is mended by an audit.
func TestAuditMends(t *testing.T) {
	w := newWorld(t, 2)
	w.serve(5000)
	w.apply(simple(1, 2))
	k := newKernel(w.plane.cfg)
	defer k.close()
	require.NoError(t, k.commit([]step{flushChain{"s4.stream-a"}}))
	rule := w.plane.router.(*router).rule(hop{DefaultMarkBase, ipv4})
	require.NoError(t, w.lb.Netlink().RuleDel(rule))
	require.False(t, w.apply(simple(1, 2)).Changed, "it is not looked at")
	w.plane.Audit()
	require.True(t, w.apply(simple(1, 2)).Changed)
	require.Equal(t, []string{"1", "2"}, names(w.shares(vip4, 5000, 30)))
}

// What a kernel refuses of a flow by itself is refused by name, and the others stand.
func TestFlowThatTheKernelRefuses(t *testing.T) {
	w := newWorld(t, 1)
	w.serve(80)
	d := simple(1)
	d.Flows[0].DestinationPorts = ports("80")
	// A header that begins beyond what the kernel can load: the check of the planner is outwitted.
	d.Flows = append(d.Flows, Flow{
		Name: "bad", Stream: "stream-a", VIPs: allVIPs, Protocols: []Protocol{TCP}, ByteMatches: []ByteMatch{{TCP, 250, 4, 0xffffffff, 1}},
		SourcePorts: ports("1"),
	})
	require.Empty(t, w.apply(d).Refused, "this one is possible")
	f := &refusing{tables: w.plane.kernel, chain: "lowest"}
	w.plane.kernel = f
	d.Flows[1].SourcePorts = ports("2")
	_, err := w.plane.Apply(d)
	require.ErrorIs(t, err, unix.EINVAL, "the kernel takes each flow by itself, so none is to blame")
	require.Equal(t, "1", w.ask(vip4, 80, 10))
}

type refusing struct {
	tables
	chain string
}

func (r *refusing) commit([]step) error { return unix.EINVAL }
