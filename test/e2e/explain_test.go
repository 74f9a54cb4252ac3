package e2e

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/targetpool/client"
	"github.com/nordix/meridio-nsp/test/cluster"
	"github.com/nordix/meridio-nsp/test/play"
)

// explanation is what scripts read of nsp explain.
type explanation struct {
	Works                    bool
	Verdict, Advice, Stopped string
	Paths                    []struct {
		Steps []struct{ ID, Status, Detail, Differs string }
	}
	Differences []string
}

// explains runs nsp explain as whoever made the namespace would.
func (s *scene) explains(subject string, args ...string) explanation {
	s.Helper()
	out := s.explainText(append([]string{subject, "-n", s.namespace, "-o", "json"}, args...)...)
	var e explanation
	require.NoError(s, json.Unmarshal([]byte(out), &e), out)
	return e
}

func (s *scene) explainText(args ...string) string {
	s.Helper()
	if !strings.Contains(strings.Join(args, " "), "--server") {
		args = append(args, "--server", s.nsp.Address())
	}
	out, err := s.nspCommand(append([]string{"explain", "--kubeconfig", s.cluster.Kubeconfig()}, args...)...)
	require.NoError(s, err, out)
	return out
}

// nspCommand runs the program; what it complains of is in the error.
func (s *scene) nspCommand(args ...string) (string, error) {
	cmd := exec.Command(s.nsp.Binary(), args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, &stderr)
	}
	return string(out), err
}

// stopped waits until the first cross is the step.
func (s *scene) stopped(subject, step string, words ...string) {
	s.Helper()
	var e explanation
	ok := func() bool {
		e = s.explains(subject)
		return e.Stopped == step
	}
	require.Truef(s, eventually(ok), "%s is not stopped at %s but at %s: %s", subject, step, e.Stopped, e.Verdict)
	for _, w := range words {
		require.Contains(s, e.Verdict+"\n"+e.Advice, w)
	}
	require.NotEmpty(s, e.Advice, "a cross says what to do")
}

func (s *scene) works(subject string) {
	s.Helper()
	var e explanation
	ok := func() bool {
		e = s.explains(subject)
		return e.Works
	}
	if !eventually(ok) {
		s.Fatalf("%s does not work: %s", subject, s.explainText(subject, "-n", s.namespace, "-o", "wide"))
	}
}

func eventually(ok func() bool) bool {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		if ok() {
			return true
		}
	}
	return false
}

// relabel makes or changes a Service with these labels.
func (s *scene) relabel(name string, labels map[string]string) {
	s.Helper()
	_, err := s.cluster.Service(s.Context(), cluster.ServiceConfig{
		Namespace: s.namespace, Name: name, Labels: labels, Selector: map[string]string{"app": "web"},
	})
	require.NoError(s, err)
}

// TestExplain breaks the way from label to load balancer at one place after the other, and each time the first cross is that place.
func TestExplain(t *testing.T) {
	s := newScene(t)
	good := play.PoolLabels("trench-a", "conduit-a", "stream-a")
	without := func(change map[string]string) map[string]string {
		labels := map[string]string{}
		for k, v := range good {
			labels[k] = v
		}
		for k, v := range change {
			if labels[k] = v; v == "" {
				delete(labels, k)
			}
		}
		return labels
	}
	s.stopped("pod/one", "Exists", "there is no pod one")
	s.stopped("service/web", "Exists", "there is no Service web")
	s.stopped("target/172.16.0.1", "Address", "nobody registered it")

	_, err := s.cluster.Pod(t.Context(), cluster.PodConfig{Namespace: s.namespace, Name: "other", Labels: map[string]string{"app": "db"}, Ready: true})
	require.NoError(t, err)
	s.relabel("web", good)
	s.stopped("service/web", "Members", "no pod and no ExternalTarget matches the selector app=web")
	s.stopped("pod/other", "Selected", "web wants app=web", "app=db")

	_, err = s.cluster.Pod(t.Context(), cluster.PodConfig{Namespace: s.namespace, Name: "bare", Labels: map[string]string{"app": "web"}, Ready: true})
	require.NoError(t, err)
	s.stopped("pod/bare", "Sidecar", "no sidecar watches", "kubectl logs")
	s.stopped("service/web", "Sidecar", "pod "+s.namespace+"/bare")
	require.NoError(t, s.cluster.Finish(t.Context(), s.namespace, "bare"))
	s.stopped("pod/bare", "Exists")

	s.pod("one", 1, true)
	s.stopped("pod/one", "LoadBalancers", "no load balancer watches conduit")
	s.lb()
	s.works("pod/one")
	s.works("service/web")
	s.works("target/172.16.0.1")
	text := s.explainText("service/web", "-n", s.namespace)
	require.Contains(t, text, "every member takes traffic (1)")

	for name, broken := range map[string]struct {
		labels map[string]string
		step   string
		words  []string
	}{
		"marker":     {without(map[string]string{"service.kubernetes.io/service-proxy-name": ""}), "Marker", []string{"kubectl label service -n " + s.namespace + " web"}},
		"proxy":      {without(map[string]string{"service.kubernetes.io/service-proxy-name": "cilium"}), "Marker", []string{`"cilium"`}},
		"incomplete": {without(map[string]string{"meridio.nordix.org/stream": ""}), "Labels", []string{"meridio.nordix.org/stream is missing"}},
		"namespace":  {without(map[string]string{"meridio.nordix.org/namespace": "elsewhere"}), "NSP", []string{"the stream is of namespace elsewhere"}},
		"trench":     {without(map[string]string{"meridio.nordix.org/trench": "trench-x"}), "Stream", []string{"meridio-configuration-trench-x"}},
		"stream":     {without(map[string]string{"meridio.nordix.org/stream": "stream-x"}), "Stream", []string{"conduit-a/stream-a"}},
	} {
		t.Run(name, func(t *testing.T) {
			sub := *s
			sub.T = t
			sub.relabel("web", broken.labels)
			sub.stopped("pod/one", broken.step, broken.words...)
			sub.stopped("service/web", broken.step, broken.words...)
		})
	}
	s.relabel("web", good)
	s.works("pod/one")

	_, err = s.cluster.SetReady(t.Context(), s.namespace, "one", false)
	require.NoError(t, err)
	s.stopped("pod/one", "Ready", "kubectl describe pod")
	s.patch("web", `{"metadata":{"annotations":{"meridio.nordix.org/assignment":"ready"}}}`)
	s.stopped("pod/one", "Assigned", "assigns its stream to ready pods only")
}

// TestExplainRegistration: the label is well, and the registration is not.
func TestExplainRegistration(t *testing.T) {
	s := newScene(t)
	s.lb()
	s.relabel("web", play.PoolLabels("trench-a", "conduit-a", "stream-a"))
	conn, err := s.nsp.Dial()
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	register := func(identifier string, status nspv1.Target_Status) {
		_, err := nspv1.NewTargetRegistryClient(conn).Register(t.Context(), &nspv1.Target{
			Ips: secondary(7), Context: map[string]string{"identifier": identifier}, Status: status,
			Stream: &nspv1.Stream{Name: "stream-a", Conduit: &nspv1.Conduit{Name: "conduit-a", Trench: &nspv1.Trench{Name: "trench-a"}}},
		})
		require.NoError(t, err)
	}
	// A registration that nobody's sidecar reports.
	register("3", nspv1.Target_DISABLED)
	s.stopped("target/172.16.0.7", "Enabled", "DISABLED")
	s.watchOnly("silent")
	s.stopped("pod/silent", "Registered", "172.16.0.7/24")

	// Now the sidecar reports it.
	s.watchOnly("seven", secondary(7)...)
	s.stopped("pod/seven", "Enabled", "DISABLED")
	register("99", nspv1.Target_ENABLED)
	s.stopped("pod/seven", "Identifier", "none of 1..10")
	s.stopped("target/172.16.0.7", "Identifier")
	register("3", nspv1.Target_ENABLED)
	s.works("pod/seven")
	s.works("target/172.16.0.7/24")

	// An older Service of another trench keeps the pod to itself.
	require.NoError(t, play.Configure(t.Context(), s.cluster.Client(), s.namespace, "trench-b", "conduit-b", map[string]int{"stream-b": 10}))
	web, err := s.cluster.Client().CoreV1().Services(s.namespace).Get(t.Context(), "web", metav1.GetOptions{})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return time.Since(web.CreationTimestamp.Time) > time.Second }, patience, 20*time.Millisecond,
		"the age of Services is in seconds")
	s.relabel("late", play.PoolLabels("trench-b", "conduit-b", "stream-b"))
	require.Eventually(t, func() bool {
		return strings.Contains(s.explainText("service/late", "-n", s.namespace), "no other trench holds it")
	},
		patience, 200*time.Millisecond)
	s.stopped("service/late", "Contested", "the older Service wins")

	// The NSP is away: what the cluster says remains.
	s.nsp.Stop()
	e := s.explains("pod/seven", "--timeout", "1s")
	require.False(t, e.Works)
	require.Empty(t, e.Stopped)
	require.Contains(t, e.Verdict, "is not known")
}

// TestExplainWhatDiffers: a process that does not run on goes by what it knew.
func TestExplainWhatDiffers(t *testing.T) {
	s := newOwnScene(t)
	s.lb()
	s.relabel("web", play.PoolLabels("trench-a", "conduit-a", "stream-a"))
	s.pod("one", 1, true)
	s.works("pod/one")
	// A slice that nobody has told the process of: its marker is there, and the NSP's Role is not.
	role, err := s.cluster.Client().RbacV1().RoleBindings(s.namespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for _, r := range role.Items {
		require.NoError(t, s.cluster.Client().RbacV1().RoleBindings(s.namespace).Delete(t.Context(), r.Name, metav1.DeleteOptions{}))
	}
	require.NoError(t, s.cluster.StopAPIServer())
	require.NoError(t, s.cluster.StartAPIServer(t.Context()))
	require.Eventually(t, func() bool {
		return strings.Contains(s.explainText("pod/one", "-n", s.namespace), "cannot read namespace")
	}, patience, 200*time.Millisecond, "the NSP is told of nothing any more")
	_, err = s.cluster.Client().CoreV1().Services(s.namespace).Patch(t.Context(), "web", types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"meridio.nordix.org/stream":"stream-b"}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	_, err = s.cluster.SetReady(t.Context(), s.namespace, "one", false)
	require.NoError(t, err)
	has := func(words ...string) bool {
		text := strings.Join(s.explains("pod/one").Differences, "\n")
		for _, w := range words {
			if !strings.Contains(text, w) {
				return false
			}
		}
		return true
	}
	require.Eventually(t, func() bool {
		return has("the NSP has version", "stream-b", "the EndpointSlices say that pod one is NotReady, the NSP has Ready")
	}, patience, 200*time.Millisecond)
}

// watchOnly makes a pod whose sidecar watches and reports addresses, and registers nothing.
func (s *scene) watchOnly(name string, addresses ...string) {
	s.Helper()
	pod, err := s.cluster.Pod(s.Context(), cluster.PodConfig{Namespace: s.namespace, Name: name, Labels: map[string]string{"app": "web"}, Ready: true})
	require.NoError(s, err)
	w, err := s.client().WatchAssignments(client.AssignmentsConfig{
		Workload: &targetpoolv1.Workload{Namespace: s.namespace, Pod: name, PodUid: string(pod.UID)},
		Handler:  func(client.AssignmentList) {},
	})
	require.NoError(s, err)
	w.Report(&targetpoolv1.Report{Addresses: addresses, NspNamespace: s.namespace})
	s.background(w.Run)
}
