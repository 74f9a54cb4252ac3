package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/test/play"
)

// machine makes, or changes, an ExternalTarget of one address, which is healthy where its health says so.
func (s *scene) machine(name, labels, health string) {
	s.Helper()
	s.apply(`
apiVersion: targetpool.meridio.nordix.org/v1alpha1
kind: ExternalTarget
metadata: {name: %s, namespace: %s, labels: {%s}}
spec: {source: {addresses: {ips: [192.0.2.1]%s}}}
`, name, s.namespace, labels, health)
}

// TestExplainExternalTarget breaks the way of a machine at one place after the other.
func TestExplainExternalTarget(t *testing.T) {
	s := newScene(t)
	s.relabel("web", play.PoolLabels("trench-a", "conduit-a", "stream-a"))
	const vm = "externaltarget/vm-1"
	s.stopped(vm, "Exists", "there is no ExternalTarget vm-1")
	s.machine("vm-1", "app: web", "")
	s.stopped(vm, "Resolved", "nsp controller", s.namespace)
	s.controller("--leader-election=false")
	s.stopped(vm, "Named", "externalTargets: [vm-1]")
	s.stopped("service/web", "Named", "ExternalTarget "+s.namespace+"/vm-1")
	s.apply(grantOfMachine, s.namespace)
	s.stopped(vm, "Sidecar", "no sidecar watches")

	// A slice that somebody else writes counts for nothing that the status does not have.
	uid, err := s.cluster.Kubectl(t.Context(), "get", "et", "-n", s.namespace, "vm-1", "-o", "jsonpath={.metadata.uid}")
	require.NoError(t, err)
	s.relabel("forged", play.PoolLabels("trench-a", "conduit-a", "stream-b"))
	s.patch("forged", `{"spec":{"selector":null}}`)
	s.apply(`
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: forged-by-hand
  namespace: %[1]s
  labels: {kubernetes.io/service-name: forged, service.kubernetes.io/service-proxy-name: meridio-target-pool-service}
addressType: IPv4
endpoints: [{addresses: [192.0.2.66], targetRef: {kind: ExternalTarget, namespace: %[1]s, name: vm-1, uid: %[2]s}}]
`, s.namespace, uid)
	require.Eventually(t, func() bool {
		return strings.Contains(s.explainText(vm, "-n", s.namespace), "it does not have 192.0.2.66 in forged-by-hand")
	}, patience, 200*time.Millisecond)
	require.NoError(t, s.cluster.DeleteService(t.Context(), s.namespace, "forged"))

	conn, err := s.nsp.Dial()
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	sidecar, err := play.NewTAPA(play.TAPAConfig{Client: s.client(), Conn: conn, Address: "192.0.2.1", Addresses: secondary(1), MaxTargets: 9})
	require.NoError(t, err)
	s.background(sidecar.Run)
	s.stopped(vm, "LoadBalancers")
	s.lb()
	s.works(vm)
	s.works("service/web")
	s.works("target/172.16.0.1")
	s.machine("vm-1", "app: web", ", health: {tcp: {port: 1}, interval: 100ms, timeout: 50ms, downAfter: 1}")
	s.stopped(vm, "Ready", "0 of 1 addresses take traffic", "health probe")
	s.machine("vm-1", "app: db", "")
	s.stopped(vm, "Selected", "web wants app=web", "the ExternalTarget has app=db")
	s.machine("vm-1", "app: web", "")
	s.works(vm)

	// What completes at the tabulator key.
	require.Contains(t, s.complete("externaltarget/"), "externaltarget/vm-1")
	require.Contains(t, s.complete(""), "targetpool/")
}

// complete is what the shell offers for a word of nsp explain.
func (s *scene) complete(word string) string {
	s.Helper()
	out, err := s.nspCommand("__complete", "explain", "--kubeconfig", s.cluster.Kubeconfig(), "--server", s.nsp.Address(), "-n", s.namespace, word)
	require.NoError(s, err)
	return out
}

// TestExplainTargetPool: whether the Service was made, whose it is, and then what is to be said of it.
func TestExplainTargetPool(t *testing.T) {
	s := newScene(t)
	const manifest = `
apiVersion: targetpool.meridio.nordix.org/v1alpha1
kind: TargetPool
metadata: {name: %s, namespace: %s}
spec: {stream: {trench: trench-a, conduit: conduit-a, stream: stream-a}, selector: {app: web}}
`
	s.stopped("targetpool/pool-a", "Exists", "there is no TargetPool pool-a")
	s.apply(manifest, "pool-a", s.namespace)
	s.stopped("targetpool/pool-a", "Made", "nsp controller")
	s.controller("--leader-election=false")
	s.stopped("targetpool/pool-a", "Members", "no pod and no ExternalTarget matches")
	s.lb()
	s.pod("one", 1, true)
	s.works("targetpool/pool-a")
	s.works("pod/one")
	require.Contains(t, s.explainText("service/pool-a", "-n", s.namespace), "the Service was made for TargetPool/pool-a")
	s.service("taken", "stream-b")
	s.apply(manifest, "taken", s.namespace)
	s.stopped("targetpool/taken", "Made", "ServiceNameTaken")
	require.Contains(t, s.complete("targetpool/"), "targetpool/pool-a")
}

// TestExplainWhoWaits: a target that asked for an identifier when there was none left is told so, by its address and by its pod.
func TestExplainWhoWaits(t *testing.T) {
	s := newScene(t)
	require.NoError(t, play.Configure(t.Context(), s.cluster.Client(), s.namespace, "trench-a", "conduit-a", map[string]int{"stream-a": 1}))
	s.relabel("web", play.PoolLabels("trench-a", "conduit-a", "stream-a"))
	_, err := s.reserve(s.within(), 1, true)
	require.NoError(t, err)
	s.watchOnly("second", secondary(2)...)
	s.background(func(ctx context.Context) error {
		if _, err := s.reserve(ctx, 2, true); err == nil {
			return fmt.Errorf("there was an identifier")
		}
		return nil
	})
	s.stopped("target/172.16.0.2", "Registered", "waits for an identifier: all 1 of the stream are taken", "max-targets")
	s.stopped("pod/second", "Registered", "172.16.0.2/24 waits for an identifier")
}
