package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/credentials/insecure"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
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
	// refresh is how often the sidecars of pods made from now on refresh; 0 is their default.
	refresh time.Duration
}

// newScene makes a scene on the cluster that all tests share.
func newScene(t *testing.T, args ...string) *scene {
	t.Helper()
	return makeScene(t, cluster.Get(t), args...)
}

// newOwnScene makes a scene on a cluster of its own, which the test may break.
func newOwnScene(t *testing.T, args ...string) *scene {
	t.Helper()
	cluster.SkipIfShort(t)
	c, err := cluster.Start(t.Context(), cluster.Config{})
	require.NoError(t, err)
	t.Cleanup(c.Stop)
	return makeScene(t, c, args...)
}

func makeScene(t *testing.T, c *cluster.Cluster, args ...string) *scene {
	t.Helper()
	s := &scene{T: t, cluster: c, running: &sync.WaitGroup{}}
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
	t := s.tapa(name, number, ready)
	s.background(t.Run)
	return t
}

// podThatDies makes a pod whose sidecar falls silent once it has opened a stream, while the cluster notices nothing.
func (s *scene) podThatDies(name string, number int) {
	t := s.tapa(name, number, true)
	stop := s.background(t.Run)
	require.Eventually(s, func() bool { return len(t.Open()) == 1 }, patience, time.Millisecond)
	stop()
}

func (s *scene) tapa(name string, number int, ready bool) *play.TAPA {
	pod, err := s.cluster.Pod(s.Context(), cluster.PodConfig{
		Namespace: s.namespace, Name: name, Labels: map[string]string{"app": "web"}, Ready: ready,
	})
	require.NoError(s, err)
	conn, err := s.nsp.Dial()
	require.NoError(s, err)
	s.Cleanup(func() { _ = conn.Close() })
	t, err := play.NewTAPA(play.TAPAConfig{
		Client: s.client(), Conn: conn, Namespace: s.namespace, Pod: name, PodUID: string(pod.UID),
		Addresses: secondary(number), MaxTargets: 9, Refresh: s.refresh,
	})
	require.NoError(s, err)
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
		s.explain()
	}
	require.NoErrorf(s, err, "active in %s: want %v, have %v", stream, want, lb.Active(stream))
}

// explain logs what there is to know about a failure.
func (s *scene) explain() {
	s.Helper()
	log, _ := os.ReadFile(filepath.Clean(s.nsp.LogFile()))
	s.Logf("log of the namespace process:\n%s", log)
	for _, what := range []string{"pools", "targets"} {
		out, err := exec.Command(s.nsp.Binary(), what, "--server", s.nsp.Address(), "-o", "wide").CombinedOutput()
		s.Logf("%s (%v):\n%s", what, err, out)
	}
}

// targets waits until the load balancer knows so many targets, active or not.
func (s *scene) targets(lb *play.LB, n int) {
	s.Helper()
	_, err := lb.WaitFor(s.within(), func(lb *play.LB) bool { return len(lb.Targets()) == n })
	require.NoErrorf(s, err, "want %d targets, have %v", n, lb.Targets())
}

// marks registers and unregisters a target of another stream, and waits until the load balancer has heard of both: then it
// has heard of everything before.
func (s *scene) marks(lb *play.LB) {
	s.Helper()
	conn, err := s.nsp.Dial()
	require.NoError(s, err)
	defer conn.Close()
	registry := nspv1.NewTargetRegistryClient(conn)
	mark := &nspv1.Target{
		Ips: []string{"172.16.9.9/24"}, Context: map[string]string{"identifier": "10"}, Status: nspv1.Target_DISABLED,
		Stream: &nspv1.Stream{Name: "stream-b", Conduit: &nspv1.Conduit{
			Name: "conduit-a", Trench: &nspv1.Trench{Name: "trench-a"},
		}},
	}
	there := func(want bool) {
		_, err := lb.WaitFor(s.within(), func(lb *play.LB) bool {
			for _, t := range lb.Targets() {
				if t.GetStream() == "stream-b" && t.GetIdentifier() == 10 {
					return want
				}
			}
			return !want
		})
		if err != nil {
			s.explain()
		}
		require.NoError(s, err)
	}
	_, err = registry.Register(s.within(), mark)
	require.NoError(s, err)
	there(true)
	_, err = registry.Unregister(s.within(), mark)
	require.NoError(s, err)
	there(false)
}

// holes collects what the load balancer had whenever it had no active target of that number. It begins when the pod knows that
// its stream is open: one whose NSP dies before it answers opens anew, which is a hole of its own making.
func (s *scene) holes(lb *play.LB, pod *play.TAPA, number int) (found func() []string) {
	s.Helper()
	require.Eventually(s, func() bool { return len(pod.Open()) > 0 }, patience, 10*time.Millisecond)
	var mu sync.Mutex
	var holes []string
	lb.Observe(func() {
		all := lb.Targets()
		for _, t := range all {
			if slices.Equal(t.GetAddresses(), secondary(number)) && t.GetState() == targetpoolv1.Target_STATE_ACTIVE {
				return
			}
		}
		mu.Lock()
		defer mu.Unlock()
		holes = append(holes, fmt.Sprint(slices.Collect(maps.Values(all))))
	})
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(holes)
	}
}

// secondary are the addresses of a target on the secondary network.
func secondary(number int) []string { return []string{fmt.Sprintf("172.16.0.%d/24", number)} }
