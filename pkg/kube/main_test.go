package kube

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/pool"
	"github.com/nordix/meridio-nsp/test/cluster"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(cluster.Shared(m)) }

const (
	patience = 60 * time.Second
	tick     = 20 * time.Millisecond
	account  = "nsp"
)

// The permissions that doc.go states, one rule a line.
var (
	readServices = rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"services"}, Verbs: []string{"get", "list", "watch"}}
	readSlices   = rbacv1.PolicyRule{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: []string{"list", "watch"}}
	writeStatus  = rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"services/status"}, Verbs: []string{"patch"}}
	writeEvents  = rbacv1.PolicyRule{APIGroups: []string{"events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}}
)

func readConfig(trench string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"watch"},
		ResourceNames: []string{"meridio-configuration-" + trench}}
}

// env is a namespace of its own in a real cluster, and a client that may do there what it was granted, nothing else.
type env struct {
	cluster *cluster.Cluster
	admin   kubernetes.Interface
	ns      string
	client  kubernetes.Interface
	gate    *gate
}

func newEnv(t *testing.T, rules ...rbacv1.PolicyRule) *env {
	t.Helper()
	c := cluster.Get(t)
	e := &env{cluster: c, admin: c.Client(), ns: c.Namespace(t), gate: &gate{}}
	config, err := c.ServiceAccountConfig(t.Context(), e.ns, account)
	require.NoError(t, err)
	config.Dial = e.gate.dial
	config.QPS = -1
	e.client, err = kubernetes.NewForConfig(config)
	require.NoError(t, err)
	t.Cleanup(func() { e.gate.set(false) }) // idle connections
	e.grant(t, e.ns, rules...)
	return e
}

// grant replaces what the account may do in the namespace.
func (e *env) grant(t *testing.T, ns string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: account}, Rules: rules}
	_, err := e.admin.RbacV1().Roles(ns).Update(t.Context(), role, metav1.UpdateOptions{}) // makes it if need be
	require.NoError(t, err)
	_, err = e.admin.RbacV1().RoleBindings(ns).Update(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: account},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: account},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: e.ns, Name: account}},
	}, metav1.UpdateOptions{})
	require.NoError(t, err)
	e.awaitAllowed(t, ns, rules)
}

// awaitAllowed waits until the API server knows of a Role.
func (e *env) awaitAllowed(t *testing.T, ns string, rules []rbacv1.PolicyRule) {
	t.Helper()
	for _, rule := range rules {
		resource, sub, _ := strings.Cut(rule.Resources[0], "/")
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: ns, Group: rule.APIGroups[0], Resource: resource,
				Subresource: sub, Verb: rule.Verbs[0], Name: strings.Join(rule.ResourceNames, "")}}}
		require.Eventually(t, func() bool {
			r, err := e.client.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
			return err == nil && r.Status.Allowed
		}, patience, tick)
	}
}

func poolLabels() map[string]string {
	return map[string]string{pool.LabelMarker: pool.MarkerValue,
		pool.LabelTrench: "trench-a", pool.LabelConduit: "conduit-a", pool.LabelStream: "stream-a", "app": "ignored"}
}

func (e *env) service(t *testing.T, name string) *corev1.Service {
	t.Helper()
	s, err := e.cluster.Service(t.Context(), cluster.ServiceConfig{Namespace: e.ns, Name: name, Labels: poolLabels()})
	require.NoError(t, err)
	return s
}

// slice makes one by hand, with one external address.
func (e *env) slice(t *testing.T, ns, name, service string) *discoveryv1.EndpointSlice {
	t.Helper()
	s, err := e.admin.DiscoveryV1().EndpointSlices(ns).Create(t.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			pool.LabelMarker: pool.MarkerValue, discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.1"}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	return s
}

// relabel sets or, with "null", removes the marker of a Service.
func (e *env) relabel(t *testing.T, name, marker string) {
	t.Helper()
	if marker != "null" {
		marker = fmt.Sprintf("%q", marker)
	}
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, pool.LabelMarker, marker)
	_, err := e.admin.CoreV1().Services(e.ns).Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	require.NoError(t, err)
}

// run runs something until the test ends, and waits for its end.
func run(t *testing.T, f func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			require.NoError(t, err)
		case <-time.After(patience):
			t.Error("Run does not end with its context")
		}
	})
	t.Cleanup(stop)
	return stop
}

// sink records events.
type sink struct {
	mu     sync.Mutex
	events []engine.Event
}

func (s *sink) Post(events ...engine.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, events...)
}

func (s *sink) all() []engine.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]engine.Event(nil), s.events...)
}

// take waits for n events beyond those taken before, and returns exactly these.
func (s *sink) take(t *testing.T, n int) []engine.Event {
	t.Helper()
	require.Eventually(t, func() bool { return len(s.all()) >= n }, patience, tick, "waiting for %d events", n)
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.events
	s.events = nil
	require.Len(t, taken, n)
	return taken
}

// gate lets connections through, or cuts them.
type gate struct {
	mu     sync.Mutex
	closed bool
	conns  []net.Conn
}

func (g *gate) dial(ctx context.Context, network, address string) (net.Conn, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, &net.OpError{Op: "dial", Net: network, Err: io.ErrClosedPipe}
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err == nil {
		g.conns = append(g.conns, conn)
	}
	return conn, err
}

func (g *gate) set(open bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = !open
	if !open {
		for _, conn := range g.conns {
			_ = conn.Close()
		}
		g.conns = nil
	}
}

// logs is a log that can be searched.
type logs struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logs) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logs) count(s string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), s)
}

func newLog() (*slog.Logger, *logs) {
	l := &logs{}
	return slog.New(slog.NewTextHandler(l, nil)), l
}

// series counts what a collector says, which must be consistent.
func series(t *testing.T, c prometheus.Collector) (n int) {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(c))
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, f := range families {
		n += len(f.Metric)
	}
	return n
}

// as is the event as one of a type.
func as[E engine.Event](t *testing.T, ev engine.Event) E {
	t.Helper()
	typed, ok := ev.(E)
	require.True(t, ok, "%T: %v", ev, ev)
	return typed
}
