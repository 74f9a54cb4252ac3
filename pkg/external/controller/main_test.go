package controller

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nordix/meridio-nsp/api/v1alpha1"
	"github.com/nordix/meridio-nsp/test/cluster"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(cluster.Shared(m)) }

const patience = 60 * time.Second

// scene is a namespace of a real cluster with the CRDs.
type scene struct {
	*testing.T
	cluster *cluster.Cluster
	client  client.Client
	ns      string
}

func newScene(t *testing.T) *scene {
	t.Helper()
	return newSceneOn(t, cluster.Get(t))
}

func newSceneOn(t *testing.T, c *cluster.Cluster) *scene {
	t.Helper()
	install(t, c)
	scheme := runtime.NewScheme()
	require.NoError(t, clientgoscheme.AddToScheme(scheme))
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	config := c.Config()
	http, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	t.Cleanup(http.CloseIdleConnections)
	cl, err := client.New(config, client.Options{Scheme: scheme, HTTPClient: http})
	require.NoError(t, err)
	return &scene{T: t, cluster: c, client: cl, ns: c.Namespace(t)}
}

func install(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	files, err := filepath.Glob("../../../deployments/helm/meridio-nsp/files/crds/*.yaml")
	require.NoError(t, err)
	var all bytes.Buffer
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		all.Write(text)
	}
	require.NoError(t, c.Apply(t.Context(), all.Bytes(), false))
	for _, plural := range []string{"externaltargets", "targetpools", "streampolicies"} {
		_, err := c.Kubectl(t.Context(), "wait", "--for=condition=Established", "--timeout=60s", "crd/"+plural+"."+v1alpha1.Group)
		require.NoError(t, err)
	}
}

// run runs a controller for the namespace until stop is called, or the test ends.
func (s *scene) run(providers map[string]grpc.ClientConnInterface, edit ...func(*rest.Config)) (stop func()) {
	return s.start([]string{s.ns}, providers, edit...)
}

// runIn runs one that watches these namespaces.
func (s *scene) runIn(namespaces ...string) { s.start(namespaces, nil) }

func (s *scene) start(namespaces []string, providers map[string]grpc.ClientConnInterface, edit ...func(*rest.Config)) (stop func()) {
	config := s.cluster.Config()
	for _, e := range edit {
		e(config)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.Context()))
	var running sync.WaitGroup
	running.Go(func() {
		err := Run(ctx, Config{REST: config, Namespace: s.ns, TargetNamespaces: namespaces, Providers: providers,
			Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
		if err != nil {
			s.Errorf("%v", err)
		}
	})
	stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	s.Cleanup(stop)
	return stop
}

func (s *scene) target(name string, source v1alpha1.Source, labels map[string]string) *v1alpha1.ExternalTarget {
	t := &v1alpha1.ExternalTarget{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: name, Labels: labels},
		Spec: v1alpha1.ExternalTargetSpec{Source: source, Ports: []v1alpha1.TargetPort{{Name: "web", Port: 8080}}}}
	require.NoError(s, s.client.Create(s.Context(), t))
	return t
}

func addresses(ips ...v1alpha1.Address) v1alpha1.Source {
	return v1alpha1.Source{Addresses: &v1alpha1.AddressSource{IPs: ips}}
}

var web = map[string]string{"app": "web"}

func (s *scene) service(name string) *corev1.Service {
	service, err := s.cluster.Service(s.Context(), cluster.ServiceConfig{Namespace: s.ns, Name: name, Selector: web,
		Labels: map[string]string{"service.kubernetes.io/service-proxy-name": "meridio-target-pool-service"}})
	require.NoError(s, err)
	return service
}

// slices are those of the Service that are ours.
func (s *scene) slices(service string) []discoveryv1.EndpointSlice {
	var list discoveryv1.EndpointSliceList
	require.NoError(s, s.client.List(s.Context(), &list, client.InNamespace(s.ns),
		client.MatchingLabels{discoveryv1.LabelServiceName: service, discoveryv1.LabelManagedBy: ManagedBy}))
	return list.Items
}

// addressesOf are the addresses in our slices of the Service, with + where ready, s where only serving.
func (s *scene) addressesOf(service string) string {
	var all []string
	for _, slice := range s.slices(service) {
		for _, e := range slice.Endpoints {
			mark := "-"
			if e.Conditions.Ready == nil || *e.Conditions.Ready {
				mark = "+"
			} else if *e.Conditions.Serving {
				mark = "s"
			}
			all = append(all, e.Addresses[0]+mark)
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func (s *scene) await(service, want string) {
	s.Helper()
	var got string
	require.Eventually(s, func() bool { got = s.addressesOf(service); return got == want }, patience, 10*time.Millisecond, "want %q", want)
}

// awaitCondition waits until a condition of the target has the reason.
func (s *scene) awaitCondition(name, kind, reason string) *v1alpha1.ExternalTarget {
	s.Helper()
	var t v1alpha1.ExternalTarget
	require.Eventually(s, func() bool {
		require.NoError(s, s.client.Get(s.Context(), client.ObjectKey{Namespace: s.ns, Name: name}, &t))
		return slices.ContainsFunc(t.Status.Conditions, func(c metav1.Condition) bool { return c.Type == kind && c.Reason == reason })
	}, patience, 10*time.Millisecond, "%s %s", kind, reason)
	return &t
}
