package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/nordix/meridio-nsp/api/v1alpha1"
	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/pool"
)

// recorder keeps what is posted.
type recorder struct {
	mu     sync.Mutex
	events []engine.Event
}

func (r *recorder) Post(events ...engine.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, events...)
}

func (r *recorder) await(t *testing.T, want engine.Event) {
	t.Helper()
	require.Eventually(t, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.events) > 0 && fmt.Sprint(r.events[len(r.events)-1]) == fmt.Sprint(want)
	}, patience, time.Millisecond, "%v", want)
}

func externalTargetObject(name string, addrs ...string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("ExternalTarget"))
	u.SetNamespace("app")
	u.SetName(name)
	u.SetUID("u")
	var list []any
	for _, a := range addrs {
		list = append(list, map[string]any{"address": a, "ready": true})
	}
	_ = unstructured.SetNestedSlice(u.Object, list, "status", "addresses")
	return u
}

// targetsScene is a namespace whose Services and slices have been read already.
func targetsScene(t *testing.T, fail func() error, objects ...runtime.Object) (*fake.FakeDynamicClient, *recorder) {
	t.Helper()
	return watchedTargetsScene(t, fail, nil, objects...)
}

// watchedTargetsScene is one in which w, unless it is nil, is every watch.
func watchedTargetsScene(
	t *testing.T, fail func() error, w watch.Interface, objects ...runtime.Object,
) (*fake.FakeDynamicClient, *recorder) {
	t.Helper()
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{targetsResource: "ExternalTargetList"}, objects...)
	client.PrependReactor("list", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		err := fail()
		return err != nil, nil, err
	})
	if w != nil {
		client.PrependWatchReactor("*", func(clienttesting.Action) (bool, watch.Interface, error) { return true, w, nil })
	}
	posted := &recorder{}
	n := newNamespace("app", SourceConfig{Sink: posted, Dynamic: client, Log: slog.New(slog.DiscardHandler)})
	n.targets.absent = 5 * time.Millisecond
	n.services.synced, n.slices.synced = true, true
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { n.targets.follow(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	return client, posted
}

func never() error { return nil }

func TestExternalTargetsArePosted(t *testing.T) {
	client, posted := targetsScene(t, never, externalTargetObject("vm", "192.0.2.1", "nonsense"))
	target, _, err := externalTarget(externalTargetObject("vm", "192.0.2.1"))
	require.NoError(t, err)
	require.Equal(t, []netip.Addr{netip.MustParseAddr("192.0.2.1")}, target.Confirmed)
	posted.await(t, engine.NamespaceSynced{Namespace: "app", Targets: []pool.Target{target}})
	require.Eventually(t, func() bool { return len(client.Actions()) >= 2 }, patience, time.Millisecond) // the watch is open
	resource := client.Resource(targetsResource).Namespace("app")
	_, err = resource.Update(t.Context(), externalTargetObject("vm", "192.0.2.2"), metav1.UpdateOptions{})
	require.NoError(t, err)
	target.Confirmed = []netip.Addr{netip.MustParseAddr("192.0.2.2")}
	posted.await(t, engine.TargetSet{Target: target})
	require.NoError(t, resource.Delete(t.Context(), "vm", metav1.DeleteOptions{}))
	posted.await(t, engine.TargetGone{Ref: target.Ref})
}

// What comes from another cluster is of that one, also where nobody has named it: by a name that no other object gives.
func TestOriginOfAnExternalTarget(t *testing.T) {
	for name, want := range map[string]pool.Component{
		"":     {Cluster: "vm.app", Namespace: "prod", Service: "db"},
		"east": {Cluster: "east", Namespace: "prod", Service: "db"},
	} {
		o := externalTargetObject("vm", "192.0.2.1")
		source := map[string]any{"namespace": "prod", "service": "db", "kubeconfigSecret": map[string]any{"name": "s"}}
		if name != "" {
			source["cluster"] = name
		}
		require.NoError(t, unstructured.SetNestedMap(o.Object, source, "spec", "source", "kubernetes"))
		target, _, err := externalTarget(o)
		require.NoError(t, err)
		require.Equal(t, want, target.Origin)
	}
	target, _, err := externalTarget(externalTargetObject("vm", "192.0.2.1"))
	require.NoError(t, err)
	require.Zero(t, target.Origin)
}

func TestExternalTargetsThatNobodyHasHoldUpNobody(t *testing.T) {
	for name, err := range map[string]error{
		"no such kind":  apierrors.NewNotFound(schema.GroupResource{Resource: "externaltargets"}, ""),
		"no permission": apierrors.NewForbidden(schema.GroupResource{Resource: "externaltargets"}, "", errors.New("no")),
	} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			fault := err
			_, posted := targetsScene(t, func() error { mu.Lock(); defer mu.Unlock(); return fault }, externalTargetObject("vm"))
			posted.await(t, engine.NamespaceSynced{Namespace: "app"})
			mu.Lock()
			fault = nil // installed, or permitted
			mu.Unlock()
			target, _, _ := externalTarget(externalTargetObject("vm"))
			posted.await(t, engine.TargetSet{Target: target})
		})
	}
}

// What was read counts while it cannot be read any more, whatever the reason; only a kind that is gone has no objects.
func TestExternalTargetsAreHeld(t *testing.T) {
	kind := schema.GroupResource{Resource: "externaltargets"}
	for name, tc := range map[string]struct {
		fault error
		gone  bool
	}{
		"no permission any more": {apierrors.NewForbidden(kind, "", errors.New("no")), false},
		"the server is away":     {apierrors.NewServiceUnavailable("away"), false},
		"the kind is gone":       {apierrors.NewNotFound(kind, ""), true},
	} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			var fault error
			asked, cut := 0, watch.NewFake()
			_, posted := watchedTargetsScene(t, func() error {
				mu.Lock()
				defer mu.Unlock()
				asked++
				return fault
			}, cut, externalTargetObject("vm"))
			target, _, _ := externalTarget(externalTargetObject("vm"))
			posted.await(t, engine.NamespaceSynced{Namespace: "app", Targets: []pool.Target{target}})
			mu.Lock()
			fault, asked = tc.fault, 0
			mu.Unlock()
			require.Eventually(t, func() bool {
				cut.Stop()
				mu.Lock()
				defer mu.Unlock()
				return asked > 2
			}, patience, time.Millisecond)
			posted.mu.Lock()
			events := len(posted.events)
			posted.mu.Unlock()
			if tc.gone {
				posted.await(t, engine.TargetGone{Ref: target.Ref})
			} else {
				require.Equal(t, 1, events)
			}
		})
	}
}

func TestExternalTargetsAreWaitedForWhileTheServerIsAway(t *testing.T) {
	var mu sync.Mutex
	var fault error = apierrors.NewServiceUnavailable("away")
	asked := make(chan struct{}, 100)
	_, posted := targetsScene(t, func() error { mu.Lock(); defer mu.Unlock(); asked <- struct{}{}; return fault }, externalTargetObject("vm"))
	<-asked
	posted.mu.Lock()
	require.Empty(t, posted.events)
	posted.mu.Unlock()
	mu.Lock()
	fault = nil
	mu.Unlock()
	require.Eventually(t, func() bool { posted.mu.Lock(); defer posted.mu.Unlock(); return len(posted.events) == 1 }, patience, time.Millisecond)
}

func withIdentity(o *unstructured.Unstructured, uid types.UID, spiffeID string) *unstructured.Unstructured {
	o.SetUID(uid)
	_ = unstructured.SetNestedField(o.Object, spiffeID, "spec", "identity", "spiffeID")
	return o
}

// What an ExternalTarget proves follows the object, until its namespace is no longer watched.
func TestIdentitiesOfExternalTargetsAreTold(t *testing.T) {
	const one, two = "spiffe://example.org/vm/1", "spiffe://example.org/vm/2"
	told := auth.NewTargets(auth.TargetsConfig{Log: slog.New(slog.DiscardHandler)})
	proves := func(id string) string {
		found, err := told.Find(auth.Identity{SPIFFEID: spiffeid.RequireFromString(id)})
		require.NoError(t, err)
		return found.Name + " " + found.UID
	}
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{targetsResource: "ExternalTargetList"}, withIdentity(externalTargetObject("vm"), "u1", one),
		externalTargetObject("without"))
	n := newNamespace("app", SourceConfig{Sink: &recorder{}, Dynamic: client, Identities: told, Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { n.targets.follow(ctx) })
	defer func() { cancel(); running.Wait() }()
	becomes := func(id, want string) {
		t.Helper()
		require.Eventually(t, func() bool { return proves(id) == want }, patience, time.Millisecond, "%s", want)
	}
	becomes(one, "vm u1")
	require.Eventually(t, func() bool { return len(client.Actions()) >= 2 }, patience, time.Millisecond) // the watch is open
	resource := client.Resource(targetsResource).Namespace("app")
	_, err := resource.Update(ctx, withIdentity(externalTargetObject("vm"), "u2", one), metav1.UpdateOptions{})
	require.NoError(t, err)
	becomes(one, "vm u2")
	_, err = resource.Update(ctx, withIdentity(externalTargetObject("vm"), "u2", two), metav1.UpdateOptions{})
	require.NoError(t, err)
	becomes(two, "vm u2")
	require.Equal(t, " ", proves(one))
	require.NoError(t, resource.Delete(ctx, "vm", metav1.DeleteOptions{}))
	becomes(two, " ")
	_, err = resource.Create(ctx, withIdentity(externalTargetObject("vm"), "u3", two), metav1.CreateOptions{})
	require.NoError(t, err)
	becomes(two, "vm u3")
	n.targets.identities.drop()
	require.Equal(t, " ", proves(two))
}
