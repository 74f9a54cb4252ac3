package lb

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc/credentials/insecure"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/lb/nft"
	"github.com/nordix/meridio-nsp/pkg/sources"
	"github.com/nordix/meridio-nsp/test/netns"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	active   = targetpoolv1.Target_STATE_ACTIVE
	draining = targetpoolv1.Target_STATE_DRAINING
	inactive = targetpoolv1.Target_STATE_INACTIVE
)

// network is a client, a load balancer and targets that answer UDP on port 5000 of the VIP with their number.
type network struct {
	t          *testing.T
	client, lb *netns.Space
	targets    []*netns.Space
}

func newNetwork(t *testing.T, targets int) *network {
	n := &network{t: t, client: netns.Test(t, "client"), lb: netns.Test(t, "lb")}
	require.NoError(t, n.lb.Forward())
	require.NoError(t, n.lb.AddBridge("br0", "172.16.0.1/24"))
	netns.Connect(t, netns.End{Space: n.lb, Link: "client", Addresses: []string{"10.0.0.1/24"}},
		netns.End{Space: n.client, Link: "eth0", Addresses: []string{"10.0.0.2/24"}})
	n.client.Route(t, "0.0.0.0/0", "10.0.0.1")
	for i := range targets {
		s := netns.Test(t, fmt.Sprint("target-", i+1))
		netns.Connect(t, netns.End{Space: n.lb, Link: fmt.Sprint("t", i+1), Bridge: "br0"},
			netns.End{Space: s, Link: "eth0", Addresses: []string{address(i+1) + "/24"}})
		s.Route(t, "0.0.0.0/0", "172.16.0.1")
		require.NoError(t, s.AddAddress("lo", "20.0.0.1/32"))
		n.targets = append(n.targets, s)
		n.serve(s, fmt.Sprint(i+1))
	}
	return n
}

func address(id int) string { return fmt.Sprint("172.16.0.", 10+id) }

func (n *network) serve(s *netns.Space, name string) {
	var c net.PacketConn
	require.NoError(n.t, s.Do(func() (err error) { c, err = net.ListenPacket("udp", "20.0.0.1:5000"); return err }))
	var done sync.WaitGroup
	done.Go(func() {
		for buf := make([]byte, 100); ; {
			_, from, err := c.ReadFrom(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				_, _ = c.WriteTo([]byte(name), from)
			}
		}
	})
	n.t.Cleanup(func() { c.Close(); done.Wait() })
}

// answers are who answers 30 packets from different ports.
func (n *network) answers() string {
	names := map[string]bool{}
	for range 30 {
		var c net.Conn
		require.NoError(n.t, n.client.Do(func() (err error) { c, err = net.Dial("udp", "20.0.0.1:5000"); return err }))
		_, _ = c.Write([]byte("who?"))
		_ = c.SetReadDeadline(time.Now().Add(time.Second))
		buf := make([]byte, 10)
		if k, err := c.Read(buf); err == nil {
			names[string(buf[:k])] = true
		} else {
			names["nobody"] = true
		}
		c.Close()
		if names["nobody"] {
			break
		}
	}
	out := []string{}
	for name := range names {
		out = append(out, name)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func (n *network) eventually(want string) {
	n.t.Helper()
	var got string
	require.Eventually(n.t, func() bool { got = n.answers(); return got == want }, time.Minute, 20*time.Millisecond, "want %q", want)
}

// configure tells one stream with one flow.
func (n *fakeNSP) configure() {
	vip := &nspv1.Vip{Name: "vip", Address: "20.0.0.1/32"}
	stream := &nspv1.Stream{Name: "stream-a", Conduit: n.conduit}
	n.set(func() {
		n.vips, n.streams = []*nspv1.Vip{vip}, []*nspv1.Stream{stream}
		n.flows = []*nspv1.Flow{{
			Name: "flow-a", Stream: stream, Vips: []*nspv1.Vip{vip}, Protocols: []string{"udp"}, DestinationPortRanges: []string{"5000"},
			SourceSubnets: []string{"0.0.0.0/0"}, SourcePortRanges: []string{"0-65535"}, Priority: 1,
		}}
	})
}

// balance runs a load balancer until the function that it returns is called.
func (n *network) balance(nsp *fakeNSP, change ...func(*Config)) (b *Balancer, stop func()) {
	n.t.Helper()
	cfg := Config{
		Trench: "trench-a", Conduit: "load-balancer", NSP: nsp.address, Feed: nsp.address, Credentials: insecure.NewCredentials(),
		Plane: nft.Config{Netns: n.lb.FD(), Linger: 100 * time.Millisecond},
	}
	for _, f := range change {
		f(&cfg)
	}
	b, err := New(cfg)
	require.NoError(n.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			require.NoError(n.t, <-ended)
		})
	}
	n.t.Cleanup(stop)
	return b, stop
}

// What the feed says of readiness decides on the next packet, and it stays in force whatever becomes of the NSP and of this process.
func TestReadinessDecides(t *testing.T) {
	net, nsp := newNetwork(t, 3), startFake(t)
	nsp.configure()
	for id := range 3 {
		nsp.target(id+1, active, address(id+1)+"/24")
	}
	b, stop := net.balance(nsp)
	net.eventually("1 2 3")
	nsp.target(2, inactive, address(2)+"/24")
	net.eventually("1 3")
	nsp.target(2, draining, address(2)+"/24")
	require.Eventually(t, func() bool { return b.Status().Targets["stream-a"] == TargetCount{2, 1} }, time.Minute, time.Millisecond)
	net.eventually("1 3") // UDP has no connections
	nsp.target(2, active, address(2)+"/24")
	net.eventually("1 2 3")
	require.True(t, b.Status().Connected)

	nsp.stop()
	require.Eventually(t, func() bool { return !b.Status().Connected }, time.Minute, time.Millisecond)
	require.Equal(t, "1 2 3", net.answers(), "without the NSP")
	stop()
	require.Equal(t, "1 2 3", net.answers(), "without the load balancer")
	b, stop = net.balance(nsp)
	require.Eventually(t, func() bool { return b.Status().Missing != "" }, time.Minute, time.Millisecond)
	require.Equal(t, "1 2 3", net.answers(), "with a new one that was told nothing")
	nsp.start()
	nsp.target(1, inactive, address(1)+"/24")
	net.eventually("2 3")
	stop()

	_, stop = net.balance(nsp, func(c *Config) { c.RemoveAtEnd = true })
	net.eventually("2 3")
	stop()
	require.Equal(t, "nobody", net.answers())
}

// An old NSP has no feed: its registry is asked.
func TestRegistryOfMeridio1(t *testing.T) {
	net, nsp := newNetwork(t, 2), startFake(t)
	nsp.configure()
	old := func(id int) *nspv1.Target {
		return &nspv1.Target{
			Ips: []string{address(id) + "/24"}, Context: map[string]string{"identifier": fmt.Sprint(id)}, Stream: &nspv1.Stream{Name: "stream-a"},
		}
	}
	nsp.set(func() { nsp.legacy = []*nspv1.Target{old(1), old(2)} })
	b, _ := net.balance(nsp, func(c *Config) { c.Feed = "" })
	net.eventually("1 2")
	bad := old(2)
	bad.Context["identifier"] = "two"
	nsp.set(func() { nsp.legacy = []*nspv1.Target{old(1), bad} })
	net.eventually("1")
	require.Eventually(t, func() bool { return len(b.Status().Refused) == 1 }, time.Minute, time.Millisecond)
}

// A target whose address nothing leads to gets packets the moment that the link is there.
func TestPendingTargetIsActivatedByItsLink(t *testing.T) {
	net, nsp := newNetwork(t, 2), startFake(t)
	nsp.configure()
	nsp.target(1, active, address(1)+"/24")
	nsp.target(2, active, "172.17.0.2/24")
	require.NoError(t, net.targets[1].AddAddress("eth0", "172.17.0.2/24"))
	b, _ := net.balance(nsp)
	net.eventually("1")
	require.Eventually(t, func() bool {
		return slices.Equal(b.Status().Pending, []nft.TargetRef{{Stream: "stream-a", Identifier: 2}})
	}, time.Minute, time.Millisecond)
	require.NoError(t, net.lb.AddAddress("br0", "172.17.0.1/24"))
	net.eventually("1 2")
	require.Eventually(t, func() bool { return len(b.Status().Pending) == 0 }, time.Minute, time.Millisecond)
}

// A flow that makes no sense is refused by name, and the others stand.
func TestBadFlowIsRefused(t *testing.T) {
	net, nsp := newNetwork(t, 1), startFake(t)
	nsp.configure()
	nsp.target(1, active, address(1)+"/24")
	nsp.set(func() {
		nsp.flows = append(nsp.flows, &nspv1.Flow{Name: "bad", Stream: nsp.streams[0], Vips: nsp.vips, Protocols: []string{"gre"}})
		nsp.conduit = &nspv1.Conduit{Name: "load-balancer", DestinationPortNats: []*nspv1.Conduit_PortNat{{Protocol: "icmp", Port: 1, TargetPort: 2}}}
	})
	b, _ := net.balance(nsp)
	net.eventually("1")
	require.Eventually(t, func() bool { return len(b.Status().Refused) == 2 }, time.Minute, time.Millisecond)
	refused := b.Status().Refused
	require.ErrorContains(t, refused["flow bad"], "gre")
	require.Contains(t, refused, "port nat icmp 1")
}

func TestMetrics(t *testing.T) {
	net, nsp := newNetwork(t, 1), startFake(t)
	nsp.configure()
	b, _ := net.balance(nsp)
	require.Eventually(t, func() bool { return b.Status().Programmed }, time.Minute, time.Millisecond)
	require.Equal(t, "nobody", net.answers())
	nsp.target(1, active, address(1)+"/24")
	net.eventually("1")
	require.Equal(t, "1", net.answers())
	counters, err := b.plane.Counters()
	require.NoError(t, err)
	sent := counters.Targets[nft.TargetRef{Stream: "stream-a", Identifier: 1}].Packets
	require.GreaterOrEqual(t, sent, uint64(30))
	require.NoError(t, testutil.GatherAndCompare(b.Metrics(), strings.NewReader(fmt.Sprintf(`
# HELP stateless_lb_target_packets_total Packets that were sent to a target.
# TYPE stateless_lb_target_packets_total counter
stateless_lb_target_packets_total{conduit="load-balancer",identifier="1",stream="stream-a",trench="trench-a"} %d
# HELP stateless_lb_targets Targets that the NSP has named, by state; pending ones among them.
# TYPE stateless_lb_targets gauge
stateless_lb_targets{conduit="load-balancer",state="active",stream="stream-a",trench="trench-a"} 1
stateless_lb_targets{conduit="load-balancer",state="draining",stream="stream-a",trench="trench-a"} 0
# HELP stateless_lb_programmed Whether the kernel has what is desired.
# TYPE stateless_lb_programmed gauge
stateless_lb_programmed{conduit="load-balancer",trench="trench-a"} 1
`, sent)), "stateless_lb_target_packets_total", "stateless_lb_targets", "stateless_lb_programmed"))
	families, err := b.Metrics().Gather()
	require.NoError(t, err)
	seen := map[string]uint64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			seen[f.GetName()] += m.GetHistogram().GetSampleCount() + uint64(m.GetCounter().GetValue())
		}
	}
	require.Equal(t, uint64(1), seen["stateless_lb_readiness_to_kernel_seconds"])
	require.Positive(t, seen["stateless_lb_dropped_packets_total"])
	require.Positive(t, seen["stateless_lb_flow_packets_total"])
}

// Two targets cannot have one identifier, one out of range is none, and addresses are those of the target without their prefix.
func TestIntentOfTargets(t *testing.T) {
	in := newIntent()
	require.Equal(t, "VIPs, conduit, streams, flows, targets", in.missing())
	in.setStreams(&nspv1.StreamResponse{Streams: []*nspv1.Stream{{Name: "s", MaxTargets: 2}}})
	in.setTargets(map[targetKey]told{
		{"s", "a"}: {identifier: 1, addresses: []string{"172.16.0.1/24", "fd00::1/64"}},
		{"s", "b"}: {identifier: 1, addresses: []string{"172.16.0.2/24"}},
		{"s", "c"}: {identifier: 3, addresses: []string{"172.16.0.3/24"}},
		{"s", "d"}: {identifier: 2, addresses: []string{"nonsense"}},
		{"t", "e"}: {identifier: 2, addresses: []string{"172.16.0.4"}},
	})
	d, refused, _ := in.desired()
	require.Len(t, refused, 4)
	require.Equal(t, []nft.Target{{Identifier: 1, Addresses: []netip.Addr{netip.MustParseAddr("172.16.0.1"), netip.MustParseAddr("fd00::1")}}}, d.Streams[0].Targets)
}

// While nothing can be programmed, causes of changes are kept to measure, but not without an end; the first ones waited longest.
func TestCausesAreBounded(t *testing.T) {
	in, at := newIntent(), func(n int) cause { return cause{received: time.Unix(int64(n), 0)} }
	change := func(n int) { in.changeTargets(func(map[targetKey]told, map[string]*sources.Set) {}, at(n)) }
	for n := range 2 * maxNews {
		change(n)
	}
	_, _, news := in.desired()
	require.Len(t, news, maxNews)
	require.Equal(t, at(0), news[0])
	change(3 * maxNews)
	in.postpone(news[:maxNews-1])
	change(4 * maxNews)
	_, _, news = in.desired()
	require.Len(t, news, maxNews)
	require.Equal(t, []cause{at(0), at(3 * maxNews)}, []cause{news[0], news[maxNews-1]})
}

// A link that goes down takes its target along, whose traffic the others get; when it is back the target gets its share again.
func TestLinkTakesItsTargetAlong(t *testing.T) {
	net, nsp := newNetwork(t, 1), startFake(t)
	far := netns.Test(t, "far")
	netns.Connect(t, netns.End{Space: net.lb, Link: "far", Addresses: []string{"172.18.0.1/24"}},
		netns.End{Space: far, Link: "eth0", Addresses: []string{"172.18.0.2/24"}})
	far.Route(t, "0.0.0.0/0", "172.18.0.1")
	require.NoError(t, far.AddAddress("lo", "20.0.0.1/32"))
	net.serve(far, "2")
	nsp.configure()
	nsp.target(1, active, address(1)+"/24")
	nsp.target(2, active, "172.18.0.2/24")
	net.balance(nsp)
	net.eventually("1 2")
	link, err := net.lb.Netlink().LinkByName("far")
	require.NoError(t, err)
	require.NoError(t, net.lb.Netlink().LinkSetDown(link))
	net.eventually("1")
	require.NoError(t, net.lb.Netlink().LinkSetUp(link))
	net.eventually("1 2")
}
