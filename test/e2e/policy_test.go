package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/targetpool/client"
	"github.com/nordix/meridio-nsp/test/cluster"
)

const streamPolicy = `
apiVersion: targetpool.meridio.nordix.org/v1alpha1
kind: StreamPolicy
metadata: {name: %s, namespace: %s}
spec:
  stream: {trench: trench-a, conduit: conduit-a, stream: stream-a}
  sources: [%s]
`

func (s *scene) policy(name, sources string) { s.apply(streamPolicy, name, s.namespace, sources) }

func (s *scene) deletes(kind, name string) {
	s.Helper()
	_, err := s.cluster.Kubectl(s.Context(), "delete", kind, "-n", s.namespace, name)
	require.NoError(s, err)
}

// limitWatch is what a receiver of TargetFeed knows of from where stream-a may be used.
type limitWatch struct {
	*scene
	feed *client.Feed
	mu   sync.Mutex
	told []string
}

func (s *scene) limits() *limitWatch {
	w := &limitWatch{scene: s}
	var err error
	w.feed, err = s.client().WatchFeed(client.FeedConfig{
		Conduit: &targetpoolv1.Conduit{Trench: "trench-a", Name: "conduit-a"},
		Handler: func(u client.Update) {
			w.mu.Lock()
			defer w.mu.Unlock()
			for _, c := range u.Sources {
				said := strings.Join(c.GetPrefixes(), " ")
				if c.GetUnlimited() {
					said = "all"
				}
				w.told = append(w.told, c.GetStream().GetName()+": "+said)
			}
		},
	})
	require.NoError(s, err)
	s.background(w.feed.Run)
	return w
}

// now waits until the stream may be used from these prefixes; "all" is no limit.
func (w *limitWatch) now(want string) {
	w.Helper()
	got := ""
	if !waitFor(func() bool {
		got = "all"
		if limit := w.feed.Sources()["stream-a"]; limit != nil {
			got = strings.Join(limit.GetPrefixes(), " ")
		}
		return w.feed.Status().Live && got == want
	}) {
		w.explain()
		require.Equal(w, want, got)
	}
}

func (w *limitWatch) history() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.told)
}

// flowWatch is what a load balancer of Meridio 1.x knows of flows: it and its trench process are older than policies.
type flowWatch struct {
	*relayScene
	mu    sync.Mutex
	flows map[string]string // source subnets by name
	seen  []string          // of flow-of-stream-a, without repetitions
}

func (s *relayScene) flows() *flowWatch {
	w := &flowWatch{relayScene: s}
	conn, err := s.trench.Dial()
	require.NoError(s, err)
	s.Cleanup(func() { _ = conn.Close() })
	manager := nspv1.NewConfigurationManagerClient(conn)
	filter := &nspv1.Flow{Stream: &nspv1.Stream{Conduit: &nspv1.Conduit{Name: "conduit-a", Trench: &nspv1.Trench{Name: "trench-a"}}}}
	s.background(func(ctx context.Context) error {
		for ctx.Err() == nil {
			watch, err := manager.WatchFlow(ctx, filter, grpc.WaitForReady(true))
			for err == nil {
				var m *nspv1.FlowResponse
				if m, err = watch.Recv(); err == nil {
					w.take(m)
				}
			}
		}
		return nil
	})
	return w
}

func (w *flowWatch) take(m *nspv1.FlowResponse) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.flows = map[string]string{}
	for _, f := range m.GetFlows() {
		w.flows[f.GetName()] = strings.Join(f.GetSourceSubnets(), " ")
		if len(f.GetVips()) != 1 {
			w.Errorf("flow %s has no VIP any more", f.GetName())
		}
	}
	if now := w.flows["flow-of-stream-a"]; len(w.seen) == 0 || w.seen[len(w.seen)-1] != now {
		w.seen = append(w.seen, now)
	}
}

func (w *flowWatch) now(want string) {
	w.Helper()
	var got map[string]string
	if !waitFor(func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		got = w.flows
		return got["flow-of-stream-a"] == want && got["flow-of-stream-b"] == "0.0.0.0/0"
	}) {
		require.Failf(w, "flows", "want %s, have %v\n%s", want, got, w.trench.LogTail())
	}
}

// A policy is made, its sources resolve, change and go, and load balancers are told each time: those on TargetFeed, and through the
// trench process those of Meridio 1.x, as the source subnets of the flows.
func TestPolicyReachesLoadBalancers(t *testing.T) {
	s := newRelayScene(t)
	c := s.controller("--leader-election=false")
	feed, flows := s.limits(), s.flows()
	feed.now("all")
	flows.now("0.0.0.0/0")

	// Pods behind a Service, ready or not, a machine, and a CIDR.
	_, err := s.cluster.Service(t.Context(), cluster.ServiceConfig{Namespace: s.namespace, Name: "clients", Selector: map[string]string{"app": "client"}})
	require.NoError(t, err)
	pod, err := s.cluster.Pod(t.Context(), cluster.PodConfig{Namespace: s.namespace, Name: "client-0", Labels: map[string]string{"app": "client"}})
	require.NoError(t, err)
	s.apply(externalTarget, "vm-1", s.namespace, `192.0.2.1, "2001:db8::1"`)
	s.policy("one", "{cidr: 198.51.100.0/24}, {service: {name: clients}}, {externalTarget: {name: vm-1}}")
	var four, six []string
	for _, ip := range pod.Status.PodIPs {
		if strings.Contains(ip.IP, ":") {
			six = append(six, ip.IP+"/128")
		} else {
			four = append(four, ip.IP+"/32")
		}
	}
	four = append(four, "192.0.2.1/32", "198.51.100.0/24")
	_, err = s.cluster.SetReady(t.Context(), s.namespace, "client-0", false)
	require.NoError(t, err)
	all := slices.Concat(four, slices.Sorted(slices.Values(append(six, "2001:db8::1/128"))))
	feed.nowAnyOrder(all...)
	flows.now(strings.Join(four, " ")) // the flow is for IPv4
	require.NoError(t, s.cluster.Client().CoreV1().Pods(s.namespace).Delete(t.Context(), "client-0", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
	feed.now("192.0.2.1/32 198.51.100.0/24 2001:db8::1/128")
	flows.now("192.0.2.1/32 198.51.100.0/24")

	// Two policies for a stream count together.
	s.policy("two", "{cidr: 203.0.113.0/24}")
	feed.now("192.0.2.1/32 198.51.100.0/24 203.0.113.0/24 2001:db8::1/128")
	s.deletes("spol", "one")
	feed.now("203.0.113.0/24")
	flows.now("203.0.113.0/24")
	s.works("streampolicy/two")

	// Without a policy all is as configured; with one whose sources are nothing nobody gets in, though the flow stays.
	s.deletes("spol", "two")
	feed.now("all")
	flows.now("0.0.0.0/0")
	s.policy("one", "{service: {name: missing}}")
	feed.now("")
	flows.now("::1/128")
	s.stopped("streampolicy/one", "Sources", "missing", "nobody gets in")

	// Whatever is started anew: the limit holds, and nobody is ever told otherwise.
	told, seen := len(feed.history()), len(flows.seenAll())
	s.nsp.Kill()
	s.trench.Stop() // a mirror is stored soon, not at once
	require.NoError(t, s.trench.Start(t.Context()))
	flows.now("::1/128")
	require.NoError(t, s.nsp.Start(t.Context()))
	feed.now("")
	c.Kill()
	c.start()
	s.policy("two", "{cidr: 203.0.113.0/24}")
	feed.now("203.0.113.0/24")
	flows.now("203.0.113.0/24")
	require.Equal(t, []string{"stream-a: 203.0.113.0/24"}, feed.history()[told:])
	require.Equal(t, []string{"203.0.113.0/24"}, flows.seenAll()[seen:])
}

func (w *flowWatch) seenAll() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.seen)
}

// nowAnyOrder is now for prefixes whose order the test does not know.
func (w *limitWatch) nowAnyOrder(want ...string) {
	w.Helper()
	var got []string
	require.Eventually(w, func() bool {
		got = nil
		if limit := w.feed.Sources()["stream-a"]; limit != nil {
			got = slices.Sorted(slices.Values(limit.GetPrefixes()))
		}
		return slices.Equal(got, slices.Sorted(slices.Values(want)))
	}, patience, 20*time.Millisecond, "want %v", want)
}

// Two hundred machines are two hundred prefixes, which nfqlb takes in several flows.
func TestPolicyOfManySourcesInOldFlows(t *testing.T) {
	s := newRelayScene(t)
	s.controller("--leader-election=false")
	flows := s.flows()
	var ips []string
	for i := range 200 {
		ips = append(ips, fmt.Sprintf("10.1.%d.%d", i/100, 1+2*(i%100)))
	}
	for i := range 2 {
		s.apply(externalTarget, fmt.Sprint("vms-", i), s.namespace, strings.Join(ips[100*i:100*i+100], ", "))
	}
	s.policy("many", "{externalTarget: {name: vms-0}}, {externalTarget: {name: vms-1}}")
	require.Eventually(t, func() bool {
		flows.mu.Lock()
		defer flows.mu.Unlock()
		var all []string
		for name, subnets := range flows.flows {
			if strings.HasPrefix(name, "flow-of-stream-a") {
				all = append(all, strings.Fields(subnets)...)
			}
		}
		return len(all) == 200 && len(flows.flows) == 8
	}, patience, 20*time.Millisecond)
}

// A policy decides whose real packets get through the load balancer; without it, the flow does.
func TestPolicyOnRealPackets(t *testing.T) {
	s := newLBScene(t)
	s.controller("--leader-election=false")
	s.service("web", "stream-a")
	s.podWithTarget(11)
	s.eventually("11")
	s.policy("one", "{cidr: 192.0.2.0/24}") // the client is 10.0.0.2
	s.eventually("nobody")
	s.apply(externalTarget, "vm-client", s.namespace, "10.0.0.2")
	s.policy("one", "{cidr: 192.0.2.0/24}, {externalTarget: {name: vm-client}}")
	s.eventually("11")
	trace := func(source string) string {
		return s.tool("trace", "--src="+source, "--sport=40000", "--dst=20.0.0.1", "--dport=4000", "--proto=tcp")
	}
	require.Contains(t, trace("10.0.0.2"), "forwarded  to target")
	require.Contains(t, trace("10.0.0.3"), "not forwarded  no flow of the VIP matches")
	s.deletes("et", "vm-client")
	s.eventually("nobody")

	// Killed and started again, everything says the same.
	s.program.Kill()
	s.nsp.Kill()
	require.Equal(t, "nobody", s.answers())
	s.start()
	require.NoError(t, s.nsp.Start(t.Context()))
	require.Equal(t, "nobody", s.answers())
	s.policy("one", "{cidr: 10.0.0.0/30}")
	s.eventually("11")
	s.deletes("spol", "one")
	require.Eventually(t, func() bool { return strings.Contains(trace("10.9.9.9"), "forwarded  to target") }, patience, 50*time.Millisecond)
	require.Equal(t, "11", s.answers())
}
