package e2e

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/test/cluster"
	"github.com/nordix/meridio-nsp/test/play"
	"github.com/nordix/meridio-nsp/test/spiffe"
)

// operatorsRole is all that Meridio's operator lets an NSP do.
const operatorsRole = `apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: meridio-nsp, namespace: %[1]s}
rules:
- apiGroups: [""]
  resources: [configmaps]
  verbs: [watch]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: meridio-nsp, namespace: %[1]s}
subjects:
- {kind: ServiceAccount, name: meridio-nsp, namespace: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: meridio-nsp}
`

const operatorsAccount = "meridio-nsp"

// trenchScene is a trench process as Meridio's operator runs it: its environment, and no more rights than its Role gives.
type trenchScene struct {
	*testing.T
	cluster   *cluster.Cluster
	namespace string
	nsp       *play.NSP
}

func trenchConfig(ctx context.Context, t *testing.T, c *cluster.Cluster, namespace string) play.NSPConfig {
	t.Helper()
	kubeconfig, err := c.ServiceAccountKubeconfig(ctx, namespace, operatorsAccount)
	require.NoError(t, err)
	return play.NSPConfig{Namespace: namespace, Kubeconfig: kubeconfig, Dir: t.TempDir(), Trench: "trench-a"}
}

func newTrench(t *testing.T, c *cluster.Cluster, namespace string) *trenchScene {
	t.Helper()
	require.NoError(t, c.Apply(t.Context(), fmt.Appendf(nil, operatorsRole, namespace), false))
	nsp, err := play.StartNSP(t.Context(), trenchConfig(t.Context(), t, c, namespace))
	require.NoError(t, err)
	t.Cleanup(nsp.Stop)
	return &trenchScene{T: t, cluster: c, namespace: namespace, nsp: nsp}
}

// configuredTrench is a trench process with a configuration, in a namespace of its own.
func configuredTrench(t *testing.T) *trenchScene {
	t.Helper()
	c := cluster.Get(t)
	namespace := c.Namespace(t)
	require.NoError(t, play.Configure(t.Context(), c.Client(), namespace, "trench-a", "conduit-a", map[string]int{"stream-a": 10}))
	return newTrench(t, c, namespace)
}

func (s *trenchScene) ctx() context.Context {
	ctx, cancel := context.WithTimeoutCause(s.Context(), patience, fmt.Errorf("nothing within %s", patience))
	s.Cleanup(cancel)
	return ctx
}

func (s *trenchScene) configuration() nspv1.ConfigurationManagerClient {
	conn, err := s.nsp.Dial()
	require.NoError(s, err)
	s.Cleanup(func() { _ = conn.Close() })
	return nspv1.NewConfigurationManagerClient(conn)
}

func (s *trenchScene) configure(streams map[string]int) {
	s.Helper()
	require.NoError(s, play.Configure(s.ctx(), s.cluster.Client(), s.namespace, "trench-a", "conduit-a", streams))
}

// write replaces one key of the ConfigMap.
func (s *trenchScene) write(edit func(data map[string]string)) {
	s.Helper()
	maps := s.cluster.Client().CoreV1().ConfigMaps(s.namespace)
	m, err := maps.Get(s.ctx(), "meridio-configuration-trench-a", metav1.GetOptions{})
	require.NoError(s, err)
	edit(m.Data)
	_, err = maps.Update(s.ctx(), m, metav1.UpdateOptions{})
	require.NoError(s, err)
}

// restart ends the process as Kubernetes would: the configuration is stored a moment after it was read, or at the end.
func (s *trenchScene) restart() {
	s.Helper()
	s.nsp.Stop()
	require.NoError(s, s.nsp.Start(s.Context()))
}

var conduitA = &nspv1.Conduit{Name: "conduit-a", Trench: &nspv1.Trench{Name: "trench-a"}}

// streams are the names that the next message of a watch has.
func (s *trenchScene) streams(watch interface {
	Recv() (*nspv1.StreamResponse, error)
}) []string {
	s.Helper()
	r, err := watch.Recv()
	require.NoError(s, err, string(s.nsp.LogTail()))
	names := []string{}
	for _, x := range r.GetStreams() {
		names = append(names, x.GetName())
	}
	return names
}

// A process that may do nothing yet is alive, starts no traffic and answers nobody; the operator's Role is all it needs, and
// the operator's probes see all of that.
func TestTrenchUnderOperatorsRole(t *testing.T) {
	c := cluster.Get(t)
	namespace := c.Namespace(t)
	require.NoError(t, play.Configure(t.Context(), c.Client(), namespace, "trench-a", "conduit-a", map[string]int{"stream-a": 10}))
	cfg := trenchConfig(t.Context(), t, c, namespace)
	binary, err := play.Build(t.Context())
	require.NoError(t, err)
	cfg.Binary = binary
	probe := operatorsProbe(t, binary, "unix://"+filepath.Join(cfg.Dir, "health.sock"))
	type result struct {
		nsp *play.NSP
		err error
	}
	ready := make(chan result, 1)
	go func() {
		nsp, err := play.StartNSP(t.Context(), cfg)
		ready <- result{nsp, err}
	}()
	require.Eventually(t, func() bool {
		log, _ := os.ReadFile(filepath.Join(cfg.Dir, "nsp.log"))
		return bytes.Contains(log, []byte("forbidden")) && probe("") != nil
	}, patience, 50*time.Millisecond, "it says what it lacks")
	select {
	case r := <-ready:
		require.FailNow(t, "ready without having read its ConfigMap", "%v", r.err)
	default:
	}

	require.NoError(t, c.Apply(t.Context(), fmt.Appendf(nil, operatorsRole, namespace), false))
	r := <-ready
	require.NoError(t, r.err)
	t.Cleanup(r.nsp.Stop)
	for _, service := range []string{"", "Startup", "Readiness", "Liveness"} {
		require.NoError(t, probe(service), service)
		require.NoError(t, operatorsProbe(t, binary, r.nsp.Address())(service), service)
	}
	require.Error(t, probe("Nobody"))

	config, err := c.ServiceAccountConfig(t.Context(), namespace, operatorsAccount)
	require.NoError(t, err)
	asNSP, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	_, err = asNSP.CoreV1().ConfigMaps(namespace).List(t.Context(), metav1.ListOptions{})
	require.True(t, apierrors.IsForbidden(err), "the Role is that of the operator: %v", err)
	_, err = asNSP.CoreV1().Events(namespace).Create(t.Context(), &corev1.Event{}, metav1.CreateOptions{})
	require.True(t, apierrors.IsForbidden(err), "%v", err)
}

// TestTrenchBySVID: with SPIFFE_ENDPOINT_SOCKET, which the operator sets, the service port speaks mTLS, and the operator's own
// readiness probe asks it so.
func TestTrenchBySVID(t *testing.T) {
	c := cluster.Get(t)
	namespace := c.Namespace(t)
	require.NoError(t, play.Configure(t.Context(), c.Client(), namespace, "trench-a", "conduit-a", map[string]int{"stream-a": 10}))
	ca, err := spiffe.NewAuthority("example.org")
	require.NoError(t, err)
	id, err := ca.SVID("/ns/"+namespace+"/sa/"+operatorsAccount, time.Hour)
	require.NoError(t, err)
	agent := spiffe.NewAgent(filepath.Join(t.TempDir(), "agent.sock"))
	require.NoError(t, agent.Issue(id, ca.Bundle()))
	require.NoError(t, agent.Start(t.Context()))
	t.Cleanup(func() { _ = agent.Stop() })
	t.Setenv("SPIFFE_ENDPOINT_SOCKET", agent.Socket())
	source, err := auth.OpenSPIFFE(t.Context(), auth.SPIFFEConfig{Socket: agent.Socket(), Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(source.Close)

	cfg := trenchConfig(t.Context(), t, c, namespace)
	cfg.Credentials = source.Client()
	require.NoError(t, c.Apply(t.Context(), fmt.Appendf(nil, operatorsRole, namespace), false))
	nsp, err := play.StartNSP(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(nsp.Stop)
	require.NoError(t, operatorsProbe(t, nsp.Binary(), nsp.Address(), "-spiffe")(""))
	require.NoError(t, operatorsProbe(t, nsp.Binary(), "unix://"+nsp.HealthSocket())("Readiness"))
	require.Error(t, operatorsProbe(t, nsp.Binary(), nsp.Address())(""), "plaintext is refused")
	s := &trenchScene{T: t, cluster: c, namespace: namespace, nsp: nsp}
	w, err := s.configuration().WatchStream(s.ctx(), &nspv1.Stream{Conduit: conduitA})
	require.NoError(t, err)
	require.Equal(t, []string{"stream-a"}, s.streams(w))
}

// operatorsProbe runs the binary under the name and with the flags that the operator's template has, with more time: this
// machine does other things too.
func operatorsProbe(t *testing.T, binary, addr string, more ...string) func(service string) error {
	link := filepath.Join(t.TempDir(), "grpc_health_probe")
	require.NoError(t, os.Symlink(binary, link))
	return func(service string) error {
		args := append([]string{"-addr=" + addr, "-service=" + service, "-connect-timeout=2s", "-rpc-timeout=4s"}, more...)
		out, err := exec.CommandContext(t.Context(), link, args...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
}

// TestTrenchConfiguration: created, changed, malformed in one key, deleted, and a restart at each point.
func TestTrenchConfiguration(t *testing.T) {
	c := cluster.Get(t)
	s := newTrench(t, c, c.Namespace(t)) // it is ready: that there is no ConfigMap is known
	filter := &nspv1.Stream{Conduit: conduitA}
	watch := func() interface {
		Recv() (*nspv1.StreamResponse, error)
	} {
		w, err := s.configuration().WatchStream(s.ctx(), filter)
		require.NoError(t, err)
		return w
	}
	w := watch()
	require.Empty(t, s.streams(w))
	s.configure(map[string]int{"stream-a": 10})
	require.Equal(t, []string{"stream-a"}, s.streams(w))
	s.configure(map[string]int{"stream-a": 10, "stream-b": 5})
	require.Equal(t, []string{"stream-a", "stream-b"}, s.streams(w))

	flows, err := s.configuration().WatchFlow(s.ctx(), &nspv1.Flow{Stream: &nspv1.Stream{Conduit: conduitA}})
	require.NoError(t, err)
	list, err := flows.Recv()
	require.NoError(t, err)
	require.True(t, proto.Equal(&nspv1.Flow{
		Name: "flow-of-stream-b", Stream: &nspv1.Stream{Name: "stream-b", Conduit: conduitA, MaxTargets: 5},
		Vips: []*nspv1.Vip{{Name: "vip-a", Address: "20.0.0.1/32", Trench: conduitA.GetTrench()}}, Protocols: []string{"tcp"}, Priority: 1,
		SourceSubnets: []string{"0.0.0.0/0"}, SourcePortRanges: []string{"1024-65535"}, DestinationPortRanges: []string{"4001"},
	}, list.GetFlows()[1]), "%v", list)

	s.write(func(data map[string]string) { data["streams"], data["vips"] = "items: [", "" })
	list, err = flows.Recv()
	require.NoError(t, err)
	require.Len(t, list.GetFlows(), 2, "the streams are as they were")
	require.Empty(t, list.GetFlows()[0].GetVips(), "the good key of the same write counts")
	require.Equal(t, []string{"stream-a", "stream-b"}, s.streams(watch()))
	require.Contains(t, string(s.nsp.LogTail()), "key streams")

	s.restart()
	require.Equal(t, []string{"stream-a", "stream-b"}, s.streams(watch()), "the last good value is kept through a restart")

	maps := c.Client().CoreV1().ConfigMaps(s.namespace)
	require.NoError(t, maps.Delete(s.ctx(), "meridio-configuration-trench-a", metav1.DeleteOptions{}))
	require.Eventually(t, func() bool { return bytes.Contains(s.nsp.LogTail(), []byte("ConfigMap is gone")) }, patience, 20*time.Millisecond)
	w = watch()
	require.Equal(t, []string{"stream-a", "stream-b"}, s.streams(w), "a deletion keeps the configuration")
	s.restart()
	w = watch()
	require.Equal(t, []string{"stream-a", "stream-b"}, s.streams(w), "also through a restart")
	s.configure(map[string]int{"stream-c": 1})
	require.Equal(t, []string{"stream-c"}, s.streams(w))
}

// TestTrenchRegistry: what is registered ENABLED twice is active, as in Meridio 1.x; a restart changes nothing.
func TestTrenchRegistry(t *testing.T) {
	s := configuredTrench(t)
	conn, err := s.nsp.Dial()
	require.NoError(t, err)
	defer conn.Close()
	registry := nspv1.NewTargetRegistryClient(conn)
	read := func(status nspv1.Target_Status, kind nspv1.Target_Type) (out []*nspv1.Target) {
		ctx, cancel := context.WithCancel(s.ctx())
		defer cancel()
		w, err := registry.Watch(ctx, &nspv1.Target{Status: status, Type: kind})
		require.NoError(t, err)
		list, err := w.Recv()
		require.NoError(t, err)
		return list.GetTargets()
	}
	target := &nspv1.Target{
		Ips: []string{"172.16.0.1/24", "fd00::1/64"}, Context: map[string]string{"identifier": "3"},
		Stream: &nspv1.Stream{Name: "stream-a", Conduit: conduitA},
	}
	frontend := &nspv1.Target{Ips: []string{"lb-fe-1"}, Context: map[string]string{"identifier": "lb-fe-1"}, Type: nspv1.Target_FRONTEND}
	for i, status := range []nspv1.Target_Status{nspv1.Target_DISABLED, nspv1.Target_ENABLED} {
		for _, x := range []*nspv1.Target{target, frontend} {
			_, err := registry.Register(s.ctx(), x)
			require.NoError(t, err)
			list := read(nspv1.Target_ANY, x.GetType())
			require.Len(t, list, 1)
			require.Equal(t, status, list[0].GetStatus(), "after %d calls", i+1)
			require.Equal(t, x.GetIps(), list[0].GetIps())
			require.Equal(t, x.GetStream().GetName(), list[0].GetStream().GetName())
			require.NotNil(t, list[0].GetStream().GetConduit().GetTrench(), "echoed with empty names")
		}
	}
	active := read(nspv1.Target_ENABLED, nspv1.Target_DEFAULT)
	require.Len(t, active, 1)

	require.NoError(t, s.nsp.Restart(t.Context()))
	require.True(t, proto.Equal(active[0], read(nspv1.Target_ENABLED, nspv1.Target_DEFAULT)[0]))
	require.Len(t, read(nspv1.Target_ENABLED, nspv1.Target_FRONTEND), 1)

	_, err = registry.Unregister(s.ctx(), target)
	require.NoError(t, err)
	require.Empty(t, read(nspv1.Target_ANY, nspv1.Target_DEFAULT))
}

// TestTrenchServesOldComponents: a TAPA registers at the trench process, and an old load balancer there sees it, through a
// kill of the process too.
func TestTrenchServesOldComponents(t *testing.T) {
	s := newScene(t)
	trench := newTrench(t, s.cluster, s.namespace)
	conn, err := trench.nsp.Dial()
	require.NoError(t, err)
	defer conn.Close()
	lb := play.NewLegacyLB(conn, "trench-a", "conduit-a", "stream-a")
	s.background(lb.Run)
	s.service("web", "stream-a")
	pod, err := s.cluster.Pod(t.Context(), cluster.PodConfig{Namespace: s.namespace, Name: "one", Labels: map[string]string{"app": "web"}})
	require.NoError(t, err)
	tapa, err := play.NewTAPA(play.TAPAConfig{
		Client: s.client(), Conn: conn, Namespace: s.namespace, Pod: "one", PodUID: string(pod.UID), Addresses: secondary(1), MaxTargets: 9,
		Refresh: 200 * time.Millisecond,
	})
	require.NoError(t, err)
	s.background(tapa.Run)
	has := func(want string) {
		t.Helper()
		require.NoError(t, lb.WaitFor(s.within(), func(lb *play.LegacyLB) bool { return lb.Live() && fmt.Sprint(lb.Active("stream-a")) == want }))
	}
	has("map[172.16.0.1/24:true]")
	trench.nsp.Kill()
	require.NoError(t, lb.WaitFor(s.within(), func(lb *play.LegacyLB) bool { return !lb.Live() }))
	require.NoError(t, trench.nsp.Start(t.Context()))
	has("map[172.16.0.1/24:true]")
	require.NoError(t, s.cluster.DeleteService(t.Context(), s.namespace, "web"))
	has("map[]")
}

// TestTrenchWithoutAPIServer: what was read is served after a restart without an API server, and registrations work.
func TestTrenchWithoutAPIServer(t *testing.T) {
	cluster.SkipIfShort(t)
	c, err := cluster.Start(t.Context(), cluster.Config{})
	require.NoError(t, err)
	t.Cleanup(c.Stop)
	namespace := c.Namespace(t)
	require.NoError(t, play.Configure(t.Context(), c.Client(), namespace, "trench-a", "conduit-a", map[string]int{"stream-a": 10}))
	s := newTrench(t, c, namespace)
	require.NoError(t, c.StopAPIServer())
	s.restart()
	w, err := s.configuration().WatchStream(s.ctx(), &nspv1.Stream{Conduit: conduitA})
	require.NoError(t, err)
	require.Equal(t, []string{"stream-a"}, s.streams(w))
	conn, err := s.nsp.Dial()
	require.NoError(t, err)
	defer conn.Close()
	_, err = nspv1.NewTargetRegistryClient(conn).Register(s.ctx(), &nspv1.Target{
		Ips: secondary(1), Context: map[string]string{"identifier": "1"}, Stream: &nspv1.Stream{Name: "stream-a", Conduit: conduitA},
	})
	require.NoError(t, err)

	require.NoError(t, c.StartAPIServer(t.Context()))
	s.configure(map[string]int{"stream-a": 10, "stream-b": 10})
	require.Equal(t, []string{"stream-a", "stream-b"}, s.streams(w))
}
