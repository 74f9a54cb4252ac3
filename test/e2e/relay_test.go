package e2e

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/test/cluster"
	"github.com/nordix/meridio-nsp/test/play"
)

// relayScene is a scene with a trench process that relays to the namespace process, and an old load balancer there.
type relayScene struct {
	*scene
	trench *play.NSP
	lb     *play.LegacyLB
	// empty counts the times that the load balancer was left without a target, once it had one.
	empty atomic.Int32
}

func newRelayScene(t *testing.T) *relayScene {
	s := &relayScene{scene: newScene(t)}
	require.NoError(t, s.cluster.Apply(t.Context(), fmt.Appendf(nil, operatorsRole, s.namespace), false))
	cfg := trenchConfig(t.Context(), t, s.cluster, s.namespace)
	cfg.Args = []string{"--namespace-nsp=" + s.nsp.Address()}
	var err error
	s.trench, err = play.StartNSP(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(s.trench.Stop)
	conn, err := s.trench.Dial()
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	s.lb = play.NewLegacyLB(conn, "trench-a", "conduit-a", "stream-a")
	s.lb.OnUpdate = func(play.LegacyUpdate) {
		if len(s.lb.Active("stream-a")) == 0 {
			s.empty.Add(1)
		}
	}
	s.background(s.lb.Run)
	return s
}

// oldTAPA makes a pod whose sidecar registers at the trench process.
func (s *relayScene) oldTAPA(name string, number int) {
	s.Helper()
	pod, err := s.cluster.Pod(s.Context(), cluster.PodConfig{
		Namespace: s.namespace, Name: name, Labels: map[string]string{"app": "web"}, Ready: true,
	})
	require.NoError(s, err)
	conn, err := s.trench.Dial()
	require.NoError(s, err)
	s.Cleanup(func() { _ = conn.Close() })
	tapa, err := play.NewTAPA(play.TAPAConfig{
		Client: s.client(), Conn: conn, Namespace: s.namespace, Pod: name, PodUID: string(pod.UID),
		Addresses: secondary(number), MaxTargets: 9, Refresh: 200 * time.Millisecond,
	})
	require.NoError(s, err)
	s.background(tapa.Run)
}

func (s *relayScene) has(numbers ...int) {
	s.Helper()
	want := map[string]bool{}
	for _, n := range numbers {
		want[secondary(n)[0]] = true
	}
	err := s.lb.WaitFor(s.within(), func(lb *play.LegacyLB) bool {
		return lb.Live() && fmt.Sprint(lb.Active("stream-a")) == fmt.Sprint(want)
	})
	require.NoErrorf(s, err, "want %v, have %v\n%s", want, s.lb.Active("stream-a"), s.trench.LogTail())
}

func (s *relayScene) ready(pod string, is bool) {
	s.Helper()
	_, err := s.cluster.SetReady(s.Context(), s.namespace, pod, is)
	require.NoError(s, err)
}

// An old load balancer on the trench process has readiness from the namespace process, keeps what it has when that is killed and
// when its own is restarted meanwhile, and is never left without targets. // M7
func TestTrenchRelays(t *testing.T) {
	s := newRelayScene(t)
	s.service("web", "stream-a")
	s.oldTAPA("web-1", 1)
	s.oldTAPA("web-2", 2)
	s.has(1, 2)
	s.ready("web-1", false)
	s.has(2)
	s.ready("web-1", true)
	s.has(1, 2)

	s.nsp.Kill()
	s.ready("web-2", false)
	s.trench.Stop()
	require.NoError(t, s.trench.Start(t.Context()))
	s.has(1, 2)
	require.NoError(t, s.nsp.Start(t.Context()))
	s.has(1)
	s.ready("web-2", true)
	s.has(1, 2)
	require.Zero(t, s.empty.Load())
	require.NoError(t, s.cluster.DeleteService(t.Context(), s.namespace, "web"))
	s.has()
}
