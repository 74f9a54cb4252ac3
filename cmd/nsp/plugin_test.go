package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"      //nolint:staticcheck // client-go still asks for these types
	"k8s.io/apimachinery/pkg/util/httpstream/spdy" //nolint:staticcheck // as above
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/nordix/meridio-nsp/pkg/pool"
)

// kubectl runs the plugin as kubectl does.
func kubectl(t *testing.T, args ...string) ran {
	t.Helper()
	return called(t, pluginName, args...)
}

func called(t *testing.T, name string, args ...string) ran {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code := execute(t.Context(), append([]string{"/usr/local/bin/" + name}, args...), &stdout, &stderr)
	return ran{code, stdout.String(), stderr.String()}
}

// fakeAPI is an API server with an NSP in namespace red, and a kubelet that forwards to whatever listens at nsp.
type fakeAPI struct {
	t   *testing.T
	nsp string
	// notReady is the pod of the NSP; forbidden refuses to forward.
	notReady, forbidden bool

	mu        sync.Mutex
	forwarded []string // the ports
	copying   sync.WaitGroup
}

// kubeconfig starts it.
func (f *fakeAPI) kubeconfig() string {
	h := http.NewServeMux()
	h.HandleFunc("GET /api/v1/namespaces/{ns}/services/nsp-service", f.service)
	h.HandleFunc("GET /api/v1/namespaces/{ns}/services", f.services)
	h.HandleFunc("GET /api/v1/namespaces/{ns}/pods", f.pods)
	h.HandleFunc("GET /apis/discovery.k8s.io/v1/namespaces/{ns}/endpointslices", answer(&discoveryv1.EndpointSliceList{}))
	h.HandleFunc("POST /api/v1/namespaces/red/pods/nsp-0/portforward", f.forward)
	h.HandleFunc("GET /api/v1/namespaces/red/pods/nsp-0/portforward", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no websockets here", http.StatusBadRequest)
	})
	s := httptest.NewServer(h)
	f.t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
		f.copying.Wait()
	})
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters["c"] = &clientcmdapi.Cluster{Server: s.URL}
	cfg.Contexts["red"] = &clientcmdapi.Context{Cluster: "c", Namespace: "red"}
	cfg.Contexts["blue"] = &clientcmdapi.Context{Cluster: "c", Namespace: "blue"}
	cfg.CurrentContext = "red"
	path := filepath.Join(f.t.TempDir(), "kubeconfig")
	require.NoError(f.t, clientcmd.WriteToFile(*cfg, path))
	return path
}

func answer(v any) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v)
	}
}

func (f *fakeAPI) service(w http.ResponseWriter, r *http.Request) {
	if r.PathValue("ns") != "red" {
		w.WriteHeader(http.StatusNotFound)
		answer(&metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound})(w, r)
		return
	}
	answer(&corev1.Service{Spec: corev1.ServiceSpec{
		Selector: map[string]string{"app": "nsp"}, Ports: []corev1.ServicePort{{Port: nspPort, TargetPort: intstr.FromString("grpc")}},
	}})(w, r)
}

// services has a pool in namespace blue whose stream is of namespace red.
func (f *fakeAPI) services(w http.ResponseWriter, r *http.Request) {
	list := &corev1.ServiceList{}
	if r.PathValue("ns") == "blue" {
		list.Items = []corev1.Service{{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "db", Labels: map[string]string{
			pool.LabelMarker: pool.MarkerValue, pool.LabelNamespace: "red",
		}}}}
	}
	answer(list)(w, r)
}

func (f *fakeAPI) pods(w http.ResponseWriter, r *http.Request) {
	list := &corev1.PodList{}
	if r.PathValue("ns") == "red" {
		ready := corev1.ConditionTrue
		if f.notReady {
			ready = corev1.ConditionFalse
		}
		list.Items = []corev1.Pod{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "red", Name: "nsp-0", Labels: map[string]string{"app": "nsp"}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "grpc", ContainerPort: 9999}}}}},
			Status:     corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}},
		}}
	}
	answer(list)(w, r)
}

// forward does what API server and kubelet do: each connection is a pair of streams, one for data and one for an error.
func (f *fakeAPI) forward(w http.ResponseWriter, r *http.Request) {
	if f.forbidden {
		http.Error(w, "pods/portforward is forbidden", http.StatusForbidden)
		return
	}
	if _, err := httpstream.Handshake(r, w, []string{"portforward.k8s.io"}); err != nil {
		return
	}
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, replied <-chan struct{}) error {
		if s.Headers().Get(corev1.StreamType) == corev1.StreamTypeError {
			return nil
		}
		f.mu.Lock()
		f.forwarded = append(f.forwarded, s.Headers().Get(corev1.PortHeader))
		f.mu.Unlock()
		f.copying.Go(func() {
			<-replied
			f.join(s)
		})
		return nil
	})
	if conn == nil {
		return
	}
	defer conn.Close()
	<-conn.CloseChan()
}

func (f *fakeAPI) join(s httpstream.Stream) {
	c, err := net.Dial("tcp", f.nsp)
	if err != nil {
		_ = s.Reset()
		return
	}
	f.copying.Go(func() {
		_, _ = io.Copy(c, s)
		_ = c.Close()
	})
	_, _ = io.Copy(s, c)
	_ = s.Close()
}

// The NSP is reached through the API server, in the namespace of the context, or in the one that the pools there name.
func TestPluginForwardsAPort(t *testing.T) {
	t.Setenv("KUBECONFIG", "/nowhere")
	f := &fakeAPI{t: t, nsp: serve(t, example())}
	kubeconfig := f.kubeconfig()
	r := kubectl(t, "pools", "--kubeconfig", kubeconfig)
	require.Zero(t, r.code, r.stderr)
	require.Contains(t, r.stdout, "web")
	require.NotContains(t, r.stdout, "blue", "the namespace of the context")
	require.Equal(t, []string{"9999"}, f.forwarded, "the port of the container")

	r = kubectl(t, "pools", "--kubeconfig", kubeconfig, "--context", "blue")
	require.Zero(t, r.code, r.stderr)
	require.Contains(t, r.stdout, "db")
	require.NotContains(t, r.stdout, "web")
	r = kubectl(t, "pools", "-A", "--kubeconfig", kubeconfig)
	require.Contains(t, r.stdout, "web")
	require.Contains(t, r.stdout, "db")
	r = kubectl(t, "pools", "web", "--kubeconfig", kubeconfig)
	require.Contains(t, r.stdout, "web-0", "a name needs no namespace")
	r = kubectl(t, "targets", "--kubeconfig", kubeconfig)
	require.Contains(t, r.stdout, "172.16.0.1/24")
	r = kubectl(t, "explain", "pod/nobody", "--kubeconfig", kubeconfig)
	require.Zero(t, r.code, r.stderr)
	require.Contains(t, r.stdout, "there is no pod nobody in namespace red")
}

func TestPluginFailures(t *testing.T) {
	t.Setenv("KUBECONFIG", "/nowhere")
	kubeconfig := (&fakeAPI{t: t}).kubeconfig()
	for name, tt := range map[string]struct {
		kubeconfig string
		args       []string
		says       string
	}{
		"no NSP":        {kubeconfig, []string{"--nsp-namespace", "green"}, "namespace green has no Service nsp-service"},
		"not ready":     {(&fakeAPI{t: t, notReady: true}).kubeconfig(), nil, "no pod of Service red/nsp-service is ready"},
		"forbidden":     {(&fakeAPI{t: t, forbidden: true}).kubeconfig(), nil, "pods/portforward"},
		"no kubeconfig": {"/nowhere", nil, "/nowhere"},
	} {
		t.Run(name, func(t *testing.T) {
			r := kubectl(t, append([]string{"pools", "--kubeconfig", tt.kubeconfig}, tt.args...)...)
			require.Equal(t, exitFailed, r.code)
			require.Contains(t, r.stderr, tt.says)
		})
	}
	address := serve(t, example())
	require.Zero(t, kubectl(t, "pools", "-A", "--nsp-address", address, "--kubeconfig", "/nowhere").code, "an address needs no API server")
	require.Contains(t, kubectl(t, "pools", "-A", "--nsp-address", "nsp.invalid:7778", "--kubeconfig", "/nowhere").stderr, "check --nsp-address")
}

func TestPluginHelpAndCompletion(t *testing.T) {
	t.Setenv("KUBECONFIG", os.DevNull)
	r := kubectl(t, "pools", "--help")
	require.Contains(t, r.stdout, "kubectl targetpool pools")
	require.NotContains(t, r.stdout, "--server")
	require.Contains(t, kubectl(t).stdout, "explain")
	require.Equal(t, exitUsage, kubectl(t, "namespace").code, "it runs nothing")
	t.Setenv("NSP_NSP_ADDRESS", serve(t, example()))
	r = called(t, pluginCompleteName, "explain", "")
	require.Contains(t, r.stdout, "service/")
	r = called(t, pluginCompleteName, "explain", "-n", "red", "pod/")
	require.True(t, strings.HasPrefix(r.stdout, "pod/web-0\npod/web-1\npod/web-2\n"), r.stdout)
}
