package controller

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nordix/meridio-nsp/pkg/pool"
)

// AnnotationSelector on a Stream object of Meridio selects its members, as "key=value,key=value".
const AnnotationSelector = "meridio.nordix.org/target-selector"

// streamKind is Meridio's own, of which only the annotation, the label "trench" and spec.conduit matter here.
var streamKind = schema.GroupKind{Group: "meridio.nordix.org", Kind: "Stream"}

// streams keeps one Service for each Stream object with a selector.
type streams struct {
	client client.Client
	kind   schema.GroupVersionKind
	events events.EventRecorder
}

// Reconcile implements reconcile.Reconciler.
func (r *streams) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(r.kind)
	if err := r.client.Get(ctx, request.NamespacedName, object); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if object.GetDeletionTimestamp() != nil {
		return reconcile.Result{}, nil
	}
	name := "stream-" + object.GetName()
	text := object.GetAnnotations()[AnnotationSelector]
	if text == "" {
		return reconcile.Result{}, r.disown(ctx, object, name)
	}
	conduit, _, _ := unstructured.NestedString(object.Object, "spec", "conduit")
	selector, err := labels.ConvertSelectorToLabelsMap(text)
	if err != nil || len(selector) == 0 || conduit == "" || object.GetLabels()["trench"] == "" {
		r.warn(object, "InvalidSelector", fmt.Sprintf("annotation %s: want key=value,key=value on a Stream with a conduit and the label trench", AnnotationSelector))
		return reconcile.Result{}, nil
	}
	err = ownService(ctx, r.client, object, "Stream", name, selector, map[string]string{
		pool.LabelTrench: object.GetLabels()["trench"], pool.LabelConduit: conduit, pool.LabelStream: object.GetName()}, nil)
	if reason, final := refusal(err); final {
		r.warn(object, reason, fmt.Sprintf("Service %s: %v", name, err))
		return reconcile.Result{}, nil
	}
	return reconcile.Result{}, err
}

func (r *streams) warn(object *unstructured.Unstructured, reason, message string) {
	r.events.Eventf(object, nil, corev1.EventTypeWarning, reason, "Select", "%s", message)
}

// disown removes the Service of a Stream whose annotation is gone.
func (r *streams) disown(ctx context.Context, object *unstructured.Unstructured, name string) error {
	var service corev1.Service
	err := r.client.Get(ctx, client.ObjectKey{Namespace: object.GetNamespace(), Name: name}, &service)
	if err != nil || !metav1.IsControlledBy(&service, object) {
		return client.IgnoreNotFound(err)
	}
	return client.IgnoreNotFound(r.client.Delete(ctx, &service, client.Preconditions{UID: &service.UID}))
}
