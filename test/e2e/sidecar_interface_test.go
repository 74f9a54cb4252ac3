package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	ambassadorv1 "github.com/nordix/meridio-nsp/api/ambassador/v1"
	"github.com/nordix/meridio-nsp/test/cluster"
	"github.com/nordix/meridio-nsp/test/play"
)

// lease is the entry timeout of these tests: what has to expire shall not take a minute.
const lease = 4 * time.Second

func newInterfaceScene(t *testing.T) *relayScene {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	return newRelayScene(t, "--entry-timeout="+lease.String())
}

// interfaceTarget makes a pod with an interface net1 to a network of both families, and no TAPA. Its sidecar has the one privilege that
// it needs.
func (s *relayScene) interfaceTarget(name string, number int) *target {
	s.Helper()
	pod, err := s.cluster.Pod(s.Context(), cluster.PodConfig{
		Namespace: s.namespace, Name: name, Labels: map[string]string{"app": "web"}, Ready: true,
	})
	require.NoError(s, err)
	t := &target{relayScene: s, name: name, number: number}
	t.runInterface(play.SidecarConfig{Pod: name, PodUID: string(pod.UID)})
	return t
}

// runInterface gives the target an interface net1 and the real sidecar.
func (t *target) runInterface(cfg play.SidecarConfig) {
	t.Helper()
	s := t.relayScene
	t.netns = t.wire()
	t.ip("-n %s addr del %s dev eth0", t.netns, secondary(t.number)[0])
	t.ip("-n %s link add net1 type veth peer name net2", t.netns)
	t.ip("-n %s addr add %s dev net1", t.netns, secondary(t.number)[0])
	t.ip("-n %s addr add fd00:16::%d/64 dev net1 nodad", t.netns, t.number)
	t.ip("-n %s link set net2 up", t.netns)
	t.ip("-n %s link set net1 up", t.netns)
	dir, err := os.MkdirTemp("", "tapa")
	require.NoError(s, err)
	s.Cleanup(func() { _ = os.RemoveAll(dir) })
	at := func(address string) string {
		_, port, err := net.SplitHostPort(address)
		require.NoError(s, err)
		return nspName + ":" + port
	}
	cfg.Namespace, cfg.NSP, cfg.Dir, cfg.Netns = s.namespace, at(s.nsp.Address()), dir, t.netns
	cfg.Wrapper = []string{"setpriv", "--bounding-set=-all,+net_admin", "--inh-caps=-all", "--no-new-privs"}
	cfg.Args = append(cfg.Args, "--connector=interface", "--interface=net1", "--gateway=172.16.0.254,fd00:16::fe", "--entry-timeout="+lease.String())
	if cfg.ExternalTarget == "" {
		cfg.Args = append(cfg.Args, "--trench-server="+at(s.trench.Address()))
	}
	t.sidecar, err = play.StartSidecar(s.Context(), cfg)
	require.NoError(s, err)
	s.Cleanup(t.sidecar.Kill)
	conn, err := t.sidecar.Dial(t.sidecar.TapSocket())
	require.NoError(s, err)
	s.Cleanup(func() { _ = conn.Close() })
	t.app = ambassadorv1.NewTapClient(conn)
}

// bears are the VIPs, rules and routes that the pod has for its streams.
func (t *target) bears() string {
	t.Helper()
	var found []string
	for _, what := range []string{"addr show dev lo scope global", "rule show table 110", "-6 rule show table 110",
		"route show table 110", "-6 route show table 110"} {
		out, err := exec.Command("ip", strings.Fields("-o -n "+t.netns+" "+what)...).CombinedOutput()
		if err == nil { // There is no table without a route in it.
			found = append(found, string(out))
		}
	}
	return strings.Join(found, "")
}

func (t *target) carries(what ...string) {
	t.Helper()
	require.Eventuallyf(t, func() bool {
		all := t.bears()
		for _, w := range what {
			if !strings.Contains(all, w) {
				return false
			}
		}
		return len(what) > 0 || all == ""
	}, patience, 10*time.Millisecond, "want %q\n%s", what, t.log())
}

func (t *target) log() string {
	log := t.sidecar.Log()
	return fmt.Sprintf("have %s\nthe sidecar says:\n%s", t.bears(), log[max(0, len(log)-6000):])
}

// shows waits until the sidecar says this of its streams.
func (t *target) shows(want string) {
	t.Helper()
	var have []string
	require.Eventuallyf(t, func() bool {
		st, ok := t.sidecar.Status(t.Context())
		have = nil
		for _, s := range st.Streams {
			have = append(have, s.Name+" "+s.Status.String())
		}
		return ok && strings.Join(have, ", ") == want
	}, patience, 10*time.Millisecond, "want %s\n%s", want, t.log())
}

// numbered waits until the load balancer has the pod under this identifier in a stream.
func (s *relayScene) numbered(lb *play.LB, stream, pod string, id uint32) {
	s.Helper()
	_, err := lb.WaitFor(s.within(), func(lb *play.LB) bool {
		for _, t := range lb.Targets() {
			if t.GetStream() == stream && t.GetPod() == s.namespace+"/"+pod && t.GetIdentifier() == id {
				return true
			}
		}
		return false
	})
	require.NoErrorf(s, err, "want %s as %d in %s, have %v", pod, id, stream, lb.Targets())
}

// A Service has a pod without a TAPA registered, with VIPs and routes in place; what the application opens shares them. When the last
// one lets go all is as it was. Neither a crash of the sidecar nor an NSP that stalls beyond the lease changes an identifier. // P18
func TestInterface(t *testing.T) {
	s := newInterfaceScene(t)
	lb := s.scene.lb()
	s.service("web", "stream-a")
	one := s.interfaceTarget("web-1", 1)
	one.shows("stream-a OPEN")
	two := s.interfaceTarget("web-2", 2)
	two.shows("stream-a OPEN")
	s.active(lb, "stream-a", "web-1", "web-2")
	s.numbered(lb, "stream-a", "web-1", 1)
	s.numbered(lb, "stream-a", "web-2", 2)
	one.carries("inet 20.0.0.1/32", "from 20.0.0.1", "default via 172.16.0.254 dev net1", "blackhole default")

	s.setVIPs("20.0.0.1/32", "2000::1/128", "20.1.0.0/28")
	two.carries("inet6 2000::1/128", "from 2000::1", "default via fd00:16::fe dev net1", "from 20.1.0.0/28")
	one.open("stream-b")
	one.shows("stream-a OPEN, stream-b OPEN")

	held := two.bears()
	two.sidecar.Kill()
	require.Equal(t, held, two.bears())
	one.sidecar.Stop() // Its identifier is free for the one that was killed, which is not to take it.
	require.Zero(t, one.sidecar.Process().ExitCode())
	one.carries()
	s.active(lb, "stream-a", "web-2")
	require.NoError(t, two.sidecar.Start())
	two.shows("stream-a OPEN")
	require.Equal(t, held, two.bears())
	require.NoError(t, one.sidecar.Start())
	one.shows("stream-a OPEN, stream-b OPEN")

	s.nsp.Process().Signal(syscall.SIGSTOP)
	one.loses("NSP") // It has missed three heartbeats then, in which time a lease ends thrice.
	two.loses("NSP")
	s.nsp.Process().Signal(syscall.SIGCONT)
	s.active(lb, "stream-a", "web-1", "web-2")
	s.numbered(lb, "stream-a", "web-1", 1)
	s.numbered(lb, "stream-a", "web-2", 2)

	require.NoError(t, s.cluster.DeleteService(t.Context(), s.namespace, "web"))
	two.carries()
	one.shows("stream-b OPEN")
	one.carries("inet 20.0.0.1/32")
	one.close("stream-b")
	one.carries()
	require.Eventually(t, func() bool { return len(lb.Targets()) == 0 }, patience, 10*time.Millisecond, "all are unregistered")
}

// loses waits until the sidecar says that a connection of its is gone.
func (t *target) loses(link string) {
	t.Helper()
	require.Eventuallyf(t, func() bool {
		st, ok := t.sidecar.Status(t.Context())
		return ok && !map[string]bool{"NSP": st.NSP.Connected, "connector": st.Connector.Connected}[link]
	}, patience, 10*time.Millisecond, "%s is still connected\n%s", link, t.sidecar.Log())
}

// setVIPs replaces the VIPs of the trench.
func (s *relayScene) setVIPs(vips ...string) {
	s.Helper()
	maps := s.cluster.Client().CoreV1().ConfigMaps(s.namespace)
	cm, err := maps.Get(s.Context(), "meridio-configuration-trench-a", metav1.GetOptions{})
	require.NoError(s, err)
	text := "items:\n"
	for i, vip := range vips {
		text += fmt.Sprintf("- name: vip-%c\n  address: %s\n  trench: trench-a\n", 'a'+i, vip)
	}
	cm.Data["vips"] = text
	_, err = maps.Update(s.Context(), cm, metav1.UpdateOptions{})
	require.NoError(s, err)
}

// Of two pods one waits for a place, says so, and gets it when the other, which died, has outlived its lease. // D9, P17
func TestInterfaceWaitsForAPlace(t *testing.T) {
	s := newInterfaceScene(t)
	require.NoError(t, play.Configure(t.Context(), s.cluster.Client(), s.namespace, "trench-a", "conduit-a", map[string]int{"stream-a": 1}))
	s.service("web", "stream-a")
	lb := s.scene.lb()
	one := s.interfaceTarget("web-1", 1)
	one.shows("stream-a OPEN")
	two := s.interfaceTarget("web-2", 2)
	two.shows("stream-a UNAVAILABLE")
	one.sidecar.Kill()
	two.shows("stream-a OPEN")
	s.active(lb, "stream-a", "web-2")
	s.numbered(lb, "stream-a", "web-2", 1)
}
