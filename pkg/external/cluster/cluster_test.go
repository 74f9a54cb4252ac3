package cluster

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/nordix/meridio-nsp/pkg/external"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func slice(name string, kind discoveryv1.AddressType, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: name, UID: types.UID(name),
			Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: kind, Endpoints: endpoints,
	}
}

func at(addr string, ready *bool) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{Addresses: []string{addr}, Conditions: discoveryv1.EndpointConditions{Ready: ready}}
}

// scene is a source that runs against a fake API server whose lists and watches can fail.
type scene struct {
	*testing.T
	client *fake.Clientset
	mu     sync.Mutex
	away   error
	watch  *watch.RaceFreeFakeWatcher
	last   string
}

func newScene(t *testing.T, objects ...runtime.Object) *scene {
	t.Helper()
	s := &scene{T: t, client: fake.NewClientset(objects...)}
	s.client.PrependReactor("list", "endpointslices", func(clienttesting.Action) (bool, runtime.Object, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.away != nil, nil, s.away
	})
	s.client.PrependWatchReactor("endpointslices", func(clienttesting.Action) (bool, watch.Interface, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.away != nil {
			return true, nil, s.away
		}
		s.watch = watch.NewRaceFreeFake()
		return true, s.watch, nil
	})
	source := New(Config{Client: s.client, Namespace: "apps", Service: "web", MinPause: time.Millisecond, MaxPause: 4 * time.Millisecond})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { source.Run(ctx, s.report) })
	t.Cleanup(func() { s.current().Stop(); cancel(); running.Wait() })
	return s
}

func (s *scene) report(r external.Report) {
	var parts []string
	for _, e := range r.Endpoints {
		parts = append(parts, e.Addr.String()+map[bool]string{true: "+", false: "-"}[e.Ready])
	}
	slices.Sort(parts)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = strings.Join(parts, " ")
	if r.Failure != nil {
		s.last = r.Failure.Reason
	}
}

func (s *scene) await(want string) {
	s.Helper()
	require.Eventually(s, func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.last == want }, 20*time.Second, time.Millisecond, want)
}

func (s *scene) current() *watch.RaceFreeFakeWatcher {
	require.Eventually(s, func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.watch != nil }, 20*time.Second, time.Millisecond)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.watch
}

// leave makes the server fail, and ends the watch.
func (s *scene) leave(err error) {
	w := s.current()
	s.mu.Lock()
	s.away, s.watch = err, nil
	s.mu.Unlock()
	w.Stop()
}

func TestFollows(t *testing.T) {
	s := newScene(t, slice("a", discoveryv1.AddressTypeIPv4, at("10.0.0.1", nil), at("10.0.0.2", new(false)), discoveryv1.Endpoint{}),
		slice("b", discoveryv1.AddressTypeIPv6, at("2001:db8::1", new(true))), slice("c", discoveryv1.AddressTypeFQDN, at("web.example", nil)))
	s.await("10.0.0.1+ 10.0.0.2- 2001:db8::1+")
	s.current().Modify(slice("a", discoveryv1.AddressTypeIPv4, at("10.0.0.2", new(true)), at("nonsense", nil)))
	s.await("10.0.0.2+ 2001:db8::1+")
	s.current().Delete(slice("b", discoveryv1.AddressTypeIPv6))
	s.await("10.0.0.2+")
	s.current().Add(slice("d", discoveryv1.AddressTypeIPv4, at("10.0.0.3", nil)))
	s.await("10.0.0.2+ 10.0.0.3+")
}

func TestWhatWentWhileItWasAwayIsGone(t *testing.T) { // D10
	s := newScene(t, slice("a", discoveryv1.AddressTypeIPv4, at("10.0.0.1", nil)), slice("b", discoveryv1.AddressTypeIPv4, at("10.0.0.2", nil)))
	s.await("10.0.0.1+ 10.0.0.2+")
	s.leave(errors.New("connection refused"))
	s.await(external.ReasonClusterUnreachable)
	require.NoError(t, s.client.DiscoveryV1().EndpointSlices("apps").Delete(t.Context(), "a", metav1.DeleteOptions{}))
	s.mu.Lock()
	s.away = nil
	s.mu.Unlock()
	s.await("10.0.0.2+")
	require.NoError(t, s.client.DiscoveryV1().EndpointSlices("apps").Delete(t.Context(), "b", metav1.DeleteOptions{}))
	// An old version is no failure: the list that follows tells.
	gone := apierrors.NewResourceExpired("too old").Status()
	s.current().Error(&gone)
	s.await("")
}

func TestConditions(t *testing.T) {
	for _, test := range []struct {
		ready, serving, terminating *bool
		want                        external.Endpoint
	}{
		{nil, nil, nil, external.Endpoint{Ready: true, Serving: true}}, // D3
		{new(false), nil, nil, external.Endpoint{}},
		{new(false), new(true), new(true), external.Endpoint{Serving: true, Terminating: true}},
		{new(true), new(false), nil, external.Endpoint{Ready: true}},
	} {
		e, ok := convert(discoveryv1.AddressTypeIPv4, discoveryv1.Endpoint{Addresses: []string{"10.0.0.1", "10.0.0.2"},
			Conditions: discoveryv1.EndpointConditions{Ready: test.ready, Serving: test.serving, Terminating: test.terminating}})
		require.True(t, ok)
		require.Equal(t, "10.0.0.1", e.Addr.String())
		e.Addr = test.want.Addr
		require.Equal(t, test.want, e)
	}
}

func TestKubeconfig(t *testing.T) {
	text := func(cluster, user string) []byte {
		return []byte("apiVersion: v1\nkind: Config\ncurrent-context: x\ncontexts: [{name: x, context: {cluster: c, user: u}}]\n" +
			"clusters: [{name: c, cluster: {" + cluster + "}}]\nusers: [{name: u, user: {" + user + "}}]\n")
	}
	config, err := RESTConfig(text("server: 'https://east.example:6443'", "token: secret"))
	require.NoError(t, err)
	require.Equal(t, "https://east.example:6443", config.Host)
	require.Equal(t, "secret", config.BearerToken)
	for name, bad := range map[string][]byte{
		"command":  text("server: 'https://a'", "exec: {apiVersion: client.authentication.k8s.io/v1, command: /bin/sh}"),
		"provider": text("server: 'https://a'", "auth-provider: {name: gcp}"),
		"token":    text("server: 'https://a'", "tokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token"),
		"key":      text("server: 'https://a'", "client-key: /etc/passwd"),
		"CA":       text("server: 'https://a', certificate-authority: /etc/passwd", "token: a"),
		"empty":    nil,
		"no YAML":  []byte("{"),
	} {
		_, err := RESTConfig(bad)
		require.Error(t, err, name)
	}
}
