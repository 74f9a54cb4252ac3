package e2e

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const streamObject = `
apiVersion: meridio.nordix.org/v1alpha1
kind: Stream
metadata:
  name: %[2]s
  namespace: %[1]s
  labels: {trench: trench-a}
  annotations: {%[3]s}
spec: {conduit: conduit-a, max-targets: 10}
`

// streams has the cluster know Meridio's Streams.
func (s *scene) streams() {
	s.Helper()
	crd, err := os.ReadFile("testdata/streams.yaml")
	require.NoError(s, err)
	require.NoError(s, s.cluster.Apply(s.Context(), crd, false))
	_, err = s.cluster.Kubectl(s.Context(), "wait", "--for=condition=Established", "--timeout=60s", "crd/streams.meridio.nordix.org")
	require.NoError(s, err)
}

// stream makes or changes a Stream that selects its targets so; empty is without the annotation.
func (s *scene) stream(name, selector string) {
	s.Helper()
	annotation := ""
	if selector != "" {
		annotation = "meridio.nordix.org/target-selector: '" + selector + "'"
	}
	s.apply(streamObject, s.namespace, name, annotation)
}

// made is the Service that was made for a Stream, nil where there is none.
func (s *scene) made(name string) *corev1.Service {
	s.Helper()
	service, err := s.cluster.Client().CoreV1().Services(s.namespace).Get(s.Context(), "stream-"+name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	require.NoError(s, err)
	return service
}

// warned waits for an event that a Stream is the subject of.
func (s *scene) warned(name, reason, words string) {
	s.Helper()
	require.Eventually(s, func() bool {
		out, err := s.cluster.Kubectl(s.Context(), "get", "events.events.k8s.io", "-n", s.namespace, "-o",
			"jsonpath={range .items[?(@.regarding.kind=='Stream')]}{.regarding.name} {.reason} {.note}{'\\n'}{end}")
		require.NoError(s, err)
		for line := range strings.Lines(string(out)) {
			if strings.HasPrefix(line, name+" "+reason+" ") && strings.Contains(line, words) {
				return true
			}
		}
		return false
	}, patience, 50*time.Millisecond, "%s %s", name, reason)
}

// TestStreamSelectsItsTargets: the annotation on Meridio's own object makes pods targets, and all of it goes as it came.
func TestStreamSelectsItsTargets(t *testing.T) {
	s := newOwnScene(t)
	s.streams()
	s.controller("--leader-election=false")
	lb := s.lb()
	s.pod("one", 1, true)

	s.stream("stream-a", "app=web")
	s.active(lb, "stream-a", "one")
	service := s.made("stream-a")
	require.Equal(t, corev1.ClusterIPNone, service.Spec.ClusterIP)
	require.Equal(t, "Stream/stream-a", service.Annotations["meridio.nordix.org/made-for"])
	require.Equal(t, "conduit-a", service.Labels["meridio.nordix.org/conduit"])
	s.works("pod/one")
	require.Contains(t, s.explainText("service/stream-stream-a", "-n", s.namespace), "the Service was made for Stream/stream-a")

	s.stream("stream-a", "app=db")
	s.active(lb, "stream-a")
	s.stream("stream-a", "app=web,tier in (a)") // no selector of a Service: the last one stays
	s.warned("stream-a", "InvalidSelector", "key=value")
	require.Equal(t, map[string]string{"app": "db"}, s.made("stream-a").Spec.Selector)
	s.stream("stream-a", "app=web")
	s.active(lb, "stream-a", "one")

	// What somebody else has made is left alone, and another Stream is not disturbed.
	s.service("stream-stream-b", "stream-a")
	s.stream("stream-b", "app=db")
	s.warned("stream-b", "ServiceNameTaken", "made by somebody else")
	require.Equal(t, map[string]string{"app": "web"}, s.made("stream-b").Spec.Selector)
	require.NoError(t, s.cluster.DeleteService(t.Context(), s.namespace, "stream-stream-b"))

	gone := func() bool { return s.made("stream-a") == nil }
	s.stream("stream-a", "")
	require.Eventually(t, gone, patience, 20*time.Millisecond)
	s.active(lb, "stream-a")
	s.stream("stream-a", "app=web")
	s.active(lb, "stream-a", "one")
	_, err := s.cluster.Kubectl(t.Context(), "delete", "streams.meridio.nordix.org", "-n", s.namespace, "stream-a")
	require.NoError(t, err)
	// Kubernetes' garbage collector looks for new kinds, as that of this cluster is, every 30 s.
	require.Eventually(t, gone, 4*patience, 100*time.Millisecond)
	s.active(lb, "stream-a")
}
