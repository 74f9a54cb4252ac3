package nft

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// stream sends numbered packets to a VIP, each from one of 50 ports, and counts answers.
type load struct {
	sent, answered atomic.Int64
	stop           chan struct{}
	done           sync.WaitGroup
}

func (w *world) load(vip string, port int) *load {
	w.t.Helper()
	l := &load{stop: make(chan struct{})}
	var conns []*net.UDPConn
	for range 50 {
		var c *net.UDPConn
		require.NoError(w.t, w.client.Do(func() (err error) {
			c, err = net.DialUDP("udp", nil, &net.UDPAddr{IP: net.ParseIP(vip), Port: port})
			return err
		}))
		conns = append(conns, c)
		l.done.Go(func() {
			buf := make([]byte, 100)
			for {
				if _, err := c.Read(buf); errors.Is(err, net.ErrClosed) {
					return
				} else if err == nil {
					l.answered.Add(1)
				}
			}
		})
	}
	l.done.Go(func() {
		defer func() {
			for _, c := range conns {
				c.Close()
			}
		}()
		for tick := time.NewTicker(200 * time.Microsecond); ; {
			for _, c := range conns {
				select {
				case <-l.stop:
					tick.Stop()
					for end := time.Now().Add(patience); l.answered.Load() < l.sent.Load() && time.Now().Before(end); {
						time.Sleep(time.Millisecond) // for the last answers
					}
					return
				case <-tick.C:
				}
				if _, err := c.Write([]byte("load")); err == nil {
					l.sent.Add(1)
				}
			}
		}
	})
	return l
}

// lost ends the load and returns how many packets were not answered.
func (l *load) lost() int64 {
	close(l.stop)
	l.done.Wait()
	return l.sent.Load() - l.answered.Load()
}

// wait lets so many more packets be answered.
func (l *load) wait(t testing.TB, n int64) {
	t.Helper()
	goal := l.answered.Load() + n
	require.Eventually(t, func() bool { return l.answered.Load() >= goal }, time.Minute, time.Millisecond)
}

// A process that starts anew adopts what is there: it changes nothing, and no packet is lost. Nor when targets and flows change under load.
func TestRestartAndChangesLoseNothing(t *testing.T) {
	w := newWorld(t, 4)
	w.apply(simple(1, 2, 3))
	w.serve(5000)
	for _, vip := range vips {
		w.shares(vip, 5000, 40) // neighbours are known
	}
	for _, vip := range vips {
		l := w.load(vip, 5000)
		l.wait(t, 200)
		w.plane = w.newPlane() // the old one is gone without a word
		w.plane.cfg.Linger = DefaultLinger
		r := w.apply(simple(1, 2, 3))
		require.False(t, r.Changed)
		l.wait(t, 200)
		w.apply(simple(1, 2, 3, 4))
		l.wait(t, 200)
		d := simple(1, 3, 4)
		d.Flows = append(d.Flows, Flow{Name: "flow-b", Stream: "stream-a", VIPs: allVIPs, Priority: 2, Sources: prefixes("10.0.0.0/8", "fd00::/8")})
		r = w.apply(d)
		require.True(t, r.Changed)
		require.Positive(t, r.Again)
		l.wait(t, 200)
		d.Streams[0].MaxTargets = 50
		require.True(t, w.apply(d).Changed)
		l.wait(t, 200)
		w.apply(simple(1, 2, 3))
		l.wait(t, 200)
		lost := l.lost()
		counts, err := w.plane.Counters()
		require.NoError(t, err)
		require.Zero(t, lost, "of %d; %v %s", l.sent.Load(), counts.Drops, w.statistics())
		w.plane.cfg.Linger = 0
		require.Zero(t, w.apply(simple(1, 2, 3)).Again)
	}
}

// statistics are those of the load balancer's kernel that count what it does not forward.
func (w *world) statistics() (out string) {
	_ = w.lb.Do(func() error {
		for _, file := range []string{"/proc/thread-self/net/snmp6", "/proc/thread-self/net/snmp"} {
			data, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			for line := range strings.Lines(string(data)) {
				if strings.HasPrefix(line, "Ip:") || strings.HasPrefix(line, "Ip6") && !strings.HasSuffix(strings.TrimSpace(line), "\t0") {
					out += line
				}
			}
		}
		return nil
	})
	return out
}

// A target that was removed gets no packet that is sent after the transaction.
func TestRemovedTargetGetsNothing(t *testing.T) {
	w := newWorld(t, 3)
	w.apply(simple(1, 2, 3))
	w.serve(5000)
	w.apply(simple(1, 3))
	for _, vip := range vips {
		require.Equal(t, []string{"1", "3"}, names(w.shares(vip, 5000, 40)))
	}
}

// The last target goes: the flow stays and drops, and no flow of less priority takes its traffic. (P22)
func TestLastTargetGone(t *testing.T) {
	w := newWorld(t, 2)
	w.serve(80)
	d := twoFlows(Flow{DestinationPorts: ports("80")})
	w.apply(d)
	require.Equal(t, "1", w.ask(vip4, 80, 10))
	d.Streams[0].Targets = nil
	w.apply(d)
	for _, vip := range vips {
		require.Empty(t, w.briefly().ask(vip, 80, 10))
	}
	counts, err := w.plane.Counters()
	require.NoError(t, err)
	require.Equal(t, uint64(2), counts.Drops["no-target.stream-a"].Packets)
	d.Streams[0].Targets = targets(1)
	w.apply(d)
	require.Equal(t, "1", w.ask(vip4, 80, 10))
}

// A target's identifier keeps and its address changes: the new one gets the packets, the others keep theirs. (D12)
func TestAddressChanges(t *testing.T) {
	w := newWorld(t, 3)
	w.serve(5000)
	w.apply(simple(1, 2))
	from := map[string]string{}
	for port := 4000; len(from) < 2; port++ {
		local := fmt.Sprintf("10.0.0.2:%d", port)
		from[w.ask(vip4, 5000, 10, local)] = local
	}
	d := simple(1, 2)
	d.Streams[0].Targets[0].Addresses = target(3).Addresses
	require.False(t, w.apply(d).Changed, "no slot changes hands")
	require.Equal(t, "3", w.ask(vip4, 5000, 10, from["1"]))
	require.Equal(t, "2", w.ask(vip4, 5000, 10, from["2"]))
	hops, err := w.plane.router.read()
	require.NoError(t, err)
	require.Len(t, hops.all(), 4)
	require.NotContains(t, hops.via, netip.MustParseAddr(address4(1)))
}

// The same identifier in two streams is two targets. (P16)
func TestSameIdentifierInTwoStreams(t *testing.T) {
	w := newWorld(t, 2)
	w.serve(80)
	w.serve(81)
	d := &Desired{VIPs: allVIPs}
	for i, name := range []string{"x1", "x2"} {
		tgt := target(i + 1)
		tgt.Identifier = 7
		d.Streams = append(d.Streams, Stream{Name: name, Targets: []Target{tgt}})
		d.Flows = append(d.Flows, Flow{Name: name, Stream: name, VIPs: allVIPs, DestinationPorts: ports(fmt.Sprint(80 + i))})
	}
	w.apply(d)
	require.Equal(t, "1", w.ask(vip4, 80, 10))
	require.Equal(t, "2", w.ask(vip4, 81, 10))
	d.Streams[0].Targets = nil
	w.apply(d)
	require.Empty(t, w.briefly().ask(vip4, 80, 10))
	require.Equal(t, "2", w.ask(vip4, 81, 10))
}

// A target whose address no link leads to waits, and gets traffic as soon as there is one. A link that goes takes its targets along.
func TestPendingTarget(t *testing.T) {
	w := newWorld(t, 2)
	w.serve(5000)
	d := simple(1, 2)
	d.Streams[0].Targets[1].Addresses = []netip.Addr{netip.MustParseAddr("172.17.0.2"), netip.MustParseAddr("fd00:17::2")}
	require.NoError(t, w.targets[1].AddAddress("eth0", "172.17.0.2/24"))
	require.NoError(t, w.targets[1].AddAddress("eth0", "fd00:17::2/64"))
	r := w.apply(d)
	require.Equal(t, []TargetRef{{"stream-a", 2}}, r.Pending)
	require.Equal(t, []string{"1"}, names(w.shares(vip4, 5000, 20)))
	require.NoError(t, w.lb.AddAddress("br0", "172.17.0.1/24"))
	w.plane.Refresh()
	r = w.apply(d)
	require.Len(t, r.Pending, 1, "its other family is still away")
	require.Equal(t, []string{"1", "2"}, names(w.shares(vip4, 5000, 20)))
	require.Equal(t, []string{"1"}, names(w.shares(vip6, 5000, 20)))
	require.NoError(t, w.lb.AddAddress("br0", "fd00:17::1/64"))
	w.plane.Refresh()
	require.Empty(t, w.apply(d).Pending)
	require.Equal(t, []string{"1", "2"}, names(w.shares(vip6, 5000, 20)))
	require.NoError(t, w.lb.DeleteAddress("br0", "172.17.0.1/24"))
	w.plane.Refresh()
	// The route stays as long as its link does, unless the kernel took it along.
	require.NotEmpty(t, names(w.shares(vip4, 5000, 5)))
}

// Another machine under the same address is found at once, though the kernel knows the link address of the one before.
func TestAnotherMachineUnderTheSameAddress(t *testing.T) {
	w := newWorld(t, 2)
	w.serve(5000)
	d := simple(1)
	d.Streams[0].Targets[0].Instance = "pod-1"
	w.apply(d)
	require.Equal(t, "1", w.ask(vip4, 5000, 10))
	require.Equal(t, "1", w.ask(vip6, 5000, 10))
	for _, a := range []string{address4(1) + "/16", address6(1) + "/64"} {
		require.NoError(t, w.targets[0].DeleteAddress("eth0", a))
		// Without the announcement that a new address makes.
		require.NoError(t, w.targets[1].Sysctl("net/ipv4/conf/eth0/arp_notify", "0"))
		require.NoError(t, w.targets[1].AddAddress("eth0", a))
	}
	d.Streams[0].Targets[0].Instance = "pod-2"
	w.apply(d)
	require.Equal(t, "2", w.ask(vip4, 5000, 10))
	require.Equal(t, "2", w.ask(vip6, 5000, 10))
}

// Remove takes away all that is the load balancer's and nothing else, and neither does anything before it.
func TestOthersAreLeftAlone(t *testing.T) {
	w := newWorld(t, 2)
	other := othersThings(t, w)
	before := snapshot(t, w)
	w.apply(simple(1, 2))
	w.apply(simple(2))
	require.NoError(t, w.plane.Remove())
	require.Equal(t, before, snapshot(t, w))
	require.NoError(t, w.plane.Remove(), "once more is nothing")
	w.apply(simple(1))
	other()
	require.NoError(t, w.plane.Remove())
}

// othersThings are a table, a rule with a mark of ours and a route in a table of ours, by somebody else.
func othersThings(t *testing.T, w *world) (check func()) {
	conn, err := nftables.New(nftables.WithNetNSFd(w.lb.FD()))
	require.NoError(t, err)
	table := conn.AddTable(&nftables.Table{Name: "others", Family: nftables.TableFamilyINet})
	chain := conn.AddChain(&nftables.Chain{
		Name: "prerouting", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw,
	})
	conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{&expr.Counter{}}})
	require.NoError(t, conn.Flush())
	rule := netlink.NewRule()
	rule.Mark, rule.Table, rule.Priority, rule.Family = DefaultMarkBase+1, DefaultMarkBase+1, 77, unix.AF_INET
	require.NoError(t, w.lb.Netlink().RuleAdd(rule))
	_, dst, err := net.ParseCIDR("198.51.100.0/24")
	require.NoError(t, err)
	require.NoError(t, w.lb.Netlink().RouteAdd(&netlink.Route{Dst: dst, Table: DefaultMarkBase + 1, Type: unix.RTN_BLACKHOLE}))
	return func() {
		rules, err := conn.GetRules(table, chain)
		require.NoError(t, err)
		require.Len(t, rules, 1)
	}
}

func snapshot(t *testing.T, w *world) string {
	conn, err := nftables.New(nftables.WithNetNSFd(w.lb.FD()))
	require.NoError(t, err)
	tables, err := conn.ListTables()
	require.NoError(t, err)
	out := ""
	for _, table := range tables {
		out += table.Name + "\n"
	}
	for _, f := range families {
		rules, err := w.lb.Netlink().RuleList(f.netlink())
		require.NoError(t, err)
		routes, err := w.lb.Netlink().RouteListFiltered(f.netlink(), &netlink.Route{}, netlink.RT_FILTER_TABLE)
		require.NoError(t, err)
		for _, r := range rules {
			out += fmt.Sprintln(r, r.Mark)
		}
		for _, r := range routes {
			if r.Protocol != unix.RTPROT_KERNEL { // those come by themselves
				out += fmt.Sprintln(r)
			}
		}
	}
	return out
}

// Rules stand in groups, so that a packet meets few of them; all marks are found, and the rules before groups go with the targets.
func TestRulesStandInGroups(t *testing.T) {
	w := newWorld(t, 2)
	w.serve(5000)
	d := simple(1)
	for id := 2; id <= 50; id++ { // the same machine as target 2
		tgt := target(2)
		tgt.Identifier = uint32(id)
		d.Streams[0].Targets = append(d.Streams[0].Targets, tgt)
	}
	w.apply(d)
	hops, err := w.plane.router.read()
	require.NoError(t, err)
	require.Len(t, hops.rules, 100)
	require.Len(t, hops.skips, 2*5, "four groups and the end")
	for _, vip := range vips {
		require.NotContains(t, w.shares(vip, 5000, 60), "")
	}
	w.plane = w.newPlane()
	require.False(t, w.apply(d).Changed)
	after, err := w.plane.router.read()
	require.NoError(t, err)
	require.Equal(t, hops, after, "a new process adds none")
	w.apply(simple(1))
	hops, err = w.plane.router.read()
	require.NoError(t, err)
	require.Len(t, hops.rules, 2)
	require.Len(t, hops.skips, 2*2)
	require.Equal(t, "1", w.ask(vip4, 5000, 10))
	w.apply(simple())
	hops, err = w.plane.router.read()
	require.NoError(t, err)
	require.Equal(t, newHops(), hops)
}
