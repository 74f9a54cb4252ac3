package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/nordix/meridio-nsp/pkg/targetpool/client"
	"github.com/nordix/meridio-nsp/test/chart"
	"github.com/nordix/meridio-nsp/test/cluster"
	"github.com/nordix/meridio-nsp/test/play"
)

// patience is how long a test waits for something that happens within milliseconds on a machine that is not busy.
const patience = 30 * time.Second

// scene is a namespace with the chart installed, a namespace process under the chart's ServiceAccount, a configured trench,
// and pods with their sidecars.
type scene struct {
	*testing.T
	cluster   *cluster.Cluster
	namespace string
	nsp       *play.NSP
	running   *sync.WaitGroup
}

func newScene(t *testing.T, args ...string) *scene {
	t.Helper()
	s := &scene{T: t, cluster: cluster.Get(t), running: &sync.WaitGroup{}}
	ctx := t.Context()
	s.namespace = s.cluster.Namespace(t)
	require.NoError(t, chart.Install(ctx, s.cluster, s.namespace, nil))
	kubeconfig, err := s.cluster.ServiceAccountKubeconfig(ctx, s.namespace, chart.ServiceAccount)
	require.NoError(t, err)
	require.NoError(t, play.Configure(ctx, s.cluster.Client(), s.namespace, "trench-a", "conduit-a",
		map[string]int{"stream-a": 10, "stream-b": 10}))
	s.nsp, err = play.StartNSP(ctx, play.NSPConfig{
		Namespace: s.namespace, Kubeconfig: kubeconfig, Dir: t.TempDir(), Args: append([]string{"--authorisation=none"}, args...),
	})
	require.NoError(t, err)
	t.Cleanup(s.nsp.Stop)
	t.Cleanup(s.running.Wait)
	return s
}

// within is a context for waiting.
func (s *scene) within() context.Context {
	ctx, cancel := context.WithTimeoutCause(s.Context(), patience, fmt.Errorf("nothing within %s", patience))
	s.Cleanup(cancel)
	return ctx
}

// background runs something until the test ends.
func (s *scene) background(run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.Context()))
	s.running.Go(func() {
		if err := run(ctx); err != nil {
			s.Errorf("%v", err)
		}
	})
	s.Cleanup(cancel)
	return cancel
}

func (s *scene) client() *client.Client {
	c, err := client.New(client.Config{Address: s.nsp.Address(), Credentials: insecure.NewCredentials()})
	require.NoError(s, err)
	return c
}

func (s *scene) service(name, stream string) {
	_, err := s.cluster.Service(s.Context(), cluster.ServiceConfig{
		Namespace: s.namespace, Name: name, Labels: play.PoolLabels("trench-a", "conduit-a", stream),
		Selector: map[string]string{"app": "web"},
	})
	require.NoError(s, err)
}

// pod makes a pod with a sidecar; number picks its secondary address.
func (s *scene) pod(name string, number int, ready bool) *play.TAPA {
	pod, err := s.cluster.Pod(s.Context(), cluster.PodConfig{
		Namespace: s.namespace, Name: name, Labels: map[string]string{"app": "web"}, Ready: ready,
	})
	require.NoError(s, err)
	conn, err := s.nsp.Dial()
	require.NoError(s, err)
	s.Cleanup(func() { _ = conn.Close() })
	t, err := play.NewTAPA(play.TAPAConfig{
		Client: s.client(), Conn: conn, Namespace: s.namespace, Pod: name, PodUID: string(pod.UID),
		Addresses: []string{fmt.Sprintf("172.16.0.%d/24", number)},
	})
	require.NoError(s, err)
	s.background(t.Run)
	return t
}

func (s *scene) lb() *play.LB {
	lb, err := play.NewLB(s.client(), "trench-a", "conduit-a")
	require.NoError(s, err)
	s.background(lb.Run)
	return lb
}

func (s *scene) active(lb *play.LB, stream string, pods ...string) {
	s.Helper()
	want := make(map[string]bool)
	for _, p := range pods {
		want[s.namespace+"/"+p] = true
	}
	_, err := lb.WaitFor(s.within(), func(lb *play.LB) bool { return fmt.Sprint(lb.Active(stream)) == fmt.Sprint(want) })
	if err != nil {
		log, _ := os.ReadFile(filepath.Clean(s.nsp.LogFile()))
		s.Logf("log of the namespace process:\n%s", log)
	}
	require.NoErrorf(s, err, "active in %s: want %v, have %v", stream, want, lb.Active(stream))
}

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
