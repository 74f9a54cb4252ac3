package e2e

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/targetpool/client"
	"github.com/nordix/meridio-nsp/test/chart"
	"github.com/nordix/meridio-nsp/test/cluster"
	"github.com/nordix/meridio-nsp/test/play"
)

// twin is a second cluster that has everything under the same names: the namespace, the Service and the pod.
func (s *scene) twin() (east *cluster.Cluster, pod *corev1.Pod) {
	s.Helper()
	east, err := cluster.Start(s.Context(), cluster.Config{})
	require.NoError(s, err)
	s.Cleanup(east.Stop)
	require.NoError(s, east.EnsureNamespace(s.Context(), s.namespace))
	_, err = east.Service(s.Context(), cluster.ServiceConfig{Namespace: s.namespace, Name: "web", Selector: map[string]string{"app": "web"}})
	require.NoError(s, err)
	pod, err = east.Pod(s.Context(), cluster.PodConfig{
		Namespace: s.namespace, Name: "web-0", Labels: map[string]string{"app": "web"}, Ready: true, IPs: []string{"10.9.0.1"},
	})
	require.NoError(s, err)
	kubeconfig, err := os.ReadFile(east.Kubeconfig())
	require.NoError(s, err)
	_, err = s.cluster.Client().CoreV1().Secrets(s.namespace).Create(s.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "east"}, Data: map[string][]byte{"kubeconfig": kubeconfig},
	}, metav1.CreateOptions{})
	require.NoError(s, err)
	return east, pod
}

const twinTarget = `
apiVersion: targetpool.meridio.nordix.org/v1alpha1
kind: ExternalTarget
metadata: {name: web-east, namespace: %[1]s, labels: {app: web}}
spec:
  source:
    kubernetes: {cluster: %[2]s, kubeconfigSecret: {name: east}, namespace: %[1]s, service: web}
---
apiVersion: targetpool.meridio.nordix.org/v1alpha1
kind: TargetGrant
metadata: {name: east, namespace: %[1]s}
spec:
  from: [{namespace: %[1]s, externalTargets: [web-east]}]
  to: [{trench: trench-a}]
`

// components waits until a load balancer has exactly these targets, by cluster/Service and state.
func (s *scene) components(lb *play.LB, want ...string) {
	s.Helper()
	have := func(lb *play.LB) (all []string) {
		for _, t := range lb.Targets() {
			state := strings.TrimPrefix(t.GetState().String(), "STATE_")
			for _, c := range t.GetComponents() {
				require.Equal(s, s.namespace, c.GetNamespace())
				state = c.GetCluster() + "/" + c.GetService() + " " + state
			}
			all = append(all, state+" "+strings.Join(t.GetAddresses(), ","))
		}
		slices.Sort(all)
		return all
	}
	_, err := lb.WaitFor(s.within(), func(lb *play.LB) bool { return slices.Equal(have(lb), want) })
	if err != nil {
		s.explain()
	}
	require.NoErrorf(s, err, "want %v, have %v", want, have(lb))
}

// TestTwinClusters: a namespace, a Service and a pod of the same names in two clusters are never one.
func TestTwinClusters(t *testing.T) {
	s := newScene(t, "--cluster-name=west")
	s.controller("--leader-election=false", "--cluster-name=west")
	require.NoError(t, chart.Install(t.Context(), s.cluster, s.namespace, chart.Values{"controller": object{"enabled": true, "readSecrets": true}}))
	east, pod := s.twin()
	s.service("web", "stream-a")
	s.apply(twinTarget, s.namespace, "west") // a lie, or a mistake
	require.Eventually(t, func() bool {
		out, err := s.cluster.Kubectl(t.Context(), "get", "et", "-n", s.namespace, "web-east", "-o", "jsonpath={.status.conditions[?(@.type=='Resolved')].message}")
		return err == nil && strings.Contains(string(out), "Cluster west is this one")
	}, patience, 20*time.Millisecond)
	s.apply(twinTarget, s.namespace, "east")

	lb := s.lb()
	s.pod("web-0", 1, true)
	conn, err := s.nsp.Dial()
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	far, err := play.NewTAPA(play.TAPAConfig{Client: s.client(), Conn: conn, Address: "10.9.0.1", Addresses: secondary(2), MaxTargets: 9})
	require.NoError(t, err)
	s.background(far.Run)
	s.components(lb, "east/web ACTIVE 172.16.0.2/24", "west/web ACTIVE 172.16.0.1/24")
	out, err := exec.CommandContext(t.Context(), s.nsp.Binary(), "targets", "--server", s.nsp.Address(), "-o", "wide").Output()
	require.NoError(t, err)
	require.Regexp(t, `172\.16\.0\.1/24 .* west/`+s.namespace+`/web\n`, string(out))
	require.Regexp(t, `172\.16\.0\.2/24 .* east/`+s.namespace+`/web\n`, string(out))

	// Whoever calls himself by the names of the other cluster's pod is not the pod here.
	lists := make(chan int, 10)
	stranger, err := s.client().WatchAssignments(client.AssignmentsConfig{
		Workload: &targetpoolv1.Workload{Namespace: s.namespace, Pod: "web-0", PodUid: string(pod.UID)},
		Handler:  func(l client.AssignmentList) { lists <- len(l.Items) },
	})
	require.NoError(t, err)
	s.background(stranger.Run)
	require.Zero(t, <-lists)

	// Each is as ready as its own pod.
	_, err = east.SetReady(t.Context(), s.namespace, "web-0", false)
	require.NoError(t, err)
	s.components(lb, "east/web INACTIVE 172.16.0.2/24", "west/web ACTIVE 172.16.0.1/24")
	_, err = s.cluster.SetReady(t.Context(), s.namespace, "web-0", false)
	require.NoError(t, err)
	_, err = east.SetReady(t.Context(), s.namespace, "web-0", true)
	require.NoError(t, err)
	s.components(lb, "east/web ACTIVE 172.16.0.2/24", "west/web INACTIVE 172.16.0.1/24")

	// What the other cluster has said counts while it is away; what it has lost meanwhile is gone afterwards.
	require.NoError(t, east.StopAPIServer())
	_, err = s.cluster.SetReady(t.Context(), s.namespace, "web-0", true)
	require.NoError(t, err)
	s.components(lb, "east/web ACTIVE 172.16.0.2/24", "west/web ACTIVE 172.16.0.1/24")
	require.NoError(t, east.StartAPIServer(t.Context()))
	require.NoError(t, east.Finish(t.Context(), s.namespace, "web-0"))
	s.components(lb, "west/web ACTIVE 172.16.0.1/24")
}
