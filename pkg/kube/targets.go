package kube

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/nordix/meridio-nsp/api/v1alpha1"
	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/pool"
)

var targetsResource = v1alpha1.Resource("externaltargets")

// targets are the ExternalTargets of one namespace. They are guarded by the namespace's mutex.
type targets struct {
	ns     *namespace
	client dynamic.ResourceInterface
	items  map[string]pool.Target // by name
	// identities are what they prove.
	identities identities
	// known is set once they were read, or cannot be: where the cluster has no such kind, or this process no permission.
	known bool
	fault string
	// absent is how long to wait before looking again for what could not be read.
	absent time.Duration
}

func newTargets(ns *namespace, client dynamic.Interface, to *auth.Targets) *targets {
	t := &targets{ns: ns, items: make(map[string]pool.Target), absent: time.Minute, identities: identities{namespace: ns.name, to: to}}
	if client == nil {
		t.known = true
		return t
	}
	t.client = client.Resource(targetsResource).Namespace(ns.name)
	return t
}

// follow keeps them up to date until ctx ends. They hold up the namespace's first state only for as long as the API server is
// away, and then the Services do so too.
func (t *targets) follow(ctx context.Context) {
	if t.client == nil {
		return
	}
	forever(ctx, func(ctx context.Context) {
		err := t.once(ctx)
		if ctx.Err() != nil || err == nil {
			return
		}
		t.failed(err)
		switch {
		case apierrors.IsNotFound(err):
			t.replace(nil) // without the kind there are no objects of it
		case apierrors.IsForbidden(err):
			t.hold()
		default:
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(t.absent):
		}
	})
}

// once lists and then watches, until the watch ends.
func (t *targets) once(ctx context.Context) error {
	list, err := t.client.List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing externaltargets: %w", err)
	}
	t.replace(list.Items)
	t.restored()
	seconds := int64(watchTimeout.Seconds())
	w, err := t.client.Watch(ctx, metav1.ListOptions{ResourceVersion: list.GetResourceVersion(), TimeoutSeconds: &seconds})
	if err != nil {
		return fmt.Errorf("watching externaltargets: %w", err)
	}
	defer w.Stop()
	defer context.AfterFunc(ctx, w.Stop)()
	for e := range w.ResultChan() {
		o, ok := e.Object.(*unstructured.Unstructured)
		if !ok {
			return nil // an error, or nothing that we know: list again
		}
		t.ns.mu.Lock()
		if e.Type == watch.Deleted {
			t.ns.post(t.drop(o.GetName())...)
		} else {
			t.ns.post(t.put(o)...)
		}
		t.identities.tell()
		t.ns.mu.Unlock()
	}
	return nil
}

func (t *targets) failed(err error) {
	t.ns.mu.Lock()
	defer t.ns.mu.Unlock()
	if fault := faultOf(err); fault != t.fault {
		t.fault = fault
		t.ns.log.Warn("ExternalTargets cannot be read; none counts that is not known already", "fault", fault, "error", err)
	}
}

// restored has the next fault told, also if it is of the kind of the last one.
func (t *targets) restored() {
	t.ns.mu.Lock()
	defer t.ns.mu.Unlock()
	if t.fault != "" {
		t.fault = ""
		t.ns.log.Info("ExternalTargets can be read again")
	}
}

// hold keeps what is known, as for Services and slices: a permission that is missing says nothing of the objects.
func (t *targets) hold() {
	t.ns.mu.Lock()
	defer t.ns.mu.Unlock()
	t.known = true
	t.ns.postInitial()
}

// replace takes the complete state in.
func (t *targets) replace(objects []unstructured.Unstructured) {
	t.ns.mu.Lock()
	defer t.ns.mu.Unlock()
	there := make(map[string]bool, len(objects))
	var events []engine.Event
	for i := range objects {
		there[objects[i].GetName()] = true
		events = append(events, t.put(&objects[i])...)
	}
	for _, name := range slices.Sorted(maps.Keys(t.items)) {
		if !there[name] {
			events = append(events, t.drop(name)...)
		}
	}
	t.ns.post(events...)
	t.known = true
	t.identities.tell()
	t.ns.postInitial()
}

// put keeps an object and returns what there is to post of it.
func (t *targets) put(o *unstructured.Unstructured) []engine.Event {
	target, identity, err := externalTarget(o)
	t.identities.set(target, identity)
	if err != nil {
		t.ns.log.Warn("an ExternalTarget is not understood, so nothing of it counts", "name", o.GetName(), "error", err)
	}
	if old, known := t.items[target.Name]; known && reflect.DeepEqual(old, target) {
		return nil
	}
	t.items[target.Name] = target
	return []engine.Event{engine.TargetSet{Target: target}}
}

// drop forgets an object, likewise.
func (t *targets) drop(name string) []engine.Event {
	if _, known := t.items[name]; !known {
		return nil
	}
	delete(t.items, name)
	t.identities.set(pool.Target{Ref: pool.Ref{Namespace: t.ns.name, Name: name}}, auth.TargetIdentity{})
	return []engine.Event{engine.TargetGone{Ref: pool.Ref{Namespace: t.ns.name, Name: name}}}
}

func (t *targets) sorted() []pool.Target {
	var all []pool.Target
	for _, name := range slices.Sorted(maps.Keys(t.items)) {
		all = append(all, t.items[name])
	}
	return all
}

// externalTarget takes what the status confirms, where it comes from, and what the resource proves.
func externalTarget(o *unstructured.Unstructured) (pool.Target, auth.TargetIdentity, error) {
	target := pool.Target{Ref: pool.Ref{Namespace: o.GetNamespace(), Name: o.GetName()}, UID: string(o.GetUID())}
	var typed v1alpha1.ExternalTarget
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &typed); err != nil {
		return target, auth.TargetIdentity{}, err
	}
	for _, a := range typed.Status.Addresses {
		if addr, err := netip.ParseAddr(a.Address); err == nil {
			target.Confirmed = append(target.Confirmed, addr)
		}
	}
	if k := typed.Spec.Source.Kubernetes; k != nil {
		// A name that nobody chose must be of this object alone: kubeadm, for one, calls every cluster "kubernetes".
		cluster := cmp.Or(k.Cluster, target.Name+"."+target.Namespace)
		target.Origin = pool.Component{Cluster: cluster, Namespace: string(k.Namespace), Service: string(k.Service)}
	}
	return target, identityOf(&typed), nil
}
