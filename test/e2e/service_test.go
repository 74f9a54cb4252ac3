package e2e

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nordix/meridio-nsp/test/cluster"
	"github.com/nordix/meridio-nsp/test/play"
)

// TestServiceDrivesStreams is the main job: a labelled Service opens and closes streams, and readiness goes straight to the
// load balancer.
func TestServiceDrivesStreams(t *testing.T) {
	s := newScene(t)
	lb := s.lb()
	s.service("web", "stream-a")
	s.pod("one", 1, true)
	two := s.pod("two", 2, true)
	s.active(lb, "stream-a", "one", "two")

	_, err := s.cluster.SetReady(t.Context(), s.namespace, "two", false)
	require.NoError(t, err)
	s.active(lb, "stream-a", "one")
	require.Equal(t, []string{"trench-a/conduit-a/stream-a"}, two.Open(), "a flap keeps the stream")

	_, err = s.cluster.SetReady(t.Context(), s.namespace, "two", true)
	require.NoError(t, err)
	s.active(lb, "stream-a", "one", "two")

	s.service("web", "stream-b")
	s.active(lb, "stream-a")
	s.active(lb, "stream-b", "one", "two")
}

// TestScaleToZeroAndBack empties a pool and fills it again. // P23
func TestScaleToZeroAndBack(t *testing.T) {
	s := newScene(t)
	lb := s.lb()
	s.service("web", "stream-a")
	s.pod("one", 1, true)
	s.pod("two", 2, true)
	s.active(lb, "stream-a", "one", "two")

	for _, name := range []string{"one", "two"} {
		require.NoError(t, s.cluster.Finish(t.Context(), s.namespace, name))
	}
	s.active(lb, "stream-a")

	s.pod("three", 3, true)
	s.active(lb, "stream-a", "three")
}

// TestPodNeedsItsStreamToBecomeReady: the stream is assigned on membership, traffic comes with readiness. // D2
func TestPodNeedsItsStreamToBecomeReady(t *testing.T) {
	s := newScene(t)
	lb := s.lb()
	s.service("web", "stream-a")
	one := s.pod("one", 1, false)
	require.Eventually(t, func() bool { return len(one.Open()) == 1 }, patience, 10*time.Millisecond)
	s.active(lb, "stream-a")

	_, err := s.cluster.SetReady(t.Context(), s.namespace, "one", true)
	require.NoError(t, err)
	s.active(lb, "stream-a", "one")
}

// TestTwoServicesOneStream: the stream stays until the second Service is gone. // D5
func TestTwoServicesOneStream(t *testing.T) {
	s := newScene(t)
	lb := s.lb()
	s.service("first", "stream-a")
	s.service("second", "stream-a")
	one := s.pod("one", 1, true)
	s.active(lb, "stream-a", "one")

	require.NoError(t, s.cluster.DeleteService(t.Context(), s.namespace, "first"))
	// The other stream is the witness that the deletion has been seen.
	s.service("witness", "stream-b")
	s.active(lb, "stream-b", "one")
	s.active(lb, "stream-a", "one")

	require.NoError(t, s.cluster.DeleteService(t.Context(), s.namespace, "second"))
	s.active(lb, "stream-a")
	require.Eventually(t, func() bool { return len(one.Open()) == 1 }, patience, 10*time.Millisecond)
}

// TestMarkerOffAndOn hands a Service to kube-proxy and takes it back. // P5
func TestMarkerOffAndOn(t *testing.T) {
	s := newScene(t)
	lb := s.lb()
	s.service("web", "stream-a")
	one := s.pod("one", 1, true)
	s.active(lb, "stream-a", "one")
	s.condition("web", "meridio.nordix.org/Accepted", metav1.ConditionTrue)
	s.condition("web", "meridio.nordix.org/Programmed", metav1.ConditionTrue)

	s.patch("web", `{"metadata":{"labels":{"service.kubernetes.io/service-proxy-name":null}}}`)
	s.active(lb, "stream-a")
	require.Eventually(t, func() bool { return len(one.Open()) == 0 }, patience, 10*time.Millisecond, "the stream closes")
	require.Eventually(t, func() bool { return len(s.get("web").Status.Conditions) == 0 }, patience, 50*time.Millisecond,
		"the conditions go with the marker")

	s.service("web", "stream-a")
	s.active(lb, "stream-a", "one")

	// Likewise while nobody watches.
	s.condition("web", "meridio.nordix.org/Programmed", metav1.ConditionTrue)
	s.nsp.Stop()
	s.patch("web", `{"metadata":{"labels":{"service.kubernetes.io/service-proxy-name":null}}}`)
	require.NoError(t, s.nsp.Start(t.Context()))
	s.active(lb, "stream-a")
	require.Eventually(t, func() bool { return len(s.get("web").Status.Conditions) == 0 }, patience, 50*time.Millisecond,
		"the conditions go at the next start")
}

// TestServiceSaysWhyNot: what is wrong with a Service stands in its conditions, and disturbs no other. // P3, P6
func TestServiceSaysWhyNot(t *testing.T) {
	s := newScene(t)
	lb := s.lb()
	s.service("web", "stream-a")
	s.pod("one", 1, true)
	labels := play.PoolLabels("trench-a", "conduit-a", "stream-a")
	delete(labels, "meridio.nordix.org/stream")
	_, err := s.cluster.Service(t.Context(), cluster.ServiceConfig{Namespace: s.namespace, Name: "incomplete", Labels: labels})
	require.NoError(t, err)
	c := s.condition("incomplete", "meridio.nordix.org/Accepted", metav1.ConditionFalse)
	require.Equal(t, "IncompleteLabels", c.Reason)
	require.Contains(t, c.Message, "meridio.nordix.org/stream")
	s.active(lb, "stream-a", "one")
}

// TestRestartsLeaveNoHole: whatever happens to the process, the load balancer never sees its target go. // P20
func TestRestartsLeaveNoHole(t *testing.T) {
	s := newScene(t)
	lb := s.lb()
	s.service("web", "stream-a")
	one := s.pod("one", 1, true)
	s.active(lb, "stream-a", "one")
	holes := s.holes(lb, one, 1)
	for range 3 {
		s.nsp.Kill()
		require.NoError(t, s.nsp.Start(t.Context()))
		s.marks(lb)
	}
	s.nsp.Stop()
	require.NoError(t, s.nsp.Start(t.Context()))
	s.marks(lb)
	require.Empty(t, holes(), "the target was gone for a moment")
}

// TestDamagedRegistry: the file is of no use at the start. It is put aside, the targets bring back what was in it, and the load
// balancer never sees its target go. // P20
func TestDamagedRegistry(t *testing.T) {
	s := newScene(t, "--entry-timeout=5s")
	s.refresh = time.Second
	lb := s.lb()
	s.service("web", "stream-a")
	one := s.pod("one", 1, true)
	s.active(lb, "stream-a", "one")
	holes := s.holes(lb, one, 1)
	for range 2 { // the second time while the first loss is being made up for
		s.nsp.Kill()
		file := filepath.Join(filepath.Dir(s.nsp.LogFile()), "registry.db")
		require.NoError(t, os.WriteFile(file, []byte("no database"), 0o600))
		require.NoError(t, s.nsp.Start(t.Context()))
	}
	require.Eventually(t, lb.Live, patience, 10*time.Millisecond, "it is answered")
	s.active(lb, "stream-a", "one")
	require.Empty(t, holes(), "the target was gone for a moment")
}

// TestAPIServerAway: without API server, and after a restart without it, the last state is served and registrations work.
func TestAPIServerAway(t *testing.T) {
	s := newOwnScene(t)
	lb := s.lb()
	s.service("web", "stream-a")
	one := s.pod("one", 1, true)
	s.pod("two", 2, false)
	s.active(lb, "stream-a", "one")
	s.targets(lb, 2)
	holes := s.holes(lb, one, 1)

	require.NoError(t, s.cluster.StopAPIServer())
	s.marks(lb)
	s.nsp.Stop() // conclusions are stored a moment after they are drawn, or at the end
	require.NoError(t, s.nsp.Start(t.Context()))
	s.marks(lb)
	s.active(lb, "stream-a", "one")
	require.Empty(t, holes(), "the target was gone for a moment")

	require.NoError(t, s.cluster.StartAPIServer(t.Context()))
	s.marks(lb)
	_, err := s.cluster.SetReady(t.Context(), s.namespace, "two", true)
	require.NoError(t, err)
	s.active(lb, "stream-a", "one", "two")
	require.Empty(t, holes(), "the target was gone for a moment")
}

// TestDeadNodeTimesOut: a registration that nobody refreshes goes, however ready the cluster says its pod is. // P17
func TestDeadNodeTimesOut(t *testing.T) {
	s := newScene(t, "--entry-timeout=4s")
	lb := s.lb()
	s.service("web", "stream-a")
	s.podThatDies("one", 1)
	s.targets(lb, 1)
	s.targets(lb, 0)
}

// TestTwoInstallations side by side do not see each other's targets.
func TestTwoInstallations(t *testing.T) {
	a, b := newScene(t), newScene(t)
	lbA, lbB := a.lb(), b.lb()
	a.service("web", "stream-a")
	b.service("web", "stream-a")
	a.pod("one", 1, true)
	b.pod("one", 1, true)
	a.active(lbA, "stream-a", "one")
	b.active(lbB, "stream-a", "one")
	a.targets(lbA, 1)
	b.targets(lbB, 1)
}

// patch changes a Service.
func (s *scene) patch(service, patch string) {
	s.Helper()
	_, err := s.cluster.Client().CoreV1().Services(s.namespace).Patch(
		s.Context(), service, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	require.NoError(s, err)
}

func (s *scene) get(service string) *corev1.Service {
	s.Helper()
	svc, err := s.cluster.Client().CoreV1().Services(s.namespace).Get(context.WithoutCancel(s.Context()), service, metav1.GetOptions{})
	require.NoError(s, err)
	return svc
}

// condition waits until a Service has a condition with the status, and returns it.
func (s *scene) condition(service, name string, status metav1.ConditionStatus) (found metav1.Condition) {
	s.Helper()
	require.Eventually(s, func() bool {
		for _, c := range s.get(service).Status.Conditions {
			if c.Type == name && c.Status == status {
				found = c
				return true
			}
		}
		return false
	}, patience, 50*time.Millisecond, "%s of %s never got %s", name, service, status)
	return found
}
