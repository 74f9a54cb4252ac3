package e2e

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nordix/meridio-nsp/test/chart"
	"github.com/nordix/meridio-nsp/test/cluster"
	"github.com/nordix/meridio-nsp/test/play"
	"github.com/nordix/meridio-nsp/test/process"
)

// controllerProcess is a real nsp controller under the chart's ServiceAccount.
type controllerProcess struct {
	s    *scene
	args []string
	path string
	log  bytes.Buffer
	*process.Process
}

func (s *scene) controller(args ...string) *controllerProcess {
	s.Helper()
	require.NoError(s, chart.Install(s.Context(), s.cluster, s.namespace, chart.Values{"controller": object{"enabled": true}}))
	kubeconfig, err := s.cluster.ServiceAccountKubeconfig(s.Context(), s.namespace, chart.ControllerAccount)
	require.NoError(s, err)
	path, err := play.Build(s.Context())
	require.NoError(s, err)
	c := &controllerProcess{s: s, path: path, args: append([]string{"controller", "--namespace=" + s.namespace, "--kubeconfig=" + kubeconfig,
		"--metrics-address=", "--health-address="}, args...)}
	c.start()
	s.Cleanup(func() {
		c.Kill()
		if s.Failed() {
			s.Logf("controller: %s", c.log.String())
		}
	})
	return c
}

func (c *controllerProcess) start() {
	c.s.Helper()
	var err error
	c.Process, err = process.Start(process.Config{Path: c.path, Args: c.args, Output: &c.log})
	require.NoError(c.s, err)
}

func (s *scene) apply(format string, args ...any) {
	s.Helper()
	require.NoError(s, s.cluster.Apply(s.Context(), fmt.Appendf(nil, format, args...), false))
}

const externalTarget = `
apiVersion: targetpool.meridio.nordix.org/v1alpha1
kind: ExternalTarget
metadata: {name: %s, namespace: %s, labels: {app: web}}
spec: {source: {addresses: {ips: [%s]}}}
`

// resolve is what a client finds that knows Services and EndpointSlices and nothing else.
func (s *scene) resolve(service string) []string {
	list, err := s.cluster.Client().DiscoveryV1().EndpointSlices(s.namespace).List(s.Context(),
		metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service})
	require.NoError(s, err)
	var found []string
	for _, slice := range list.Items {
		for _, e := range slice.Endpoints {
			if e.Conditions.Ready == nil || *e.Conditions.Ready {
				found = append(found, e.Addresses[0])
			}
		}
	}
	slices.Sort(found)
	return found
}

func (s *scene) awaitResolved(service string, want ...string) {
	s.Helper()
	slices.Sort(want)
	require.Eventually(s, func() bool { return slices.Equal(s.resolve(service), want) }, patience, 20*time.Millisecond, "%v", want)
}

func TestVirtualMachineBesidePods(t *testing.T) {
	s := newScene(t)
	s.controller("--leader-election=false")
	s.service("web", "stream-a")
	pod, err := s.cluster.Pod(t.Context(), cluster.PodConfig{Namespace: s.namespace, Name: "web-0", Labels: map[string]string{"app": "web"}, Ready: true})
	require.NoError(t, err)
	var ips []string
	for _, ip := range pod.Status.PodIPs {
		ips = append(ips, ip.IP)
	}
	s.apply(externalTarget, "vm-1", s.namespace, `192.0.2.1, "2001:db8::1"`)
	s.awaitResolved("web", append(ips, "192.0.2.1", "2001:db8::1")...)
	_, err = s.cluster.SetReady(t.Context(), s.namespace, "web-0", false)
	require.NoError(t, err)
	s.awaitResolved("web", "192.0.2.1", "2001:db8::1")
	out, err := s.cluster.Kubectl(t.Context(), "get", "et", "-n", s.namespace, "vm-1", "--no-headers")
	require.NoError(t, err)
	require.Equal(t, []string{"vm-1", "2", "2", "True", "True"}, strings.Fields(string(out))[:5])
	_, err = s.cluster.Kubectl(t.Context(), "delete", "et", "-n", s.namespace, "vm-1")
	require.NoError(t, err)
	s.awaitResolved("web")
}

const grantOfMachine = `
apiVersion: targetpool.meridio.nordix.org/v1alpha1
kind: TargetGrant
metadata: {name: vms, namespace: %[1]s}
spec:
  from: [{namespace: %[1]s, externalTargets: [vm-1]}]
  to: [{trench: trench-a}]
`

// programmed is what the NSP says of the pool.
func (s *scene) programmed(service string) string {
	object, err := s.cluster.Client().CoreV1().Services(s.namespace).Get(s.Context(), service, metav1.GetOptions{})
	require.NoError(s, err)
	for _, c := range object.Status.Conditions {
		if c.Type == "meridio.nordix.org/Programmed" {
			return c.Message
		}
	}
	return ""
}

func TestVirtualMachineIsAMember(t *testing.T) {
	s := newScene(t)
	s.apply(grantOfMachine, s.namespace)
	s.controller("--leader-election=false")
	s.service("web", "stream-a")
	_, err := s.cluster.Pod(t.Context(), cluster.PodConfig{Namespace: s.namespace, Name: "web-0", Labels: map[string]string{"app": "web"}, Ready: true})
	require.NoError(t, err)
	s.apply(externalTarget, "vm-1", s.namespace, `192.0.2.1, "2001:db8::1"`)
	s.apply(externalTarget, "vm-2", s.namespace, "192.0.2.2") // which the grant does not name
	require.Eventually(t, func() bool { return strings.Contains(s.programmed("web"), "of 2 members") }, patience, 20*time.Millisecond,
		s.programmed("web"))
	_, err = s.cluster.Kubectl(t.Context(), "delete", "et", "-n", s.namespace, "vm-1")
	require.NoError(t, err)
	require.Eventually(t, func() bool { return strings.Contains(s.programmed("web"), "of 1 members") }, patience, 20*time.Millisecond,
		s.programmed("web"))
}

func TestControllerKilledBetweenWrites(t *testing.T) { // P24
	s := newScene(t)
	c := s.controller("--leader-election=false")
	s.service("web", "stream-a")
	var want []string
	for round := range 6 {
		want = want[:0]
		for i := range 8 {
			ip := fmt.Sprintf("10.%d.%d.1", round+1, i)
			want = append(want, ip)
			s.apply(externalTarget, fmt.Sprintf("vm-%d", i), s.namespace, ip)
		}
		time.Sleep(time.Duration(rand.IntN(30)) * time.Millisecond) // wherever it is now
		c.Kill()
		c.start()
	}
	s.awaitResolved("web", want...)
	list, err := s.cluster.Client().DiscoveryV1().EndpointSlices(s.namespace).List(t.Context(), metav1.ListOptions{
		LabelSelector: discoveryv1.LabelManagedBy + "=external-target-controller.meridio.nordix.org"})
	require.NoError(t, err)
	require.Len(t, list.Items, 1) // and no leftover
}

func TestAnotherControllerTakesOver(t *testing.T) {
	s := newScene(t)
	first := s.controller()
	s.service("web", "stream-a")
	s.apply(externalTarget, "vm-1", s.namespace, "192.0.2.1")
	s.awaitResolved("web", "192.0.2.1")
	s.controller()
	first.Kill()
	s.apply(externalTarget, "vm-1", s.namespace, "192.0.2.2")
	require.Eventually(t, func() bool { return slices.Equal(s.resolve("web"), []string{"192.0.2.2"}) }, 2*time.Minute, 100*time.Millisecond)
}

func TestTargetPoolOfPodsAndMachines(t *testing.T) {
	s := newScene(t)
	s.controller("--leader-election=false")
	s.apply(`
apiVersion: targetpool.meridio.nordix.org/v1alpha1
kind: TargetPool
metadata: {name: pool-a, namespace: %s}
spec:
  stream: {trench: trench-a, conduit: conduit-a, stream: stream-a}
  selector: {app: web}
`, s.namespace)
	s.apply(externalTarget, "vm-1", s.namespace, "192.0.2.1")
	s.awaitResolved("pool-a", "192.0.2.1")
	// The NSP takes it for what it is: a pool.
	require.Eventually(t, func() bool {
		service, err := s.cluster.Client().CoreV1().Services(s.namespace).Get(t.Context(), "pool-a", metav1.GetOptions{})
		require.NoError(t, err)
		return slices.ContainsFunc(service.Status.Conditions, func(c metav1.Condition) bool {
			return c.Type == "meridio.nordix.org/Accepted" && c.Status == metav1.ConditionTrue
		})
	}, patience, 20*time.Millisecond)
	_, err := s.cluster.Kubectl(t.Context(), "delete", "tpool", "-n", s.namespace, "pool-a")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, err := s.cluster.Client().CoreV1().Services(s.namespace).Get(t.Context(), "pool-a", metav1.GetOptions{})
		return err != nil
	}, patience, 20*time.Millisecond)
}
