package kube

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/nordix/meridio-nsp/pkg/engine"
)

// cabinet is one kind of objects as an API server has it, for Grants.
type cabinet struct {
	mu      sync.Mutex
	name    string
	items   map[string]*unstructured.Unstructured
	refusal error
	lists   int
	watch   *watch.FakeWatcher
}

func (k *cabinet) serve(client *dynamicfake.FakeDynamicClient) {
	client.PrependReactor("list", k.name, func(clienttesting.Action) (bool, runtime.Object, error) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.lists++
		if k.refusal != nil {
			return true, nil, k.refusal
		}
		list := &unstructured.UnstructuredList{}
		list.SetAPIVersion("v1")
		list.SetKind("List")
		for _, o := range k.items {
			list.Items = append(list.Items, *o)
		}
		return true, list, nil
	})
	client.PrependWatchReactor(k.name, func(clienttesting.Action) (bool, watch.Interface, error) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.watch = watch.NewFakeWithChanSize(10, false)
		return true, k.watch, nil
	})
}

// set changes an object; with tell the open watch says so. A nil object is gone.
func (k *cabinet) set(name string, o *unstructured.Unstructured, tell bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	old := k.items[name]
	switch {
	case o == nil:
		if delete(k.items, name); tell {
			k.watch.Delete(old)
		}
		return
	case tell && old == nil:
		k.watch.Add(o)
	case tell:
		k.watch.Modify(o)
	}
	k.items[name] = o
}

func (k *cabinet) refuse(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refusal = err
}

func grantObject(name, namespace string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"from": []any{map[string]any{"namespace": namespace}}, "to": []any{map[string]any{"trench": "t"}},
	}}}
	o.SetName(name)
	o.SetAPIVersion("targetpool.meridio.nordix.org/v1alpha1")
	o.SetKind("TargetGrant")
	return o
}

func trenchObject(namespaces string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{}}
	o.SetName("t")
	o.SetAPIVersion("meridio.nordix.org/v1")
	o.SetKind("Trench")
	o.SetAnnotations(map[string]string{AnnotationTargetNamespaces: namespaces})
	return o
}

// loop runs Grants against two kinds.
type loop struct {
	*testing.T
	grants, trenches *cabinet
	posted           *sink
	lines            *logs
}

func newLoop(t *testing.T, stored string) *loop {
	client := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		grantsResource: "TargetGrantList", trenchResource: "TrenchList",
	})
	l := &loop{
		T: t, posted: &sink{},
		grants:   &cabinet{name: "targetgrants", items: map[string]*unstructured.Unstructured{}},
		trenches: &cabinet{name: "trenches", items: map[string]*unstructured.Unstructured{}},
	}
	l.grants.serve(client)
	l.trenches.serve(client)
	log, lines := newLog()
	l.lines = lines
	g := NewGrants(GrantsConfig{
		Client: client, Sink: l.posted, Namespace: "red", Stored: []byte(stored), Save: (&documents{}).save, Log: log,
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		synctest.Wait()
		for _, k := range []*cabinet{l.grants, l.trenches} { // which a real client does when its context ends
			if k.watch != nil {
				k.watch.Stop()
			}
		}
		require.NoError(t, <-done)
	})
	synctest.Wait() // both are read and watched
	return l
}

// granted are the namespaces that the latest event names, nil where there was none since the last call.
func (l *loop) granted() []string {
	l.Helper()
	synctest.Wait()
	events := l.posted.all()
	if len(events) == 0 {
		return nil
	}
	l.posted.take(l.T, len(events))
	return as[engine.GrantsChanged](l.T, events[len(events)-1]).Grants.Namespaces()
}

var forbidden = apierrors.NewForbidden(schema.GroupResource{}, "", nil)

func TestGrantsFollowObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop(t, "")
		require.Empty(t, l.granted())
		l.grants.set("a", grantObject("a", "app"), true)
		require.Equal(t, []string{"app"}, l.granted())
		l.grants.set("b", grantObject("b", "db"), true)
		l.trenches.set("t", trenchObject("web"), true)
		require.Equal(t, []string{"app", "db", "web"}, l.granted())
		l.grants.set("a", grantObject("a", "zoo"), true)
		require.Equal(t, []string{"db", "web", "zoo"}, l.granted())
		l.grants.set("a", nil, true)
		l.trenches.set("t", trenchObject(""), true)
		require.Equal(t, []string{"db"}, l.granted())
		l.grants.set("b", grantObject("b", "db"), true)
		require.Nil(t, l.granted(), "nothing changed")
	})
}

// What is lost while the watch is cut is found by the next list, also where the history that would tell is gone. // D10
func TestGrantsAfterACutWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop(t, "")
		l.grants.set("a", grantObject("a", "app"), true)
		require.Equal(t, []string{"app"}, l.granted())
		l.grants.set("a", nil, false)
		l.grants.set("b", grantObject("b", "db"), false)
		l.grants.watch.Error(&metav1.Status{Code: 410, Reason: metav1.StatusReasonExpired})
		time.Sleep(time.Minute)
		require.Equal(t, []string{"db"}, l.granted())
		l.grants.set("b", nil, false)
		l.grants.watch.Stop()
		time.Sleep(time.Minute)
		require.Equal(t, []string{}, append([]string{}, l.granted()...))
		require.Zero(t, l.lines.count("cannot be read"), "the end of a watch is no fault")
	})
}

// What was stored counts until the cluster was read, and what was read until it can be read again.
func TestGrantsThatCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop(t, `[{"Namespace":"old","Trench":"t"}]`)
		_ = l.granted()
		l.grants.set("a", grantObject("a", "app"), true)
		require.Equal(t, []string{"app"}, l.granted())
		l.grants.refuse(forbidden)
		l.grants.watch.Stop()
		time.Sleep(10 * time.Minute)
		require.Nil(t, l.granted(), "the state is held")
		require.Equal(t, 1, l.lines.count("grants cannot be read"), "one line, however many tries")
		require.Less(t, l.grants.lists, 200, "it pauses in between")
		l.grants.set("a", grantObject("a", "db"), false)
		l.grants.refuse(nil)
		time.Sleep(2 * time.Minute)
		require.Equal(t, []string{"db"}, l.granted())
	})
}

// A kind that the cluster does not have grants nothing and is looked for again; nor do Trench objects that must not be read.
func TestGrantsOfAbsentKinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop(t, "")
		absent := apierrors.NewNotFound(schema.GroupResource{}, "")
		l.grants.refuse(absent)
		l.trenches.refuse(forbidden)
		_ = l.granted()
		l.grants.set("a", grantObject("a", "app"), false)
		l.trenches.set("t", trenchObject("web"), false)
		l.grants.refuse(nil)
		if l.grants.watch != nil {
			l.grants.watch.Stop()
		}
		time.Sleep(2 * time.Minute)
		require.Equal(t, []string{"app"}, l.granted())
		l.trenches.refuse(nil)
		if l.trenches.watch != nil {
			l.trenches.watch.Stop()
		}
		time.Sleep(2 * time.Minute)
		require.Equal(t, []string{"app", "web"}, l.granted())
	})
}
