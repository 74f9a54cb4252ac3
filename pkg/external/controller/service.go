package controller

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nordix/meridio-nsp/api/v1alpha1"
)

// ManagedBy is the value of the label endpointslice.kubernetes.io/managed-by of all slices that are written here. Only these are
// ever changed or deleted.
const ManagedBy = "external-target-controller.meridio.nordix.org"

// selects is whether the Service selects what bears these labels.
func selects(s *corev1.Service, set map[string]string) bool {
	return len(s.Spec.Selector) > 0 && s.Spec.Type != corev1.ServiceTypeExternalName && s.DeletionTimestamp.IsZero() &&
		labels.SelectorFromSet(s.Spec.Selector).Matches(labels.Set(set))
}

// services writes the EndpointSlices of each Service.
type services struct{ client client.Client }

// Reconcile implements reconcile.Reconciler.
func (r *services) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	var service corev1.Service
	err := r.client.Get(ctx, request.NamespacedName, &service)
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, err
	}
	var wanted []placed
	if err == nil {
		var targets v1alpha1.ExternalTargetList
		if err := r.client.List(ctx, &targets, client.InNamespace(request.Namespace)); err != nil {
			return reconcile.Result{}, err
		}
		wanted = place(&service, targets.Items)
	}
	var existing discoveryv1.EndpointSliceList
	mine := client.MatchingLabels{discoveryv1.LabelServiceName: request.Name, discoveryv1.LabelManagedBy: ManagedBy}
	if err := r.client.List(ctx, &existing, client.InNamespace(request.Namespace), mine); err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{}, r.write(ctx, plan(&service, wanted, existing.Items))
}

// write adds before it takes away, so that an address that moves between slices is never gone. Whatever fails is tried again, as
// is all that was decided from a cache that lagged behind: the API server refuses it by name or version.
func (r *services) write(ctx context.Context, p changes) error {
	for _, slice := range p.create {
		if err := r.client.Create(ctx, slice, client.FieldOwner(fieldManager)); err != nil {
			return fmt.Errorf("creating EndpointSlice %s: %w", slice.Name, err)
		}
	}
	for _, slice := range p.update {
		if err := r.client.Update(ctx, slice, client.FieldOwner(fieldManager)); err != nil {
			return fmt.Errorf("updating EndpointSlice %s: %w", slice.Name, err)
		}
	}
	for _, slice := range p.remove {
		precondition := client.Preconditions{UID: &slice.UID}
		if err := r.client.Delete(ctx, slice, precondition); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting EndpointSlice %s: %w", slice.Name, err)
		}
	}
	return nil
}
