package e2e

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	"github.com/nordix/meridio-nsp/test/cluster"
	"github.com/nordix/meridio-nsp/test/play"
)

// record has TestRecordedMetrics write what test/rules evaluates the dashboards against, rather than compare.
var record = flag.Bool("record-metrics", false, "write the metrics that the tests of dashboards use")

const (
	recordings = "../rules/testdata/recorded"
	monitoring = "../../deployments/helm/meridio-nsp/files"
	// lbMetrics is inside the network namespace of the load balancer.
	lbMetrics = "127.0.0.1:2223"
)

// metricsScene has one of every process, and everything going on that the dashboards show.
type metricsScene struct {
	*lbScene
	sidecarMetrics string
	events         int
}

func newMetricsScene(t *testing.T) *metricsScene {
	s := &metricsScene{lbScene: newLBScene(t)}
	s.service("web", "stream-a")
	s.podWithTarget(11)
	s.podWithTarget(12)
	s.eventually("11 12")
	_, err := s.cluster.Pod(t.Context(), cluster.PodConfig{ // ready, and nobody registers for it
		Namespace: s.namespace, Name: "idle", Labels: map[string]string{"app": "web"}, Ready: true,
	})
	require.NoError(t, err)
	s.startSidecar()
	return s
}

// startSidecar runs the sidecar of a pod of another stream with a TAPA, both on this machine's network.
func (s *metricsScene) startSidecar() {
	_, err := s.cluster.Service(s.Context(), cluster.ServiceConfig{
		Namespace: s.namespace, Name: "other", Labels: play.PoolLabels("trench-a", "conduit-a", "stream-b"),
		Selector: map[string]string{"app": "other"},
	})
	require.NoError(s, err)
	pod, err := s.cluster.Pod(s.Context(), cluster.PodConfig{
		Namespace: s.namespace, Name: "other-13", Labels: map[string]string{"app": "other"}, Ready: true,
	})
	require.NoError(s, err)
	dir, err := os.MkdirTemp("", "tapa")
	require.NoError(s, err)
	s.Cleanup(func() { _ = os.RemoveAll(dir) })
	port, err := cluster.FreePort()
	require.NoError(s, err)
	s.sidecarMetrics = fmt.Sprintf("127.0.0.1:%d", port)
	sidecar, err := play.StartSidecar(s.Context(), play.SidecarConfig{
		Namespace: s.namespace, Pod: "other-13", PodUID: string(pod.UID), NSP: s.nsp.Address(), Dir: dir,
		Args: []string{"--metrics-address=" + s.sidecarMetrics},
	})
	require.NoError(s, err)
	s.Cleanup(sidecar.Kill)
	tapa := play.NewAmbassador(play.AmbassadorConfig{Socket: sidecar.AmbassadorSocket(), Addresses: secondary(13),
		Dial: func(string) (*grpc.ClientConn, error) { return s.trench.Dial() },
	})
	require.NoError(s, tapa.Start())
	s.Cleanup(tapa.Kill)
	_, err = s.scene.lb().WaitFor(s.within(), func(lb *play.LB) bool { return len(lb.Active("stream-b")) == 1 })
	require.NoError(s, err)
}

// stir has one of everything happen: readiness turns, a target comes that is no member's, a caller is refused, a packet is dropped.
func (s *metricsScene) stir() {
	s.turn("web-11", false)
	s.eventually("12")
	s.turn("web-11", true)
	s.eventually("11 12")
	s.has(11, 12)

	s.events++
	conn, err := s.trench.Dial()
	require.NoError(s, err)
	defer conn.Close()
	_, err = nspv1.NewTargetRegistryClient(conn).Register(s.within(), &nspv1.Target{
		Ips: []string{fmt.Sprintf("172.16.9.%d/24", s.events)}, Stream: legacyStreamA(), Status: nspv1.Target_DISABLED,
	})
	require.NoError(s, err)

	elsewhere := legacyStreamA()
	elsewhere.Conduit.Trench.Name = "trench-b"
	_, err = nspv1.NewTargetRegistryClient(conn).Register(s.within(), &nspv1.Target{Ips: secondary(99), Stream: elsewhere})
	require.Equal(s, codes.PermissionDenied, status.Code(err), "%v", err)

	require.NoError(s, s.lbScene.client.Do(func() error { // to a port that no flow takes
		c, err := net.Dial("udp", "20.0.0.1:9")
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte("x"))
		return err
	}))
}

// scrape is what each process says, by its name: only the metrics that dashboards and alerts use, and the namespace as "red".
func (s *metricsScene) scrape(used map[string]bool) map[string]string {
	own := func(addr string) func() (net.Conn, error) {
		return func() (net.Conn, error) { return net.Dial("tcp", addr) }
	}
	url := func(u string) string { return strings.TrimSuffix(strings.TrimPrefix(u, "http://"), "/metrics") }
	all := map[string]string{}
	for process, dial := range map[string]func() (net.Conn, error){
		"namespace": own(url(s.nsp.MetricsURL())),
		"trench":    own(url(s.trench.MetricsURL())),
		"tapa":      own(s.sidecarMetrics),
		"stateless-lb": func() (c net.Conn, err error) {
			err = s.router.Do(func() (err error) { c, err = net.Dial("tcp", lbMetrics); return err })
			return c, err
		},
	} {
		var lines []string
		scanner := bufio.NewScanner(bytes.NewReader(s.get(dial)))
		for scanner.Scan() {
			if name := regexp.MustCompile(`^\w+`).FindString(scanner.Text()); used[name] {
				lines = append(lines, strings.ReplaceAll(scanner.Text(), s.namespace, "red"))
			}
		}
		require.NoError(s, scanner.Err())
		all[process] = strings.Join(lines, "\n") + "\n"
	}
	return all
}

func (s *metricsScene) get(dial func() (net.Conn, error)) []byte {
	conn, err := dial()
	require.NoError(s, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "GET /metrics HTTP/1.0\r\n\r\n")
	require.NoError(s, err)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(s, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(s, err)
	require.Equal(s, http.StatusOK, resp.StatusCode)
	return body
}

// usedMetrics are those that the dashboards and alerts of the chart name.
func usedMetrics(t *testing.T) map[string]bool {
	used := map[string]bool{}
	for _, pattern := range []string{"dashboards/*.json", "rules/*.yaml"} {
		files, err := filepath.Glob(filepath.Join(monitoring, pattern))
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, path := range files {
			data, err := os.ReadFile(path)
			require.NoError(t, err)
			for _, name := range regexp.MustCompile(`\b(nsp|tapa|stateless_lb)_\w+`).FindAllString(string(data), -1) {
				used[name] = true
			}
		}
	}
	return used
}

// shapes are the metrics of a scrape with the names of their labels: what queries rely on.
func shapes(scrape string) []string {
	var all []string
	for line := range strings.Lines(scrape) {
		name := regexp.MustCompile(`^\w+`).FindString(line)
		for _, label := range regexp.MustCompile(`(\w+)="`).FindAllStringSubmatch(line, -1) {
			name += " " + label[1]
		}
		all = append(all, name)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// The metrics that the dashboards are tested with are those that the processes have. With -record-metrics they are written.
func TestRecordedMetrics(t *testing.T) {
	s := newMetricsScene(t)
	used := usedMetrics(t)
	for _, moment := range []string{"1", "2"} {
		s.stir()
		for process, now := range s.scrape(used) {
			path := filepath.Join(recordings, process+"."+moment+".prom")
			if *record {
				require.NoError(t, os.MkdirAll(recordings, 0o750))
				require.NoError(t, os.WriteFile(path, []byte(now), 0o600))
				continue
			}
			recorded, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, shapes(string(recorded)), shapes(now),
				"%s is of another version: go test -run TestRecordedMetrics ./test/e2e -args -record-metrics", path)
		}
	}
}
