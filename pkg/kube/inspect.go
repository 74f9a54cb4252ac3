package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/nordix/meridio-nsp/pkg/pool"
)

// ServiceOf is what a pool has of a Service, for those who look in from outside.
func ServiceOf(s *corev1.Service) pool.Service {
	return convertService(slog.New(slog.DiscardHandler), s)
}

// SliceOf is what a pool has of an EndpointSlice, likewise.
func SliceOf(s *discoveryv1.EndpointSlice) pool.Slice {
	return convertSlice(slog.New(slog.DiscardHandler), s)
}

// TargetOf is what a pool has of an ExternalTarget, likewise. Of one that is not understood nothing is confirmed.
func TargetOf(o *unstructured.Unstructured) pool.Target {
	target, _, _ := externalTarget(o)
	return target
}

// ReadGrants lists the grants of a namespace once. A kind that the cluster does not have grants nothing; an object that is not
// understood neither.
func ReadGrants(ctx context.Context, client dynamic.Interface, namespace string) (*pool.Grants, error) {
	var all []pool.Grant
	var errs []error
	for _, k := range []struct {
		resource schema.GroupVersionResource
		read     reader
	}{{grantsResource, grantsOf}, {trenchResource, annotated}} {
		list, err := client.Resource(k.resource).Namespace(namespace).List(ctx, metav1.ListOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("listing %s of namespace %s: %w", k.resource.Resource, namespace, err))
		}
		if err != nil {
			continue
		}
		for i := range list.Items {
			grants, _ := k.read(&list.Items[i])
			all = append(all, grants...)
		}
	}
	return pool.NewGrants(all), errors.Join(errs...)
}
