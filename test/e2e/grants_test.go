package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nordix/meridio-nsp/pkg/pool"
	"github.com/nordix/meridio-nsp/test/chart"
	"github.com/nordix/meridio-nsp/test/cluster"
	"github.com/nordix/meridio-nsp/test/play"
)

// readTargets lets the namespace process read grants in its namespace, and Services in another one.
const (
	readGrants = `
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: test-grants, namespace: %[1]s}
rules:
- {apiGroups: [targetpool.meridio.nordix.org], resources: [targetgrants], verbs: [list, watch]}
- {apiGroups: [meridio.nordix.org], resources: [trenches], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: test-grants, namespace: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: test-grants}
subjects: [{kind: ServiceAccount, name: %[2]s, namespace: %[1]s}]
`
	readTargets = `
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: test-targets, namespace: %[3]s}
rules:
- {apiGroups: [""], resources: [services], verbs: [get, list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
- {apiGroups: [""], resources: [services/status], verbs: [patch]}
- {apiGroups: [events.k8s.io], resources: [events], verbs: [create, patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: test-targets, namespace: %[3]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: test-targets}
subjects: [{kind: ServiceAccount, name: %[2]s, namespace: %[1]s}]
`
	grant = `
apiVersion: targetpool.meridio.nordix.org/v1alpha1
kind: TargetGrant
metadata: {name: app, namespace: %[1]s}
spec:
  from: [{namespace: %[3]s%[4]s}]
  to: [{trench: trench-a%[5]s}]
`
)

// accepted is what a Service of the tests says when all is well: it has port 80, and the flows of the trench are for others.
const accepted = "PortsNotServed"

// app is a namespace of applications beside that of a scene.
type app struct {
	*scene
	namespace string
}

func (s *scene) app() *app { return &app{scene: s, namespace: s.cluster.Namespace(s)} }

func (a *app) apply(manifest string, more ...string) {
	a.Helper()
	args := []any{a.scene.namespace, chart.ServiceAccount, a.namespace, "", ""}
	for i, text := range more {
		args[3+i] = text
	}
	text := fmt.Sprintf(manifest+"\n#%[1]s%[2]s%[3]s%[4]s%[5]s", args...)
	require.NoError(a, a.cluster.Apply(a.Context(), []byte(text), false))
}

func (a *app) revoke() {
	a.Helper()
	_, err := a.cluster.Kubectl(a.Context(), "delete", "targetgrant", "app", "-n", a.scene.namespace)
	require.NoError(a, err)
}

// service makes a Service of this namespace that names a stream of the scene's.
func (a *app) service(name, stream string) {
	labels := play.PoolLabels("trench-a", "conduit-a", stream)
	labels[pool.LabelNamespace] = a.scene.namespace
	_, err := a.cluster.Service(a.Context(), cluster.ServiceConfig{
		Namespace: a.namespace, Name: name, Labels: labels, Selector: map[string]string{"app": "web"},
	})
	require.NoError(a, err)
}

func (a *app) pod(name string, number int) *play.TAPA {
	pod, err := a.cluster.Pod(a.Context(), cluster.PodConfig{
		Namespace: a.namespace, Name: name, Labels: map[string]string{"app": "web"}, Ready: true,
	})
	require.NoError(a, err)
	conn, err := a.nsp.Dial()
	require.NoError(a, err)
	a.Cleanup(func() { _ = conn.Close() })
	t, err := play.NewTAPA(play.TAPAConfig{
		Client: a.client(), Conn: conn, Namespace: a.namespace, Pod: name, PodUID: string(pod.UID),
		Addresses: secondary(number), MaxTargets: 9,
	})
	require.NoError(a, err)
	a.background(t.Run)
	return t
}

// says waits until the condition Accepted of a Service has a reason.
func (a *app) says(service, reason string) {
	a.Helper()
	var last []metav1.Condition
	if !waitFor(func() bool {
		s, err := a.cluster.Client().CoreV1().Services(a.namespace).Get(a.Context(), service, metav1.GetOptions{})
		require.NoError(a, err)
		last = s.Status.Conditions
		for _, c := range last {
			if c.Type == "meridio.nordix.org/Accepted" {
				return c.Reason == reason
			}
		}
		return reason == ""
	}) {
		a.explain()
		require.Failf(a, "no such reason", "want %q, have %+v", reason, last)
	}
}

func waitFor(is func() bool) bool {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if is() {
			return true
		}
	}
	return false
}

func opens(t *play.TAPA, n int) bool {
	return waitFor(func() bool { return len(t.Open()) == n })
}

// TestGrantGivenChangedRevoked: the streams of another namespace open and close with the grant.
func TestGrantGivenChangedRevoked(t *testing.T) {
	s := newScene(t, "--target-namespaces=*")
	a := s.app()
	a.apply(readGrants)
	a.apply(readTargets)
	a.service("web", "stream-a")
	one := a.pod("one", 1)
	require.Empty(t, one.Open())

	a.apply(grant)
	a.says("web", accepted)
	require.True(t, opens(one, 1))

	a.apply(grant, "", ", conduit: conduit-a, stream: stream-b")
	a.says("web", "NotPermitted")
	require.True(t, opens(one, 0))

	a.apply(grant, "", ", conduit: conduit-a, stream: stream-a")
	a.says("web", accepted)
	require.True(t, opens(one, 1))

	// Nobody proves a ServiceAccount here, so a grant for one permits none.
	a.apply(grant, ", serviceAccounts: [web]")
	a.says("web", "MembersNotPermitted")
	require.True(t, opens(one, 0))

	a.apply(grant)
	a.says("web", accepted)
	require.True(t, opens(one, 1))
	a.revoke()
	a.says("web", "NotPermitted")
	require.True(t, opens(one, 0))
}

// TestNamespaceWithoutItsRole disturbs nobody, and is read once the Role is there.
func TestNamespaceWithoutItsRole(t *testing.T) {
	s := newScene(t, "--target-namespaces=*")
	a := s.app()
	a.apply(readGrants)
	a.apply(grant)
	a.service("web", "stream-b")
	two := a.pod("two", 2)

	lb := s.lb()
	s.service("web", "stream-a")
	s.pod("one", 1, true)
	s.active(lb, "stream-a", "one")
	require.Empty(t, two.Open())

	a.apply(readTargets)
	a.says("web", accepted)
	require.True(t, opens(two, 1))
	s.active(lb, "stream-a", "one")
}

// TestRestartKeepsGrants: what was granted is known before the cluster has said it again, so that nothing is closed.
func TestRestartKeepsGrants(t *testing.T) {
	s := newScene(t, "--target-namespaces=*")
	a := s.app()
	a.apply(readGrants)
	a.apply(readTargets)
	a.apply(grant)
	a.service("web", "stream-a")
	one := a.pod("one", 1)
	require.True(t, opens(one, 1))
	for range 3 {
		s.nsp.Stop()
		require.NoError(t, s.nsp.Start(t.Context()))
	}
	a.says("web", accepted)
	require.Equal(t, []string{"trench-a/conduit-a/stream-a"}, one.Open())
}

// TestHandMadeEndpointsNeedAGrantOfTheirOwn: behind them stands no pod.
func TestHandMadeEndpointsNeedAGrantOfTheirOwn(t *testing.T) {
	s := newScene(t, "--target-namespaces=*")
	a := s.app()
	a.apply(readGrants)
	a.apply(readTargets)
	a.apply(grant)
	a.service("web", "stream-a")
	a.says("web", accepted)
	a.apply(`
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: by-hand
  namespace: %[3]s
  labels: {kubernetes.io/service-name: web, service.kubernetes.io/service-proxy-name: meridio-target-pool-service}
addressType: IPv4
endpoints: [{addresses: [192.0.2.7]}]
`)
	message := func(want string) {
		t.Helper()
		require.True(t, waitFor(func() bool {
			service, err := a.cluster.Client().CoreV1().Services(a.namespace).Get(t.Context(), "web", metav1.GetOptions{})
			require.NoError(t, err)
			return contains(service, want)
		}), want)
	}
	message("has no targetRef, and namespace " + a.namespace + " has no grant for members without a pod")
	message("0 of 0 members are active")
	a.apply(grant, `, externalTargets: ["*"]`)
	message("0 of 1 members are active")
}

func contains(s *corev1.Service, text string) bool {
	for _, c := range s.Status.Conditions {
		if strings.Contains(c.Message, text) {
			return true
		}
	}
	return false
}
