package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nordix/meridio-nsp/api/v1alpha1"
	"github.com/nordix/meridio-nsp/pkg/external"
)

// fieldManager is who writes, as the API server records it.
const fieldManager = "meridio-nsp-controller"

// secretEvery is how soon a changed Secret counts. Secrets are not watched: that would need the permission to read all.
const secretEvery = time.Minute

// targets runs the source of each ExternalTarget and writes its status.
type targets struct {
	client  client.Client
	sources *sources
	watches *watches
}

// Reconcile implements reconcile.Reconciler.
func (r *targets) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	var target v1alpha1.ExternalTarget
	err := r.client.Get(ctx, request.NamespacedName, &target)
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, err
	}
	if err != nil || !target.DeletionTimestamp.IsZero() {
		r.watches.drop(request.NamespacedName)
		return reconcile.Result{}, nil
	}
	want := r.sources.of(ctx, &target)
	want.last, want.since = remembered(&target)
	r.watches.set(request.NamespacedName, want) //nolint:contextcheck // a source outlives the reconciliation
	selecting, err := r.selecting(ctx, &target)
	if err != nil {
		return reconcile.Result{}, err
	}
	status := judge(&target, r.watches.state(request.NamespacedName), selecting)
	if !equality.Semantic.DeepEqual(status, target.Status) {
		if err := applyStatus(ctx, r.client, &target, "ExternalTarget", status); err != nil {
			return reconcile.Result{}, fmt.Errorf("writing the status: %w", err)
		}
	}
	if target.Spec.Source.Kubernetes != nil {
		return reconcile.Result{RequeueAfter: secretEvery}, nil
	}
	return reconcile.Result{}, nil
}

// remembered is what the status says of the source as it is specified now: what was found for another does not count.
func remembered(t *v1alpha1.ExternalTarget) (last []external.Endpoint, since time.Time) {
	resolved := meta.FindStatusCondition(t.Status.Conditions, v1alpha1.ConditionResolved)
	if resolved == nil || resolved.ObservedGeneration != t.Generation {
		return nil, time.Time{}
	}
	for _, a := range t.Status.Addresses {
		if addr, err := netip.ParseAddr(a.Address); err == nil {
			last = append(last, external.Endpoint{Addr: addr, Ready: a.Ready, Serving: a.Serving, Terminating: a.Terminating, Identity: a.Identity})
		}
	}
	if resolved.Status == metav1.ConditionFalse {
		since = resolved.LastTransitionTime.Time
	}
	return last, since
}

// selecting are the names of the Services of the namespace that select the target.
func (r *targets) selecting(ctx context.Context, t *v1alpha1.ExternalTarget) ([]string, error) {
	var services corev1.ServiceList
	if err := r.client.List(ctx, &services, client.InNamespace(t.Namespace)); err != nil {
		return nil, err
	}
	var names []string
	for i := range services.Items {
		if selects(&services.Items[i], t.Labels) {
			names = append(names, services.Items[i].Name)
		}
	}
	return names, nil
}

// judge makes the status. Before the first report what is there stays, in case another process knew more.
func judge(t *v1alpha1.ExternalTarget, state *external.State, selecting []string) v1alpha1.ExternalTargetStatus {
	status := *t.Status.DeepCopy()
	set := func(kind string, holds metav1.ConditionStatus, reason, message string) {
		meta.SetStatusCondition(&status.Conditions, metav1.Condition{
			Type: kind, Status: holds, Reason: reason, Message: message, ObservedGeneration: t.Generation})
	}
	switch {
	case state != nil:
		status.Addresses = addressStatus(state.Endpoints)
		set(v1alpha1.ConditionResolved, truth(state.Resolved), state.Reason, state.Message)
		status.TotalAddresses, status.ReadyAddresses = count(status.Addresses)
		set(v1alpha1.ConditionReady, truth(status.ReadyAddresses > 0),
			map[bool]string{true: "AddressReady", false: "NoAddressReady"}[status.ReadyAddresses > 0],
			fmt.Sprintf("%d of %d addresses take traffic.", status.ReadyAddresses, status.TotalAddresses))
	case meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionResolved) == nil:
		set(v1alpha1.ConditionResolved, metav1.ConditionUnknown, external.ReasonPending, "The source was not asked yet.")
	}
	if len(selecting) == 0 {
		set(v1alpha1.ConditionSelected, metav1.ConditionFalse, "NotSelected",
			"No Service of the namespace has a selector that these labels match.")
	} else {
		set(v1alpha1.ConditionSelected, metav1.ConditionTrue, "Selected", "Selected by Service "+few(selecting)+".")
	}
	return status
}

func truth(is bool) metav1.ConditionStatus {
	if is {
		return metav1.ConditionTrue
	}
	return metav1.ConditionFalse
}

func addressStatus(endpoints []external.Endpoint) []v1alpha1.AddressStatus {
	var list []v1alpha1.AddressStatus
	for _, e := range endpoints {
		list = append(list, v1alpha1.AddressStatus{Address: e.Addr.String(), Ready: e.Ready, Serving: e.Serving,
			Terminating: e.Terminating, Identity: e.Identity})
	}
	return list
}

func count(addresses []v1alpha1.AddressStatus) (total, ready int32) {
	for _, a := range addresses {
		if a.Ready {
			ready++
		}
	}
	return int32(len(addresses)), ready
}

// few keeps a message short.
func few(names []string) string {
	const most = 10
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// applyStatus writes the status server-side, of that very object: the UID keeps it from one that was made anew.
func applyStatus(ctx context.Context, c client.Client, object client.Object, kind string, status any) error {
	text, err := json.Marshal(status)
	if err != nil {
		return err
	}
	var fields map[string]any
	if err := json.Unmarshal(text, &fields); err != nil {
		return err
	}
	u := &unstructured.Unstructured{Object: map[string]any{"status": fields}}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
	u.SetNamespace(object.GetNamespace())
	u.SetName(object.GetName())
	u.SetUID(object.GetUID())
	return c.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(fieldManager), client.ForceOwnership)
}
