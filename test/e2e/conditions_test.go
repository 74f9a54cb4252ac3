package e2e

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nordix/meridio-nsp/test/cluster"
	"github.com/nordix/meridio-nsp/test/play"
)

// accepts waits until a Service's condition Accepted has the reason.
func (s *scene) accepts(service, reason string) {
	s.Helper()
	var last []metav1.Condition
	require.True(s, waitFor(func() bool {
		last = s.get(service).Status.Conditions
		for _, c := range last {
			if c.Type == "meridio.nordix.org/Accepted" && c.Reason == reason {
				return true
			}
		}
		return false
	}), "want %s, have %+v", reason, last)
}

// told waits for an event that says something.
func (s *scene) told(reason, text string) {
	s.Helper()
	require.True(s, waitFor(func() bool {
		events, err := s.cluster.Client().EventsV1().Events(s.namespace).List(s.Context(), metav1.ListOptions{})
		require.NoError(s, err)
		for _, e := range events.Items {
			if e.Reason == reason && strings.Contains(e.Note, text) {
				return true
			}
		}
		return false
	}), "%s: %s", reason, text)
}

// TestReasonsOfAccepted is the life of a Service that is labelled wrongly, then rightly, then moved, then given back.
func TestReasonsOfAccepted(t *testing.T) {
	s := newScene(t)
	s.service("web", "stream-x")
	s.accepts("web", "StreamNotFound")
	s.patch("web", `{"metadata":{"labels":{"meridio.nordix.org/stream":""}}}`)
	s.accepts("web", "IncompleteLabels")
	s.patch("web", `{"metadata":{"labels":{"meridio.nordix.org/stream":"stream-a"}}}`)
	s.accepts("web", "PortsNotServed")
	s.patch("web", `{"spec":{"ports":[{"port":4000,"protocol":"TCP"}]}}`)
	s.accepts("web", "Accepted")
	s.told("StreamChanged", "stream-x to stream")
	s.patch("web", `{"metadata":{"labels":{"service.kubernetes.io/service-proxy-name":null}}}`)
	s.told("MarkerRemoved", "does not load balance it because it is headless")
	require.True(t, waitFor(func() bool { return len(s.get("web").Status.Conditions) == 0 }))
}

// TestHandedBack gives a Service with a cluster IP back to kube-proxy, which serves it then.
func TestHandedBack(t *testing.T) {
	s := newScene(t)
	_, err := s.cluster.Service(t.Context(), cluster.ServiceConfig{
		Namespace: s.namespace, Name: "web", Labels: play.PoolLabels("trench-a", "conduit-a", "stream-a"),
		Selector: map[string]string{"app": "web"}, ClusterIP: true,
	})
	require.NoError(t, err)
	one := s.pod("one", 1, true)
	require.True(t, opens(one, 1))
	s.patch("web", `{"metadata":{"labels":{"service.kubernetes.io/service-proxy-name":null}}}`)
	require.True(t, opens(one, 0))
	s.told("MarkerRemoved", "the Service is back with kube-proxy")
	require.NotEqual(t, "None", s.get("web").Spec.ClusterIP)
}
