package controller

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	resolverv1 "github.com/nordix/meridio-nsp/api/resolver/v1"
	"github.com/nordix/meridio-nsp/api/v1alpha1"
	"github.com/nordix/meridio-nsp/pkg/external"
	"github.com/nordix/meridio-nsp/test/cluster"
)

func TestAddressesAndPodsInOneService(t *testing.T) {
	s := newScene(t)
	s.run(nil)
	service := s.service("web")
	pod, err := s.cluster.Pod(t.Context(), cluster.PodConfig{Namespace: s.ns, Name: "web-0", Labels: web, Ready: true})
	require.NoError(t, err)
	target := s.target("vm", addresses("192.0.2.1", "2001:db8::1"), web)
	s.await("web", "192.0.2.1+ 2001:db8::1+")
	for _, slice := range s.slices("web") {
		require.Len(t, slice.Endpoints, 1)
		ref := slice.Endpoints[0].TargetRef
		require.Equal(t, "ExternalTarget", ref.Kind)
		require.Equal(t, target.UID, ref.UID)
		require.Equal(t, "meridio-target-pool-service", slice.Labels["service.kubernetes.io/service-proxy-name"])
		require.True(t, metav1.IsControlledBy(&slice, service))
		require.EqualValues(t, 80, *slice.Ports[0].Port)
	}
	// A client that knows nothing of this finds both alike.
	require.Eventually(t, func() bool {
		var list discoveryv1.EndpointSliceList
		require.NoError(t, s.client.List(t.Context(), &list, client.InNamespace(s.ns), client.MatchingLabels{discoveryv1.LabelServiceName: "web"}))
		found := map[string]bool{}
		for _, slice := range list.Items {
			for _, e := range slice.Endpoints {
				found[e.Addresses[0]] = *e.Conditions.Ready
			}
		}
		return found["192.0.2.1"] && found["2001:db8::1"] && found[pod.Status.PodIP]
	}, patience, 10*time.Millisecond)
	got := s.awaitCondition("vm", v1alpha1.ConditionSelected, "Selected")
	require.EqualValues(t, 2, got.Status.ReadyAddresses)

	got.Labels = map[string]string{"app": "other"}
	require.NoError(t, s.client.Update(t.Context(), got))
	s.await("web", "")
	got = s.awaitCondition("vm", v1alpha1.ConditionSelected, "NotSelected")
	got.Labels = web
	require.NoError(t, s.client.Update(t.Context(), got))
	s.await("web", "192.0.2.1+ 2001:db8::1+")
	require.NoError(t, s.client.Delete(t.Context(), got))
	s.await("web", "")
}

func TestEndpointsStayInTheirSlices(t *testing.T) {
	s := newScene(t)
	s.run(nil)
	s.service("web")
	for i := range 3 {
		var ips []v1alpha1.Address
		for n := range 90 {
			ips = append(ips, v1alpha1.Address(fmt.Sprintf("10.%d.0.%d", i, n+1)))
		}
		s.target(fmt.Sprintf("vms-%d", i), addresses(ips...), web)
	}
	require.Eventually(t, func() bool { return strings.Count(s.addressesOf("web"), "+") == 270 }, patience, 20*time.Millisecond)
	before := map[string]string{}
	for _, slice := range s.slices("web") {
		require.LessOrEqual(t, len(slice.Endpoints), maxEndpoints)
		for _, e := range slice.Endpoints {
			before[e.Addresses[0]] = slice.Name
		}
	}
	require.NoError(t, s.client.Delete(t.Context(), &v1alpha1.ExternalTarget{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: "vms-0"}}))
	require.Eventually(t, func() bool { return strings.Count(s.addressesOf("web"), "+") == 180 }, patience, 20*time.Millisecond)
	for _, slice := range s.slices("web") {
		for _, e := range slice.Endpoints {
			require.Equal(t, before[e.Addresses[0]], slice.Name)
		}
	}
}

func TestSlicesOfOthersAreLeftAlone(t *testing.T) {
	s := newScene(t)
	s.service("web")
	foreign := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: "web-by-hand",
		Labels: map[string]string{discoveryv1.LabelServiceName: "web", discoveryv1.LabelManagedBy: "me"}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.9"}}}}
	require.NoError(t, s.client.Create(t.Context(), foreign))
	// Ours, of an earlier time: a Service that is gone.
	stale := foreign.DeepCopy()
	stale.ObjectMeta = metav1.ObjectMeta{Namespace: s.ns, Name: "web-stale",
		Labels: map[string]string{discoveryv1.LabelServiceName: "web", discoveryv1.LabelManagedBy: ManagedBy}}
	require.NoError(t, s.client.Create(t.Context(), stale))
	s.run(nil)
	s.target("vm", addresses("192.0.2.1"), web)
	s.await("web", "192.0.2.1+")
	var now discoveryv1.EndpointSlice
	require.NoError(t, s.client.Get(t.Context(), client.ObjectKeyFromObject(foreign), &now))
	require.Equal(t, foreign.ResourceVersion, now.ResourceVersion)
	// What is changed by somebody else is put right.
	mine := s.slices("web")[0]
	mine.Endpoints = nil
	require.NoError(t, s.client.Update(t.Context(), &mine))
	s.await("web", "192.0.2.1+")
}

func TestNamedPorts(t *testing.T) {
	s := newScene(t)
	s.run(nil)
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: "web"}, Spec: corev1.ServiceSpec{Selector: web,
		Ports: []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromString("web")}, {Name: "admin", Port: 81, TargetPort: intstr.FromString("admin")}}}}
	require.NoError(t, s.client.Create(t.Context(), service))
	s.target("vm", addresses("192.0.2.1"), web)
	s.await("web", "192.0.2.1+")
	ports := s.slices("web")[0].Ports
	require.Len(t, ports, 1)
	require.Equal(t, "http", *ports[0].Name)
	require.EqualValues(t, 8080, *ports[0].Port)
}

// failing fails every n-th write, before or after it is done.
type flaky struct {
	http.RoundTripper
	n atomic.Int32
}

func (f *flaky) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodGet {
		return f.RoundTripper.RoundTrip(r)
	}
	switch f.n.Add(1) % 4 {
	case 1:
		return nil, fmt.Errorf("cut before")
	case 3:
		answer, err := f.RoundTripper.RoundTrip(r)
		if err == nil {
			answer.Body.Close()
		}
		return nil, fmt.Errorf("cut after")
	}
	return f.RoundTripper.RoundTrip(r)
}

func TestFailedWritesAreMadeGood(t *testing.T) { // P24
	s := newScene(t)
	f := &flaky{}
	s.run(nil, func(c *rest.Config) {
		c.Wrap(func(rt http.RoundTripper) http.RoundTripper { f.RoundTripper = rt; return f })
	})
	s.service("web")
	var want []string
	for i := range 10 {
		ip := v1alpha1.Address(fmt.Sprintf("192.0.2.%d", 10+i))
		s.target(fmt.Sprintf("vm-%d", i), addresses(ip), web)
		want = append(want, string(ip)+"+")
	}
	s.await("web", strings.Join(want, " "))
	for i := range 10 {
		s.awaitCondition(fmt.Sprintf("vm-%d", i), v1alpha1.ConditionReady, "AddressReady")
	}
	require.Greater(t, f.n.Load(), int32(4))
}

// gate is a provider over a connection that is made in the process.
type gate struct {
	resolverv1.UnimplementedResolverServer
	answers chan *resolverv1.WatchResponse
}

func (g *gate) Watch(_ *resolverv1.WatchRequest, stream grpc.ServerStreamingServer[resolverv1.WatchResponse]) error {
	for {
		select {
		case <-stream.Context().Done():
			return nil
		case a := <-g.answers:
			if a == nil {
				return io.ErrUnexpectedEOF
			}
			if err := stream.Send(a); err != nil {
				return err
			}
		}
	}
}

func ready(addrs ...string) *resolverv1.WatchResponse {
	r := &resolverv1.WatchResponse{}
	for _, a := range addrs {
		r.Endpoints = append(r.Endpoints, &resolverv1.Endpoint{Address: a, Readiness: resolverv1.Readiness_READINESS_READY})
	}
	return r
}

func TestARestartChangesNothingBeforeItKnows(t *testing.T) {
	s := newScene(t)
	g := &gate{answers: make(chan *resolverv1.WatchResponse)}
	conns := map[string]grpc.ClientConnInterface{"azure": serve(t, g)}
	stop := s.run(conns)
	s.service("web")
	s.target("set", v1alpha1.Source{Provider: &v1alpha1.ProviderSource{Name: "azure", Locator: "/subscriptions/e3f0"}}, web)
	s.target("other", v1alpha1.Source{Provider: &v1alpha1.ProviderSource{Name: "aws", Locator: "x"}}, web)
	s.awaitCondition("other", v1alpha1.ConditionResolved, external.ReasonUnknownProvider)
	s.awaitCondition("set", v1alpha1.ConditionResolved, external.ReasonPending)
	g.answers <- ready("192.0.2.1", "192.0.2.2")
	s.await("web", "192.0.2.1+ 192.0.2.2+")
	stop()
	before := s.slices("web")[0].ResourceVersion
	s.run(conns)
	other := s.target("new", addresses("192.0.2.7"), nil) // it works, but is asked nothing of the other
	s.awaitCondition(other.Name, v1alpha1.ConditionResolved, external.ReasonResolved)
	require.Equal(t, before, s.slices("web")[0].ResourceVersion)
	g.answers <- nil // the provider fails: what it said to the process before is held
	s.awaitCondition("set", v1alpha1.ConditionResolved, external.ReasonProviderUnavailable)
	require.Equal(t, "192.0.2.1+ 192.0.2.2+", s.addressesOf("web"))
	g.answers <- ready("192.0.2.2")
	s.await("web", "192.0.2.2+")
}

func TestTargetPoolIsAService(t *testing.T) {
	s := newScene(t)
	s.run(nil)
	pool := &v1alpha1.TargetPool{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: "pool-a"}, Spec: v1alpha1.TargetPoolSpec{
		Stream:   v1alpha1.StreamReference{Trench: "trench-a", Conduit: "conduit-a", Stream: "stream-a"},
		Selector: map[string]v1alpha1.LabelValue{"app": "web"}, Draining: "keep", PanicThreshold: new(int32(0))}}
	require.NoError(t, s.client.Create(t.Context(), pool))
	s.target("vm", addresses("192.0.2.1"), web)
	s.await("pool-a", "192.0.2.1+")
	var service corev1.Service
	key := client.ObjectKeyFromObject(pool)
	get := func() *corev1.Service {
		require.NoError(t, s.client.Get(t.Context(), key, &service))
		return &service
	}
	require.Equal(t, "stream-a", get().Labels["meridio.nordix.org/stream"])
	require.Equal(t, "TargetPool/pool-a", service.Annotations[AnnotationMadeFor])
	require.Equal(t, "keep", service.Annotations["meridio.nordix.org/draining"])
	require.Equal(t, "0", service.Annotations["meridio.nordix.org/panic-threshold"])

	require.Eventually(t, func() bool {
		require.NoError(t, s.client.Get(t.Context(), key, pool))
		pool.Spec.Stream.Stream, pool.Spec.Draining = "stream-b", ""
		return s.client.Update(t.Context(), pool) == nil
	}, patience, 10*time.Millisecond)
	require.Eventually(t, func() bool {
		_, kept := get().Annotations["meridio.nordix.org/draining"]
		return service.Labels["meridio.nordix.org/stream"] == "stream-b" && !kept
	}, patience, 10*time.Millisecond)
	require.NoError(t, s.client.Delete(t.Context(), &service)) // it comes back
	require.Eventually(t, func() bool {
		var again corev1.Service
		return s.client.Get(t.Context(), key, &again) == nil && again.UID != service.UID
	}, patience, 10*time.Millisecond)

	s.service("taken")
	pool2 := &v1alpha1.TargetPool{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: "taken"}, Spec: pool.Spec}
	require.NoError(t, s.client.Create(t.Context(), pool2))
	require.Eventually(t, func() bool {
		require.NoError(t, s.client.Get(t.Context(), client.ObjectKeyFromObject(pool2), pool2))
		return len(pool2.Status.Conditions) == 1 && pool2.Status.Conditions[0].Reason == "ServiceNameTaken"
	}, patience, 10*time.Millisecond)

	require.NoError(t, s.client.Delete(t.Context(), pool))
	require.Eventually(t, func() bool {
		return client.IgnoreNotFound(s.client.Get(t.Context(), key, &service)) == nil &&
			s.client.Get(t.Context(), key, &service) != nil
	}, patience, 10*time.Millisecond)
}

func TestAnotherCluster(t *testing.T) {
	s := newScene(t)
	east, err := cluster.Start(t.Context(), cluster.Config{})
	require.NoError(t, err)
	t.Cleanup(east.Stop)
	ns := east.Namespace(t)
	_, err = east.Service(t.Context(), cluster.ServiceConfig{Namespace: ns, Name: "db", Selector: web})
	require.NoError(t, err)
	for i := range 2 {
		_, err := east.Pod(t.Context(), cluster.PodConfig{Namespace: ns, Name: fmt.Sprintf("db-%d", i), Labels: web, Ready: true,
			IPs: []string{fmt.Sprintf("10.9.0.%d", i+1)}})
		require.NoError(t, err)
	}
	s.run(nil)
	s.service("web")
	source := v1alpha1.Source{Kubernetes: &v1alpha1.KubernetesSource{KubeconfigSecret: v1alpha1.SecretKey{Name: "east"},
		Namespace: v1alpha1.NamespaceName(ns), Service: "db"}}
	s.target("east", source, web)
	got := s.awaitCondition("east", v1alpha1.ConditionResolved, external.ReasonSecretUnreadable)
	kubeconfig, err := os.ReadFile(east.Kubeconfig())
	require.NoError(t, err)
	require.NoError(t, s.client.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: "east"},
		Data: map[string][]byte{"kubeconfig": kubeconfig}}))
	got.Labels["poke"] = "it" // the next look would be in a minute
	require.NoError(t, s.client.Update(t.Context(), got))
	s.await("web", "10.9.0.1+ 10.9.0.2+")

	require.NoError(t, east.StopAPIServer())
	got = s.awaitCondition("east", v1alpha1.ConditionResolved, external.ReasonClusterUnreachable)
	require.EqualValues(t, 2, got.Status.ReadyAddresses)
	require.Equal(t, "10.9.0.1+ 10.9.0.2+", s.addressesOf("web"))
	require.NoError(t, east.StartAPIServer(t.Context()))
	s.awaitCondition("east", v1alpha1.ConditionResolved, external.ReasonResolved)
	require.NoError(t, east.Finish(t.Context(), ns, "db-0"))
	s.await("web", "10.9.0.2+")
	_, err = east.SetReady(t.Context(), ns, "db-1", false)
	require.NoError(t, err)
	s.await("web", "10.9.0.2-")
}

// Nobody gives another cluster the name of this one.
func TestAnotherClusterHasAnotherName(t *testing.T) {
	s := &sources{cluster: "west"}
	resolve := func(cluster string) string {
		_, open := s.kubernetes(t.Context(), "app", &v1alpha1.KubernetesSource{Cluster: cluster, Namespace: "app", Service: "db"})
		source, release := open()
		defer release()
		failed, ok := source.(failing)
		require.True(t, ok)
		return failed.Failure.Reason + ": " + failed.Failure.Message
	}
	require.Equal(t, "InvalidSource: Cluster west is this one; give the other cluster its own name.", resolve("west"))
	s.reader = fake.NewClientBuilder().Build()
	require.Contains(t, resolve("east"), "SecretUnreadable")
	s.cluster = ""
	require.Contains(t, resolve("west"), "SecretUnreadable")
}

// serve serves the provider on a unix socket and returns a connection to it.
func serve(t *testing.T, provider resolverv1.ResolverServer) *grpc.ClientConn {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	require.NoError(t, err)
	server := grpc.NewServer()
	resolverv1.RegisterResolverServer(server, provider)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close(); server.Stop(); serving.Wait() })
	return conn
}
