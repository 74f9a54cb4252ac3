package kube

import (
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/pool"
)

// prefix begins the labels and annotations that matter to a pool.
const prefix = "meridio.nordix.org/"

// kind is all that differs between the kinds of objects that are watched.
type kind[V any] struct {
	resource string
	example  runtime.Object
	client   func(kubernetes.Interface) rest.Interface
	// convert takes what matters out of an object of the example's type.
	convert func(*slog.Logger, any) (V, error)
	// same is whether two values are one to the pools: what changed besides (status, say) wakes nobody.
	same func(a, b V) bool
	set  func(V) engine.Event
	gone func(namespace, name string) engine.Event
}

var services = kind[pool.Service]{
	resource: "services",
	example:  &corev1.Service{},
	client:   func(c kubernetes.Interface) rest.Interface { return c.CoreV1().RESTClient() },
	convert:  convertTyped(convertService),
	same:     func(a, b pool.Service) bool { return reflect.DeepEqual(a, b) },
	set:      func(s pool.Service) engine.Event { return engine.ServiceSet{Service: s} },
	gone: func(namespace, name string) engine.Event {
		return engine.ServiceGone{Ref: pool.Ref{Namespace: namespace, Name: name}}
	},
}

var endpointSlices = kind[pool.Slice]{
	resource: "endpointslices",
	example:  &discoveryv1.EndpointSlice{},
	client:   func(c kubernetes.Interface) rest.Interface { return c.DiscoveryV1().RESTClient() },
	convert:  convertTyped(convertSlice),
	// The version decides which of two slices is believed, so every new one matters.
	same: func(a, b pool.Slice) bool { return a.Version != 0 && a.Version == b.Version },
	set:  func(s pool.Slice) engine.Event { return engine.SliceSet{Slice: s} },
	gone: func(namespace, name string) engine.Event { return engine.SliceGone{Namespace: namespace, Name: name} },
}

// convertTyped turns away what is not of the type that was asked for.
func convertTyped[O, V any](convert func(*slog.Logger, *O) V) func(*slog.Logger, any) (V, error) {
	return func(log *slog.Logger, obj any) (V, error) {
		if o, ok := obj.(*O); ok && o != nil {
			return convert(log, o), nil
		}
		var none V
		return none, fmt.Errorf("converting an object of unexpected type %T", obj)
	}
}

func convertService(_ *slog.Logger, s *corev1.Service) pool.Service {
	return pool.Service{
		Ref:         pool.Ref{Namespace: s.Namespace, Name: s.Name},
		UID:         string(s.UID),
		Created:     s.CreationTimestamp.Time,
		Labels:      relevant(s.Labels),
		Annotations: relevant(s.Annotations),
		Type:        string(s.Spec.Type),
		HasSelector: len(s.Spec.Selector) > 0,
		Ports:       convertPorts(s.Spec.Ports),
	}
}

func convertPorts(ports []corev1.ServicePort) []pool.Port {
	var converted []pool.Port
	for _, p := range ports {
		converted = append(converted, pool.Port{
			Protocol: string(p.Protocol), Number: uint16(p.Port), Target: uint16(max(0, min(p.TargetPort.IntValue(), 65535))),
		})
	}
	return converted
}

// relevant keeps what pools read: other labels and annotations may change without a new computation, and need no memory.
func relevant(all map[string]string) map[string]string {
	kept := maps.Clone(all)
	maps.DeleteFunc(kept, func(k, _ string) bool { return k != pool.LabelMarker && !strings.HasPrefix(k, prefix) })
	return kept
}

func convertSlice(log *slog.Logger, s *discoveryv1.EndpointSlice) pool.Slice {
	return pool.Slice{
		Namespace:   s.Namespace,
		Name:        s.Name,
		Service:     s.Labels[discoveryv1.LabelServiceName],
		OwnerUID:    owner(s),
		Version:     version(log, s),
		AddressType: string(s.AddressType),
		Endpoints:   convertEndpoints(s.Endpoints),
		Changed:     changed(s),
	}
}

// owner is empty for slices made by hand and for mirrored ones, whose owner is an Endpoints object.
func owner(s *discoveryv1.EndpointSlice) string {
	if ref := metav1.GetControllerOf(s); ref != nil && ref.Kind == "Service" {
		return string(ref.UID)
	}
	return ""
}

// version reads metadata.resourceVersion, which clients may compare as a number:
// https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions
func version(log *slog.Logger, s *discoveryv1.EndpointSlice) uint64 {
	v, err := strconv.ParseUint(s.ResourceVersion, 10, 64)
	if err != nil {
		log.Warn("the resourceVersion of an EndpointSlice is no number; any other slice is believed rather than this one",
			"namespace", s.Namespace, "slice", s.Name, "resourceVersion", s.ResourceVersion)
		return 0
	}
	return v
}

// changed is the time that the endpointslice controller states, zero where there is none.
func changed(s *discoveryv1.EndpointSlice) time.Time {
	t, err := time.Parse(time.RFC3339Nano, s.Annotations[corev1.EndpointsLastChangeTriggerTime])
	if err != nil {
		return time.Time{}
	}
	return t
}

func convertEndpoints(endpoints []discoveryv1.Endpoint) []pool.Endpoint {
	converted := make([]pool.Endpoint, len(endpoints))
	for i, e := range endpoints {
		converted[i] = pool.Endpoint{
			Addresses:   e.Addresses,
			Ready:       e.Conditions.Ready,
			Serving:     e.Conditions.Serving,
			Terminating: e.Conditions.Terminating,
			Target:      convertTarget(e.TargetRef),
		}
	}
	return converted
}

func convertTarget(ref *corev1.ObjectReference) *pool.TargetRef {
	if ref == nil {
		return nil
	}
	return &pool.TargetRef{Kind: ref.Kind, Namespace: ref.Namespace, Name: ref.Name, UID: string(ref.UID)}
}
