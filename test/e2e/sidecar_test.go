package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"

	ambassadorv1 "github.com/nordix/meridio-nsp/api/ambassador/v1"
	"github.com/nordix/meridio-nsp/pkg/stream"
	"github.com/nordix/meridio-nsp/pkg/tapa/tap"
	"github.com/nordix/meridio-nsp/test/cluster"
	"github.com/nordix/meridio-nsp/test/play"
)

// target is a pod with a network namespace of its own, a TAPA of Meridio 1.x and the real sidecar in front of it.
type target struct {
	*relayScene
	name    string
	number  int
	sidecar *play.Sidecar
	tapa    *play.Ambassador
	app     ambassadorv1.TapClient
	// outside is the end of its wire in this network namespace, hosts the file that resolves nspName for it.
	outside, hosts string
	// hold is play.AmbassadorConfig.Hold while it is set.
	hold atomic.Pointer[func(open bool, stream string) <-chan struct{}]
	// netns is the name of its network namespace, where the test needs it.
	netns string
}

const nspName = "nsp.example.org"

var netnsCount atomic.Int32

// target makes a pod; number is its secondary address and its subnet.
func (s *relayScene) target(name string, number int, args ...string) *target {
	s.Helper()
	if os.Getuid() != 0 {
		s.Skip("network namespaces need root")
	}
	pod, err := s.cluster.Pod(s.Context(), cluster.PodConfig{
		Namespace: s.namespace, Name: name, Labels: map[string]string{"app": "web"}, Ready: true,
	})
	require.NoError(s, err)
	t := &target{relayScene: s, name: name, number: number}
	netns := t.wire()
	dir, err := os.MkdirTemp("", "tapa")
	require.NoError(s, err)
	s.Cleanup(func() { _ = os.RemoveAll(dir) })
	_, port, _ := strings.Cut(s.nsp.Address(), ":")
	t.sidecar, err = play.StartSidecar(s.Context(), play.SidecarConfig{
		Namespace: s.namespace, Pod: name, PodUID: string(pod.UID), NSP: nspName + ":" + port, Dir: dir, Netns: netns, Args: args,
	})
	require.NoError(s, err)
	s.Cleanup(t.sidecar.Kill)
	t.tapa = play.NewAmbassador(play.AmbassadorConfig{
		Socket: t.sidecar.AmbassadorSocket(), Addresses: secondary(number), Refresh: time.Second,
		Dial: func(string) (*grpc.ClientConn, error) { return s.trench.Dial() },
		Hold: func(open bool, stream string) <-chan struct{} {
			if hold := t.hold.Load(); hold != nil {
				return (*hold)(open, stream)
			}
			return nil
		},
	})
	require.NoError(s, t.tapa.Start())
	s.Cleanup(t.tapa.Kill)
	conn, err := t.sidecar.Dial(t.sidecar.TapSocket())
	require.NoError(s, err)
	s.Cleanup(func() { _ = conn.Close() })
	t.app = ambassadorv1.NewTapClient(conn)
	return t
}

// wire makes a network namespace with the pod's secondary address and a way to the NSP, and returns its name.
func (t *target) wire() string {
	t.Helper()
	id := fmt.Sprintf("%d-%d", os.Getpid()%100000, netnsCount.Add(1))
	netns, dir := "nsp"+id, "/etc/netns/nsp"+id
	t.outside, t.hosts = "v"+id, filepath.Join(dir, "hosts")
	t.ip("netns add %s", netns)
	t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", netns).Run() })
	require.NoError(t, os.MkdirAll(dir, 0o750))
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	t.ip("link add %s type veth peer name eth0 netns %s", t.outside, netns)
	t.ip("addr add 10.213.%d.1/24 dev %s", t.number, t.outside)
	t.ip("link set %s up", t.outside)
	t.ip("-n %s addr add 10.213.%d.100/24 dev eth0", netns, t.number)
	t.ip("-n %s addr add %s dev eth0", netns, secondary(t.number)[0])
	t.ip("-n %s link set eth0 up", netns)
	t.ip("-n %s link set lo up", netns)
	t.resolve(1)
	return netns
}

func (t *target) ip(format string, args ...any) {
	t.Helper()
	line := fmt.Sprintf(format, args...)
	out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput()
	require.NoErrorf(t, err, "ip %s: %s", line, out)
}

// resolve has the name of the NSP mean another address, as a Service that was made again.
func (t *target) resolve(host int) {
	t.Helper()
	require.NoError(t, os.WriteFile(t.hosts, fmt.Appendf(nil, "10.213.%d.%d %s\n", t.number, host, nspName), 0o600))
}

// lists waits until the TAPA lists just these streams with their statuses.
func (t *target) lists(want map[string]string) {
	t.Helper()
	require.Eventuallyf(t, func() bool { return maps.Equal(want, t.tapa.Statuses()) }, patience, time.Millisecond,
		"want %v\n%s", want, t.tail())
}

func (t *target) tail() string {
	log := t.sidecar.Log()
	return fmt.Sprintf("have %v, the sidecar says:\n%s", t.tapa.Statuses(), log[max(0, len(log)-6000):])
}

func streamA(name string) *ambassadorv1.Stream {
	return tap.Stream(stream.Key{Trench: "trench-a", Conduit: "conduit-a", Name: name})
}

func (t *target) open(name string) {
	t.Helper()
	_, err := t.app.Open(t.within(), streamA(name), grpc.WaitForReady(true))
	require.NoError(t, err)
}

func (t *target) close(name string) {
	t.Helper()
	_, err := t.app.Close(t.within(), streamA(name), grpc.WaitForReady(true))
	require.NoError(t, err)
}

const openNow = "OPEN"

// A Service opens a stream in a pod that has an unmodified TAPA, and load balancers old and new send traffic there. Restarts of the
// TAPA, of the sidecar and of the NSP change nothing that lasts; the application keeps what it opened, whoever lets go first.
func TestSidecar(t *testing.T) {
	s := newRelayScene(t)
	lb := s.scene.lb()
	s.service("web", "stream-a")
	one := s.target("web-1", 1)
	one.lists(map[string]string{"stream-a": openNow})
	s.has(1)
	s.active(lb, "stream-a", "web-1")

	one.open("stream-a")
	one.open("stream-b")
	one.lists(map[string]string{"stream-a": openNow, "stream-b": openNow})
	one.tapa.Kill()
	require.NoError(t, one.tapa.Start())
	one.lists(map[string]string{"stream-a": openNow, "stream-b": openNow})

	one.sidecar.Kill()
	require.NoError(t, s.cluster.DeleteService(t.Context(), s.namespace, "web"))
	require.NoError(t, one.sidecar.Start())
	one.close("stream-b")
	one.lists(map[string]string{"stream-a": openNow})
	s.active(lb, "stream-a", "web-1") // The application holds it.

	s.service("web", "stream-a")
	s.service("web-b", "stream-b")
	one.lists(map[string]string{"stream-a": openNow, "stream-b": openNow})
	one.close("stream-a")
	for range 5 {
		require.NoError(t, s.nsp.Restart(t.Context()))
	}
	one.lists(map[string]string{"stream-a": openNow, "stream-b": openNow})
	one.open("stream-b")
	one.sidecar.Stop()
	require.Zero(t, one.sidecar.Process().ExitCode())
	one.lists(map[string]string{"stream-b": openNow})
	s.has()
	require.NoError(t, one.sidecar.Start())
	one.lists(map[string]string{"stream-a": openNow, "stream-b": openNow})
	s.active(lb, "stream-a", "web-1")
}

// The NSP's Service is made again with another address, and packets to the old one get lost. // D8, P9
func TestSidecarFindsTheNSPAgain(t *testing.T) {
	s := newRelayScene(t)
	s.service("web", "stream-a")
	one := s.target("web-1", 1)
	one.lists(map[string]string{"stream-a": openNow})
	one.ip("addr del 10.213.1.1/24 dev %s", one.outside)
	one.ip("addr add 10.213.1.2/24 dev %s", one.outside)
	one.resolve(2)
	s.service("web-b", "stream-b")
	began := time.Now()
	require.Eventually(t, func() bool { return one.tapa.Statuses()["stream-b"] == openNow }, time.Minute, 10*time.Millisecond, one.tail())
	require.Less(t, time.Since(began), 40*time.Second)
	require.Equal(t, openNow, one.tapa.Statuses()["stream-a"])
}

// Of three pods one waits for a place, says so, and gets it when another leaves. // D9
func TestSidecarWaitsForAPlace(t *testing.T) {
	s := newRelayScene(t)
	require.NoError(t, play.Configure(t.Context(), s.cluster.Client(), s.namespace, "trench-a", "conduit-a", map[string]int{"stream-a": 2}))
	s.service("web", "stream-a")
	one, two := s.target("web-1", 1), s.target("web-2", 2)
	one.lists(map[string]string{"stream-a": openNow})
	two.lists(map[string]string{"stream-a": openNow})
	three := s.target("web-3", 3)
	three.lists(map[string]string{"stream-a": "UNAVAILABLE"})
	require.Eventually(t, func() bool {
		st, ok := three.sidecar.Status(t.Context())
		return ok && len(st.Streams) == 1 && st.Streams[0].Status.String() == "UNAVAILABLE"
	}, patience, time.Millisecond, three.tail())
	require.Equal(t, grpc_health_v1.HealthCheckResponse_NOT_SERVING, three.health("Stream/trench-a/conduit-a/stream-a"))
	require.Equal(t, grpc_health_v1.HealthCheckResponse_SERVING, three.health("Readiness"), "the pod stays in service")
	one.sidecar.Stop()
	three.lists(map[string]string{"stream-a": openNow})
	s.has(2, 3)
}

func (t *target) health(service string) grpc_health_v1.HealthCheckResponse_ServingStatus {
	t.Helper()
	conn, err := t.sidecar.Dial(t.sidecar.HealthSocket())
	require.NoError(t, err)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	resp, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: service})
	require.NoError(t, err)
	return resp.GetStatus()
}
