package e2e

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/test/netns"
	"github.com/nordix/meridio-nsp/test/process"
)

// lbScene is a relayScene with the load balancer on real packets: a client, the program and the targets of the pods, each in a network
// namespace. A target accepts TCP at port 4000 of the VIP and says its number.
type lbScene struct {
	*relayScene
	client, router *netns.Space
	binary, dir    string
	args           []string
	program        *process.Process
	log            *os.File
}

func newLBScene(t *testing.T) *lbScene {
	router := netns.Test(t, "lb")
	s := &lbScene{relayScene: newRelayScene(t), client: netns.Test(t, "client"), router: router, dir: t.TempDir()}
	s.binary = filepath.Join(filepath.Dir(s.nsp.Binary()), "stateless-lb")
	require.NoError(t, router.Forward())
	require.NoError(t, router.AddBridge("br0", "172.16.0.1/24"))
	netns.Connect(t, netns.End{Space: router, Link: "client", Addresses: []string{"10.0.0.1/24"}},
		netns.End{Space: s.client, Link: "eth0", Addresses: []string{"10.0.0.2/24"}})
	s.client.Route(t, "0.0.0.0/0", "10.0.0.1")
	var inside []string
	for _, address := range []string{s.trench.Address(), s.nsp.Address()} {
		in, stop, err := router.Pipe(address)
		require.NoError(t, err)
		t.Cleanup(stop)
		inside = append(inside, in)
	}
	s.args = []string{
		"--trench=trench-a", "--conduit=conduit-a", "--nsp-address=" + inside[0], "--feed-address=" + inside[1],
		"--health-socket=" + s.dir + "/health.sock", "--metrics-address=" + lbMetrics, "--log-level=debug",
	}
	var err error
	s.log, err = os.Create(filepath.Join(s.dir, "lb.log"))
	require.NoError(t, err)
	t.Cleanup(func() { s.log.Close() })
	s.start()
	t.Cleanup(func() { s.program.Kill() })
	return s
}

func (s *lbScene) start() {
	s.Helper()
	var err error
	s.program, err = s.router.Start(process.Config{Path: s.binary, Args: s.args, Output: s.log})
	require.NoError(s, err)
}

func (s *lbScene) isReady() bool {
	p, err := s.router.Start(process.Config{Path: s.binary, Args: []string{"probe", "--addr=unix://" + s.dir + "/health.sock", "--service=Readiness"}})
	return err == nil && p.ExitCode() == 0
}

// tool runs a command of the program beside it.
func (s *lbScene) tool(args ...string) string {
	s.Helper()
	var out bytes.Buffer
	p, err := s.router.Start(process.Config{Path: s.binary, Args: args, Output: &out})
	require.NoError(s, err)
	require.Zero(s, p.ExitCode(), "%v: %s", args, out.String())
	return out.String()
}

// podWithTarget makes a pod, its TAPA, and the application behind its secondary address.
func (s *lbScene) podWithTarget(number int) {
	s.Helper()
	space := netns.Test(s.T, fmt.Sprint("target-", number))
	netns.Connect(s.T, netns.End{Space: s.router, Link: fmt.Sprint("t", number), Bridge: "br0"},
		netns.End{Space: space, Link: "eth0", Addresses: secondary(number)})
	space.Route(s.T, "0.0.0.0/0", "172.16.0.1")
	require.NoError(s, space.AddAddress("lo", "20.0.0.1/32"))
	var l net.Listener
	require.NoError(s, space.Do(func() (err error) { l, err = net.Listen("tcp", "20.0.0.1:4000"); return err }))
	var done sync.WaitGroup
	done.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(c, number)
			c.Close()
		}
	})
	s.Cleanup(func() { l.Close(); done.Wait() })
	s.oldTAPA(fmt.Sprint("web-", number), number)
}

// ask connects and returns who answered; empty where nobody did.
func (s *lbScene) ask() string {
	var c net.Conn
	err := s.client.Do(func() (err error) { c, err = net.DialTimeout("tcp", "20.0.0.1:4000", time.Second); return err })
	if err != nil {
		return ""
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Second))
	buf := make([]byte, 10)
	n, _ := c.Read(buf)
	return string(buf[:n])
}

// answers are who answers 30 connections.
func (s *lbScene) answers() string {
	seen := map[string]bool{}
	for range 30 {
		who := s.ask()
		seen[who] = true
		if who == "" {
			return "nobody"
		}
	}
	names := []string{}
	for name := range seen {
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

func (s *lbScene) eventually(want string) {
	s.Helper()
	got := ""
	require.Eventually(s, func() bool { got = s.answers(); return got == want }, patience, 10*time.Millisecond, "want %q, the last was %q\n%s", want, got, s.tail())
}

func (s *lbScene) tail() string {
	data, _ := os.ReadFile(s.log.Name())
	return string(data[max(0, len(data)-4000):])
}

// Readiness on a real control plane decides where real packets go, at once and through the loss of every process.
func TestLoadBalancerOnRealPackets(t *testing.T) {
	s := newLBScene(t)
	s.service("web", "stream-a")
	for _, number := range []int{11, 12, 13} {
		s.podWithTarget(number)
	}
	s.eventually("11 12 13")
	require.Eventually(t, s.isReady, patience, 50*time.Millisecond, "packets may be through a moment before it says so")
	s.ready("web-12", false)
	s.eventually("11 13")
	s.ready("web-12", true)
	s.eventually("11 12 13")

	// The load balancer is killed and started again, and no connection fails meanwhile.
	s.program.Kill()
	require.Equal(t, "11 12 13", s.answers())
	s.start()
	require.Eventually(t, func() bool {
		require.Equal(t, "11 12 13", s.answers(), s.tail())
		return strings.Count(s.tail(), "load balancer starts") > 0
	}, patience, time.Millisecond)

	// Both processes of the NSP are killed: what was told last stays.
	s.nsp.Kill()
	s.trench.Kill()
	s.ready("web-11", false)
	require.Equal(t, "11 12 13", s.answers())
	require.NoError(t, s.nsp.Start(t.Context()))
	require.NoError(t, s.trench.Start(t.Context()))
	s.eventually("12 13")

	trace := s.tool("trace", "--src=10.0.0.2", "--sport=40000", "--dst=20.0.0.1", "--dport=4000", "--proto=tcp")
	require.Contains(t, trace, "forwarded")
	require.Contains(t, trace, "by flow flow-of-stream-a, via 172.16.0.1")
	require.Contains(t, s.tool("trace", "--src=10.0.0.2", "--sport=40000", "--dst=20.0.0.1", "--dport=4001", "--proto=tcp"), "stream-b has no target")

	s.program.Stop(5 * time.Second)
	require.Zero(t, s.program.ExitCode(), s.tail())
	require.Equal(t, "12 13", s.answers(), "the kernel goes on")
	s.tool("remove")
	require.Empty(t, s.ask())
}
