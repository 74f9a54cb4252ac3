package e2e

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/test/chart"
	"github.com/nordix/meridio-nsp/test/cluster"
	"github.com/nordix/meridio-nsp/test/play"
	"github.com/nordix/meridio-nsp/test/spiffe"
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

// identity is a workload API that names its callers by this ServiceAccount, and its credentials.
func identity(t *testing.T, ca *spiffe.Authority, namespace, account string) (socket string, creds credentials.TransportCredentials) {
	t.Helper()
	id, err := ca.SVID("/ns/"+namespace+"/sa/"+account, time.Hour)
	require.NoError(t, err)
	agent := spiffe.NewAgent(filepath.Join(t.TempDir(), "agent.sock"))
	require.NoError(t, agent.Issue(id, ca.Bundle()))
	require.NoError(t, agent.Start(t.Context()))
	t.Cleanup(func() { _ = agent.Stop() })
	source, err := auth.OpenSPIFFE(t.Context(), auth.SPIFFEConfig{Socket: agent.Socket(), Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(source.Close)
	return agent.Socket(), source.Client()
}

// The link between the processes is mTLS, and only the ServiceAccounts of trench processes may relay. // P18
func TestTrenchRelaysBySVID(t *testing.T) {
	c := cluster.Get(t)
	namespace := c.Namespace(t)
	require.NoError(t, chart.Install(t.Context(), c, namespace, nil))
	require.NoError(t, c.Apply(t.Context(), fmt.Appendf(nil, operatorsRole, namespace), false))
	require.NoError(t, play.Configure(t.Context(), c.Client(), namespace, "trench-a", "conduit-a", map[string]int{"stream-a": 10}))
	ca, err := spiffe.NewAuthority("example.org")
	require.NoError(t, err)
	kubeconfig, err := c.ServiceAccountKubeconfig(t.Context(), namespace, chart.ServiceAccount)
	require.NoError(t, err)
	socket, stranger := identity(t, ca, namespace, chart.ServiceAccount)
	nsp, err := play.StartNSP(t.Context(), play.NSPConfig{
		Namespace: namespace, Kubeconfig: kubeconfig, Dir: t.TempDir(), Credentials: stranger,
		Args: []string{"--spiffe-endpoint-socket=" + socket, "--trench-process-accounts=" + operatorsAccount},
	})
	require.NoError(t, err)
	t.Cleanup(nsp.Stop)
	cfg := trenchConfig(t.Context(), t, c, namespace)
	socket, cfg.Credentials = identity(t, ca, namespace, operatorsAccount)
	cfg.Args = []string{"--spiffe-endpoint-socket=" + socket, "--namespace-nsp=" + nsp.Address()}
	trench, err := play.StartNSP(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(trench.Stop)

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, err := trench.Dial()
	require.NoError(t, err)
	defer conn.Close()
	frontend := &nspv1.Target{Type: nspv1.Target_FRONTEND, Ips: []string{"fe-1"}, Context: map[string]string{"identifier": "fe-1"}}
	_, err = nspv1.NewTargetRegistryClient(conn).Register(ctx, frontend)
	require.NoError(t, err, string(trench.LogTail()))

	direct, err := nsp.Dial()
	require.NoError(t, err)
	defer direct.Close()
	watch, err := nspv1.NewTargetRegistryClient(direct).Watch(ctx, &nspv1.Target{Type: nspv1.Target_FRONTEND, Status: nspv1.Target_ANY})
	require.NoError(t, err)
	list, err := watch.Recv()
	require.NoError(t, err)
	require.Len(t, list.GetTargets(), 1, "the namespace process has it")
	_, err = targetpoolv1.NewRelayClient(direct).Position(ctx, &targetpoolv1.RelayPositionRequest{Trench: "trench-a"})
	require.Equal(t, codes.PermissionDenied, status.Code(err))
}
