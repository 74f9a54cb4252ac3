package e2e

import (
	"bufio"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nordix/meridio-nsp/test/chart"
	"github.com/nordix/meridio-nsp/test/cluster"
	"github.com/nordix/meridio-nsp/test/play"
)

// programs waits until the condition Programmed of a Service has the reason.
func (s *scene) programs(service, reason string) {
	s.Helper()
	var last []metav1.Condition
	require.True(s, waitFor(func() bool {
		last = s.get(service).Status.Conditions
		for _, c := range last {
			if c.Type == "meridio.nordix.org/Programmed" && c.Reason == reason {
				return true
			}
		}
		return false
	}), "want %s, have %+v", reason, last)
}

// metric is the sum of a metric of the namespace process over those label values that contain the text.
func (s *scene) metric(name, text string) (sum float64) {
	s.Helper()
	req, err := http.NewRequestWithContext(s.Context(), http.MethodGet, s.nsp.MetricsURL(), http.NoBody)
	require.NoError(s, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(s, err)
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		line := lines.Text()
		at := strings.LastIndexByte(line, ' ')
		if rest, ok := strings.CutPrefix(line, name); ok && at > 0 && (rest[0] == '{' || rest[0] == ' ') && strings.Contains(line, text) {
			value, err := strconv.ParseFloat(line[at+1:], 64)
			require.NoError(s, err)
			sum += value
		}
	}
	return sum
}

// TestPodOfTwoTrenches: the older Service has it, the other one says so, and gets it when the first is gone.
func TestPodOfTwoTrenches(t *testing.T) {
	s := newScene(t)
	require.NoError(t, play.Configure(t.Context(), s.cluster.Client(), s.namespace, "trench-b", "conduit-b", map[string]int{"stream-c": 10}))
	s.service("web", "stream-a")
	one := s.pod("one", 1, true)
	require.True(t, opens(one, 1))
	older := s.get("web").CreationTimestamp
	require.True(t, waitFor(func() bool { return time.Now().Unix() > older.Unix() }), "Kubernetes dates in seconds")
	_, err := s.cluster.Service(t.Context(), cluster.ServiceConfig{
		Namespace: s.namespace, Name: "late", Labels: play.PoolLabels("trench-b", "conduit-b", "stream-c"),
		Selector: map[string]string{"app": "web"},
	})
	require.NoError(t, err)
	s.accepts("late", "Conflict")
	c := s.condition("late", "meridio.nordix.org/Accepted", metav1.ConditionTrue)
	require.Contains(t, c.Message, "one (held by Service "+s.namespace+"/web")
	require.Equal(t, []string{"trench-a/conduit-a/stream-a"}, one.Open())
	s.accepts("web", accepted)

	require.NoError(t, s.cluster.DeleteService(t.Context(), s.namespace, "web"))
	s.accepts("late", accepted)
	require.True(t, waitFor(func() bool { return fmt.Sprint(one.Open()) == "[trench-b/conduit-b/stream-c]" }), "%v", one.Open())
}

// TestPanicThreshold: too few are Ready, so all count, and a condition and a metric say so.
func TestPanicThreshold(t *testing.T) {
	s := newScene(t)
	lb := s.lb()
	s.service("web", "stream-a")
	s.patch("web", `{"metadata":{"annotations":{"meridio.nordix.org/panic-threshold":"50"}}}`)
	for number, name := range []string{"one", "two", "three"} {
		s.pod(name, number+1, true)
	}
	s.active(lb, "stream-a", "one", "two", "three")
	s.programs("web", "Programmed")
	for _, name := range []string{"two", "three"} {
		_, err := s.cluster.SetReady(t.Context(), s.namespace, name, false)
		require.NoError(t, err)
	}
	s.programs("web", "Panic")
	s.active(lb, "stream-a", "one", "two", "three")
	require.InDelta(t, 1, s.metric("nsp_pool_panic", s.namespace), 0)
	_, err := s.cluster.SetReady(t.Context(), s.namespace, "two", true)
	require.NoError(t, err)
	s.active(lb, "stream-a", "one", "two")
	require.True(t, waitFor(func() bool { return s.metric("nsp_pool_panic", s.namespace) == 0 }))
}

// flaps flips the readiness of the endpoint in a slice so many times; the last word is ready.
func (s *scene) flaps(name string, times int) {
	s.Helper()
	slices := s.cluster.Client().DiscoveryV1().EndpointSlices(s.namespace)
	for i := range times {
		patch := fmt.Sprintf(`[{"op":"replace","path":"/endpoints/0/conditions/ready","value":%t}]`, i%2 == 1)
		_, err := slices.Patch(s.Context(), name, types.JSONPatchType, []byte(patch), metav1.PatchOptions{})
		require.NoError(s, err)
	}
}

// byHand makes a pool that selects nothing, and a slice for it with one endpoint.
func (s *scene) byHand(name, stream, address string) {
	s.Helper()
	labels := play.PoolLabels("trench-a", "conduit-a", stream)
	_, err := s.cluster.Service(s.Context(), cluster.ServiceConfig{Namespace: s.namespace, Name: name, Labels: labels})
	require.NoError(s, err)
	_, err = s.cluster.Client().DiscoveryV1().EndpointSlices(s.namespace).Create(s.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.namespace, Labels: map[string]string{
			"kubernetes.io/service-name": name, "service.kubernetes.io/service-proxy-name": "meridio-target-pool-service",
		}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: s.namespace, Name: name, UID: types.UID(name)},
		}},
	}, metav1.CreateOptions{})
	require.NoError(s, err)
}

// writes counts what the namespace process has written so far, as the API server has it.
func (s *scene) writes() (n int) {
	s.Helper()
	requests, err := s.cluster.Requests(s.namespace, chart.ServiceAccount)
	require.NoError(s, err)
	for _, r := range requests {
		if r.Verb != "get" && r.Verb != "list" && r.Verb != "watch" {
			n++
		}
	}
	return n
}

// quiet waits until the process has written nothing for a while.
func (s *scene) quiet() (writes int) {
	s.Helper()
	since := time.Now()
	require.True(s, waitFor(func() bool {
		if now := s.writes(); now != writes {
			writes, since = now, time.Now()
		}
		return time.Since(since) > 3*time.Second
	}))
	return writes
}

// TestFlapsAreNotWrites: ten thousand flaps become about a write a second for each Service, and what is written to the status of
// Services, by whomever, makes nothing be computed or written. // P7
func TestFlapsAreNotWrites(t *testing.T) {
	cluster.SkipIfShort(t)
	c, err := cluster.Start(t.Context(), cluster.Config{Audit: true})
	require.NoError(t, err)
	t.Cleanup(c.Stop)
	s := makeScene(t, c)
	const pools, flaps = 8, 10_000
	var names []string
	for i := range pools {
		names = append(names, fmt.Sprint("pool-", i))
		s.byHand(names[i], "stream-a", fmt.Sprint("10.9.0.", i+1))
		s.programs(names[i], "NoTargets")
	}
	before, begun := s.quiet(), time.Now()
	var flapping sync.WaitGroup
	for _, name := range names {
		flapping.Go(func() { s.flaps(name, flaps/pools) })
	}
	flapping.Wait()
	took := time.Since(begun)
	written := s.quiet() - before
	t.Logf("%d flaps of %d pools within %s became %d writes", flaps, pools, took.Round(time.Second), written)
	require.LessOrEqual(t, written, pools*(int(took.Seconds())+2))
	require.Less(t, written, flaps/4)

	engine := func() float64 { return s.metric("nsp_engine_turn_seconds_count", "") }
	was, writes := engine(), s.writes()
	for i := range 1000 {
		patch := fmt.Sprintf(`{"status":{"conditions":[{"type":"example.com/T","status":"True","reason":"R","message":"%d","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`, i)
		_, err := c.Client().CoreV1().Services(s.namespace).Patch(t.Context(), names[i%pools], types.StrategicMergePatchType,
			[]byte(patch), metav1.PatchOptions{}, "status")
		require.NoError(t, err)
	}
	require.Equal(t, writes, s.quiet(), "no write follows")
	require.LessOrEqual(t, engine()-was, 20.0, "nor does the engine hear of it")
}

// TestNamespaceThatJoinsIsSwept: conditions that an earlier installation left in a namespace go when a grant brings it in.
func TestNamespaceThatJoinsIsSwept(t *testing.T) {
	s := newScene(t, "--target-namespaces=*")
	a := s.app()
	a.apply(readGrants)
	a.apply(readTargets)
	a.apply(grant)
	a.service("web", "stream-a")
	a.says("web", accepted)
	s.nsp.Stop()
	a.revoke()
	_, err := s.cluster.Client().CoreV1().Services(a.namespace).Patch(t.Context(), "web", types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"service.kubernetes.io/service-proxy-name":null}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	files, err := filepath.Glob(filepath.Join(filepath.Dir(s.nsp.LogFile()), "registry.db*"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files { // with it goes what is known of earlier grants
		require.NoError(t, os.Remove(file))
	}
	require.NoError(t, s.nsp.Start(t.Context()))
	s.service("own", "stream-b")
	s.accepts("own", accepted)
	a.says("web", accepted) // nobody has looked
	a.apply(grant)
	a.says("web", "")
}

const trenchKind = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: trenches.meridio.nordix.org}
spec:
  group: meridio.nordix.org
  names: {kind: Trench, listKind: TrenchList, plural: trenches, singular: trench}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

const annotatedTrench = `
apiVersion: meridio.nordix.org/v1
kind: Trench
metadata:
  name: trench-a
  namespace: %[1]s
  annotations: {meridio.nordix.org/target-namespaces: "%[4]s"}
`

// TestTrenchNamesTargetNamespaces: the annotation on the Trench object of Meridio's operator is a grant, as long as it is there.
func TestTrenchNamesTargetNamespaces(t *testing.T) {
	c := cluster.Get(t)
	require.NoError(t, c.Apply(t.Context(), []byte(trenchKind), false))
	_, err := c.Kubectl(t.Context(), "wait", "--for=condition=Established", "crd/trenches.meridio.nordix.org", "--timeout=60s")
	require.NoError(t, err)
	s := newScene(t, "--target-namespaces=*")
	a := s.app()
	a.apply(readTargets)
	a.apply(annotatedTrench, "somebody-else, "+a.namespace)
	a.apply(readGrants)
	a.service("web", "stream-a")
	a.says("web", accepted)
	one := a.pod("one", 1)
	require.True(t, opens(one, 1))
	a.apply(annotatedTrench, "somebody-else")
	a.says("web", "NotPermitted")
	require.True(t, opens(one, 0))
	a.apply(annotatedTrench, a.namespace)
	require.True(t, opens(one, 1))
	_, err = c.Kubectl(t.Context(), "delete", "trenches.meridio.nordix.org", "trench-a", "-n", s.namespace)
	require.NoError(t, err)
	a.says("web", "NotPermitted")
	require.True(t, opens(one, 0))
}
