package controller

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nordix/meridio-nsp/api/v1alpha1"
	"github.com/nordix/meridio-nsp/test/cluster"
)

// tick is how often what must come about is looked for.
const tick = 20 * time.Millisecond

func cidr(text string) v1alpha1.PolicySource { return v1alpha1.PolicySource{CIDR: text} }

func fromTarget(namespace, name string) v1alpha1.PolicySource {
	return v1alpha1.PolicySource{ExternalTarget: &v1alpha1.ObjectReference{Namespace: v1alpha1.NamespaceName(namespace), Name: v1alpha1.ObjectName(name)}}
}

func fromService(namespace, name string) v1alpha1.PolicySource {
	return v1alpha1.PolicySource{Service: &v1alpha1.ObjectReference{Namespace: v1alpha1.NamespaceName(namespace), Name: v1alpha1.ObjectName(name)}}
}

func (s *scene) policy(name string, sources ...v1alpha1.PolicySource) {
	s.Helper()
	p := &v1alpha1.StreamPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: name}, Spec: v1alpha1.StreamPolicySpec{
		Stream: v1alpha1.LocalStreamReference{Trench: "t", Conduit: "c", Stream: "s"}, Sources: sources}}
	require.NoError(s, s.client.Create(s.Context(), p))
}

func (s *scene) getPolicy(name string) *v1alpha1.StreamPolicy {
	var p v1alpha1.StreamPolicy
	require.NoError(s, s.client.Get(s.Context(), client.ObjectKey{Namespace: s.ns, Name: name}, &p))
	return &p
}

// resolves waits until the status has the prefixes, and the condition Resolved the reason.
func (s *scene) resolves(name, prefixes, reason string) *v1alpha1.StreamPolicy {
	s.Helper()
	var p *v1alpha1.StreamPolicy
	require.Eventually(s, func() bool {
		p = s.getPolicy(name)
		resolved := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionResolved)
		return spelled(p) == prefixes && resolved != nil && resolved.Reason == reason && resolved.ObservedGeneration == p.Generation
	}, patience, tick, "want %q %s, have %+v", prefixes, reason, &p)
	return p
}

// change changes the policy as it is then.
func (s *scene) change(name string, edit func(*v1alpha1.StreamPolicySpec)) {
	s.Helper()
	require.NoError(s, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		p := s.getPolicy(name)
		edit(&p.Spec)
		return s.client.Update(s.Context(), p)
	}))
}

func (s *scene) adds(name string, more ...v1alpha1.PolicySource) {
	s.Helper()
	s.change(name, func(spec *v1alpha1.StreamPolicySpec) { spec.Sources = append(spec.Sources, more...) })
}

func spelled(p *v1alpha1.StreamPolicy) string {
	var all []string
	for _, prefix := range p.Status.Prefixes {
		all = append(all, string(prefix))
	}
	return strings.Join(all, " ")
}

func accepted(p *v1alpha1.StreamPolicy) string {
	if c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionAccepted); c != nil {
		return string(c.Status) + " " + c.Reason
	}
	return ""
}

// slice lists endpoints for a Service, ready ones and others.
func (s *scene) slice(namespace, name, service string, addresses ...string) {
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name,
		Labels: map[string]string{discoveryv1.LabelServiceName: service, discoveryv1.LabelManagedBy: "me"}}, AddressType: discoveryv1.AddressTypeIPv4}
	for i, a := range addresses {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}, Conditions: discoveryv1.EndpointConditions{Ready: new(i%2 == 0)}})
	}
	require.NoError(s, s.client.Create(s.Context(), slice))
}

func (s *scene) plainService(namespace, name string) *corev1.Service {
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Ports: []corev1.ServicePort{{Port: 80}}}}
	require.NoError(s, s.client.Create(s.Context(), service))
	return service
}

// The sources of a policy are followed as they change, each kind of them.
func TestPolicyFollowsItsSources(t *testing.T) {
	s := newScene(t)
	s.run(nil)
	service := s.plainService(s.ns, "clients")
	s.slice(s.ns, "clients-1", "clients", "10.0.0.4", "10.0.0.5")
	s.target("vm", addresses("192.0.2.1", "2001:db8::1"), nil)
	s.policy("p", cidr("198.51.100.0/25"), cidr("198.51.100.128/25"), fromService("", "clients"), fromTarget("", "vm"))
	p := s.resolves("p", "10.0.0.4/31 192.0.2.1/32 198.51.100.0/24 2001:db8::1/128", "Resolved")
	require.EqualValues(t, 4, p.Status.TotalPrefixes)
	require.Equal(t, "True InForce", accepted(p))

	s.slice(s.ns, "clients-2", "clients", "10.0.0.7")
	s.resolves("p", "10.0.0.4/31 10.0.0.7/32 192.0.2.1/32 198.51.100.0/24 2001:db8::1/128", "Resolved")
	require.NoError(t, s.client.DeleteAllOf(t.Context(), &discoveryv1.EndpointSlice{}, client.InNamespace(s.ns), client.MatchingLabels{discoveryv1.LabelServiceName: "clients"}))
	p = s.resolves("p", "192.0.2.1/32 198.51.100.0/24 2001:db8::1/128", "NoAddresses")
	require.Contains(t, meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionResolved).Message, "Service "+s.ns+"/clients")
	require.NoError(t, s.client.Delete(t.Context(), service))
	s.resolves("p", "192.0.2.1/32 198.51.100.0/24 2001:db8::1/128", "NotFound")
	require.NoError(t, s.client.Delete(t.Context(), &v1alpha1.ExternalTarget{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: "vm"}}))
	s.resolves("p", "198.51.100.0/24", "NotFound")
	s.change("p", func(spec *v1alpha1.StreamPolicySpec) {
		spec.Sources = []v1alpha1.PolicySource{fromService("", "clients")}
	})
	p = s.resolves("p", "", "NotFound")
	require.Equal(t, "True InForce", accepted(p), "a source that is nothing lets nobody in")

	p.Spec.Stream.Stream = "other"
	require.ErrorContains(t, s.client.Update(t.Context(), p), "a policy stays with its stream")
	out, err := s.cluster.Kubectl(t.Context(), "get", "spol", "-n", s.ns, "p", "--no-headers")
	require.NoError(t, err)
	require.Equal(t, []string{"p", "t", "c", "s", "0", "True"}, strings.Fields(string(out))[:6])
}

// A policy with a source that was never read is not in force; one that is in force keeps what was known.
func TestPolicyWaitsForItsSources(t *testing.T) {
	s := newScene(t)
	pending := func(name string) {
		target := &v1alpha1.ExternalTarget{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: name}, Spec: v1alpha1.ExternalTargetSpec{
			Source: v1alpha1.Source{DNS: &v1alpha1.DNSSource{Name: "a.example.", Resolvers: []v1alpha1.Resolver{"192.0.2.53"}}}}}
		require.NoError(t, s.client.Create(t.Context(), target)) // nobody answers there
	}
	s.run(nil)
	pending("slow")
	s.policy("p", cidr("198.51.100.0/24"), fromTarget("", "slow"))
	p := s.resolves("p", "", "Pending")
	require.Equal(t, "Unknown Pending", accepted(p))

	s.change("p", func(spec *v1alpha1.StreamPolicySpec) { spec.Sources = spec.Sources[:1] })
	p = s.resolves("p", "198.51.100.0/24", "Resolved")
	require.Equal(t, "True InForce", accepted(p))
	pending("slower")
	s.adds("p", cidr("203.0.113.0/24"), fromTarget("", "slower"))
	p = s.resolves("p", "198.51.100.0/24 203.0.113.0/24", "Pending")
	require.Equal(t, "True InForce", accepted(p), "it was in force before")
}

// shutter keeps the controller from EndpointSlices, as an API server does that is away.
type shutter struct {
	http.RoundTripper
	shut atomic.Bool
}

func (g *shutter) RoundTrip(r *http.Request) (*http.Response, error) {
	if g.shut.Load() && strings.Contains(r.URL.RawQuery, "labelSelector=kubernetes.io%2Fservice-name%3D") {
		return nil, fmt.Errorf("connection refused")
	}
	return g.RoundTripper.RoundTrip(r)
}

// A controller that starts while endpoints cannot be read changes nothing of what was known; the owner of a policy can.
func TestRestartedControllerKeepsWhatWasKnown(t *testing.T) {
	s := newScene(t)
	stop := s.run(nil)
	s.plainService(s.ns, "clients")
	s.slice(s.ns, "clients-1", "clients", "10.0.0.4")
	s.target("vm", addresses("192.0.2.1"), nil)
	s.policy("p", fromService("", "clients"), fromTarget("", "vm"))
	s.resolves("p", "10.0.0.4/32 192.0.2.1/32", "Resolved")
	stop()

	var g shutter
	g.shut.Store(true)
	s.run(nil, func(c *rest.Config) {
		c.Wrap(func(rt http.RoundTripper) http.RoundTripper { g.RoundTripper = rt; return &g })
	})
	s.resolves("p", "10.0.0.4/32 192.0.2.1/32", "Pending")
	require.NoError(t, s.client.Delete(t.Context(), &v1alpha1.ExternalTarget{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: "vm"}}))
	s.resolves("p", "10.0.0.4/32 192.0.2.1/32", "Pending")
	s.adds("p", cidr("203.0.113.0/24"))
	s.resolves("p", "203.0.113.0/24", "Pending")
	g.shut.Store(false)
	s.resolves("p", "10.0.0.4/32 203.0.113.0/24", "NotFound")
}

// An object of another namespace counts once it agrees, where the controller watches that namespace.
func TestSourcesOfOtherNamespacesHaveToAgree(t *testing.T) {
	s := newScene(t)
	other, unwatched := s.cluster.Namespace(t), s.cluster.Namespace(t)
	s.runIn(s.ns, other)
	service := s.plainService(other, "clients")
	s.slice(other, "clients-1", "clients", "10.0.0.4")
	s.plainService(unwatched, "clients")
	s.slice(unwatched, "clients-1", "clients", "10.0.0.9")
	s.policy("p", fromService(other, "clients"), fromService(unwatched, "clients"), fromService(other, "missing"), fromTarget(other, "vm"))
	p := s.resolves("p", "", "NotPermitted")
	message := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionResolved).Message
	for _, name := range []string{other + "/clients", unwatched + "/clients (the controller does not watch", other + "/missing (it is not there, or", other + "/vm"} {
		require.Contains(t, message, name)
	}
	agree := func(object client.Object, value string) {
		object.SetAnnotations(map[string]string{AnnotationPolicyNamespaces: value})
		require.NoError(t, s.client.Update(t.Context(), object))
	}
	agree(service, "blue, "+s.ns)
	s.resolves("p", "10.0.0.4/32", "NotPermitted")
	target := &v1alpha1.ExternalTarget{ObjectMeta: metav1.ObjectMeta{Namespace: other, Name: "vm", Annotations: map[string]string{AnnotationPolicyNamespaces: s.ns}},
		Spec: v1alpha1.ExternalTargetSpec{Source: addresses("192.0.2.1")}}
	require.NoError(t, s.client.Create(t.Context(), target))
	s.resolves("p", "10.0.0.4/32 192.0.2.1/32", "NotPermitted")
	require.NoError(t, s.client.Get(t.Context(), client.ObjectKeyFromObject(service), service))
	agree(service, "blue")
	s.resolves("p", "192.0.2.1/32", "NotPermitted")
}

// More than the status takes lets nobody in, and says so; neighbours count as one.
func TestTooManyPrefixes(t *testing.T) {
	s := newScene(t)
	s.run(nil)
	s.plainService(s.ns, "clients")
	for i := range 11 {
		var all []string
		for n := range 100 {
			all = append(all, fmt.Sprintf("10.0.%d.%d", i, 2*n))
		}
		s.slice(s.ns, fmt.Sprint("clients-", i), "clients", all...)
	}
	s.policy("p", fromService("", "clients"))
	p := s.resolves("p", "", "TooManyPrefixes")
	require.EqualValues(t, 1100, p.Status.TotalPrefixes)
	require.Equal(t, "True InForce", accepted(p))
	require.NoError(t, s.client.Delete(t.Context(), &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: "clients-10"}}))
	require.Eventually(t, func() bool { return len(s.getPolicy("p").Status.Prefixes) == 1000 }, patience, tick)
	s.adds("p", cidr("10.0.0.0/21"))
	require.Eventually(t, func() bool { p = s.getPolicy("p"); return len(p.Status.Prefixes) == 201 }, patience, tick)
	require.True(t, slices.Contains(p.Status.Prefixes, "10.0.0.0/21"))
}

// Watches of endpoints end with the last policy that names the Service.
func TestServicesAreFollowedWhileNamed(t *testing.T) {
	c := cluster.Get(t)
	s := newSceneOn(t, c)
	e := newEndpoints(t.Context())
	e.client = c.Client()
	key := func(name string) types.NamespacedName { return types.NamespacedName{Namespace: s.ns, Name: name} }
	e.follow(key("a"), []types.NamespacedName{key("x"), key("y")})
	e.follow(key("b"), []types.NamespacedName{key("y")})
	require.Eventually(t, func() bool { return e.state(key("x")) != nil && e.state(key("y")) != nil }, patience, tick)
	e.follow(key("a"), nil)
	require.Nil(t, e.state(key("x")))
	require.NotNil(t, e.state(key("y")))
	e.follow(key("b"), nil)
	require.Empty(t, e.running)
	require.Empty(t, e.named)
	e.ended.Wait()
}
