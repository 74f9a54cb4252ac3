package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nordix/meridio-nsp/api/v1alpha1"
	"github.com/nordix/meridio-nsp/pkg/pool"
)

// AnnotationMadeFor says on a Service for which object it was made, as Kind/name: the labels of a Service that somebody else owns
// would not say why it is there.
const AnnotationMadeFor = "meridio.nordix.org/made-for"

// errTaken is that a Service of the name exists which is not ours to change.
var errTaken = errors.New("a Service of that name exists and was made by somebody else")

// ownService makes or mends the one Service of an owner.
func ownService(ctx context.Context, c client.Client, owner client.Object, kind, name string, selector, labels, annotations map[string]string) error {
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: owner.GetNamespace(), Name: name}}
	_, err := controllerutil.CreateOrUpdate(ctx, c, service, func() error {
		if service.UID != "" && !metav1.IsControlledBy(service, owner) {
			return errTaken
		}
		ours := func(key, _ string) bool { return strings.HasPrefix(key, "meridio.nordix.org/") }
		maps.DeleteFunc(service.Labels, ours)
		maps.DeleteFunc(service.Annotations, ours)
		for key, value := range labels {
			metav1.SetMetaDataLabel(&service.ObjectMeta, key, value)
		}
		metav1.SetMetaDataLabel(&service.ObjectMeta, pool.LabelMarker, pool.MarkerValue)
		metav1.SetMetaDataAnnotation(&service.ObjectMeta, AnnotationMadeFor, kind+"/"+owner.GetName())
		for key, value := range annotations {
			metav1.SetMetaDataAnnotation(&service.ObjectMeta, key, value)
		}
		service.Spec.Selector = selector
		if service.UID == "" {
			service.Spec.ClusterIP = corev1.ClusterIPNone
			service.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyPreferDualStack)
		}
		return controllerutil.SetControllerReference(owner, service, c.Scheme())
	})
	return err
}

// pools keeps one Service for each TargetPool.
type pools struct{ client client.Client }

// Reconcile implements reconcile.Reconciler. The Service goes with its owner by Kubernetes' garbage collection.
func (r *pools) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	var p v1alpha1.TargetPool
	if err := r.client.Get(ctx, request.NamespacedName, &p); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if !p.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, nil
	}
	selector := make(map[string]string, len(p.Spec.Selector))
	for key, value := range p.Spec.Selector {
		selector[key] = string(value)
	}
	err := ownService(ctx, r.client, &p, "TargetPool", p.Name, selector, streamLabels(p.Spec.Stream), policy(&p))
	status := *p.Status.DeepCopy()
	status.Service = p.Name
	accepted := metav1.Condition{Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: "ServiceMade",
		Message:            fmt.Sprintf("Service %s of the namespace is this pool; its conditions tell of the members.", p.Name),
		ObservedGeneration: p.Generation}
	if problem, final := refusal(err); final {
		status.Service = ""
		accepted.Status, accepted.Reason, accepted.Message = metav1.ConditionFalse, problem, fmt.Sprintf("Service %s: %v.", p.Name, err)
		err = nil
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("making Service %s: %w", p.Name, err)
	}
	meta.SetStatusCondition(&status.Conditions, accepted)
	if equality.Semantic.DeepEqual(status, p.Status) {
		return reconcile.Result{}, nil
	}
	return reconcile.Result{}, applyStatus(ctx, r.client, &p, "TargetPool", status)
}

// refusal tells what another attempt would not change.
func refusal(err error) (reason string, final bool) {
	switch {
	case errors.Is(err, errTaken):
		return "ServiceNameTaken", true
	case apierrors.IsInvalid(err):
		return "ServiceInvalid", true
	}
	return "", false
}

func streamLabels(s v1alpha1.StreamReference) map[string]string {
	labels := map[string]string{
		pool.LabelTrench: string(s.Trench), pool.LabelConduit: string(s.Conduit), pool.LabelStream: string(s.Stream)}
	if s.Namespace != "" {
		labels[pool.LabelNamespace] = string(s.Namespace)
	}
	return labels
}

func policy(p *v1alpha1.TargetPool) map[string]string {
	annotations := make(map[string]string)
	if p.Spec.Assignment != "" {
		annotations[pool.AnnotationAssignment] = p.Spec.Assignment
	}
	if p.Spec.Draining != "" {
		annotations[pool.AnnotationDraining] = p.Spec.Draining
	}
	if p.Spec.PanicThreshold != nil {
		annotations[pool.AnnotationPanicThreshold] = strconv.Itoa(int(*p.Spec.PanicThreshold))
	}
	return annotations
}
