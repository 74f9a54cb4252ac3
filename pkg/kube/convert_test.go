package kube

import (
	"encoding/json"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/pool"
)

func TestConvertService(t *testing.T) {
	created := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s, err := services.convert(slog.Default(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "s", UID: "u", CreationTimestamp: metav1.NewTime(created), ResourceVersion: "7",
			Labels:      map[string]string{pool.LabelMarker: pool.MarkerValue, pool.LabelStream: "x", "app": "a"},
			Annotations: map[string]string{pool.AnnotationDraining: "keep", corev1.LastAppliedConfigAnnotation: "{}"},
		},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, Selector: map[string]string{"app": "a"}},
	})
	require.NoError(t, err)
	require.Equal(t, pool.Service{
		Ref: pool.Ref{Namespace: "ns", Name: "s"}, UID: "u", Created: created, Type: "ClusterIP", HasSelector: true,
		Labels:      map[string]string{pool.LabelMarker: pool.MarkerValue, pool.LabelStream: "x"},
		Annotations: map[string]string{pool.AnnotationDraining: "keep"},
	}, s)
}

// P6: no selector and an empty one are the same.
func TestConvertServiceWithoutSelector(t *testing.T) {
	for _, selector := range []map[string]string{nil, {}} {
		s, err := services.convert(slog.Default(), &corev1.Service{Spec: corev1.ServiceSpec{Selector: selector}})
		require.NoError(t, err)
		require.False(t, s.HasSelector)
	}
}

func TestConvertSlice(t *testing.T) {
	yes, no := true, false
	of := func(kind string, controller bool) []metav1.OwnerReference {
		return []metav1.OwnerReference{{Kind: "Service", UID: "other"}, {Kind: kind, UID: "u", Controller: &controller}}
	}
	base := discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "x", ResourceVersion: "18446744073709551615", OwnerReferences: of("Service", true),
			Labels:      map[string]string{discoveryv1.LabelServiceName: "s"},
			Annotations: map[string]string{corev1.EndpointsLastChangeTriggerTime: "2026-01-02T03:04:05.123456789Z"},
		},
		AddressType: discoveryv1.AddressTypeIPv6,
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"2001:db8::1"}, Conditions: discoveryv1.EndpointConditions{Ready: &no, Serving: &yes, Terminating: &yes},
				TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "ns", Name: "p", UID: "u1"}},
			{},
		},
	}
	want := pool.Slice{
		Namespace: "ns", Name: "x", Service: "s", OwnerUID: "u", Version: 18446744073709551615, AddressType: "IPv6",
		Changed: time.Date(2026, 1, 2, 3, 4, 5, 123456789, time.UTC),
		Endpoints: []pool.Endpoint{
			{Addresses: []string{"2001:db8::1"}, Ready: &no, Serving: &yes, Terminating: &yes,
				Target: &pool.TargetRef{Kind: "Pod", Namespace: "ns", Name: "p", UID: "u1"}},
			{}, // D3: nil conditions stay nil
		},
	}
	for name, tc := range map[string]struct {
		change func(*discoveryv1.EndpointSlice)
		expect func(*pool.Slice)
	}{
		"full":         {func(*discoveryv1.EndpointSlice) {}, func(*pool.Slice) {}},
		"mirrored":     {func(s *discoveryv1.EndpointSlice) { s.OwnerReferences = of("Endpoints", true) }, func(s *pool.Slice) { s.OwnerUID = "" }},
		"uncontrolled": {func(s *discoveryv1.EndpointSlice) { s.OwnerReferences = of("Service", false) }, func(s *pool.Slice) { s.OwnerUID = "" }},
		"by hand":      {func(s *discoveryv1.EndpointSlice) { s.OwnerReferences = nil }, func(s *pool.Slice) { s.OwnerUID = "" }},
		"odd version":  {func(s *discoveryv1.EndpointSlice) { s.ResourceVersion = "x1" }, func(s *pool.Slice) { s.Version = 0 }},
		"odd time": {func(s *discoveryv1.EndpointSlice) { s.Annotations[corev1.EndpointsLastChangeTriggerTime] = "yesterday" },
			func(s *pool.Slice) { s.Changed = time.Time{} }},
		"bare": {func(s *discoveryv1.EndpointSlice) { *s = discoveryv1.EndpointSlice{} },
			func(s *pool.Slice) { *s = pool.Slice{Endpoints: []pool.Endpoint{}} }},
	} {
		t.Run(name, func(t *testing.T) {
			in, out := base.DeepCopy(), want
			tc.change(in)
			tc.expect(&out)
			log, lines := newLog()
			got, err := endpointSlices.convert(log, in)
			require.NoError(t, err)
			require.Equal(t, out, got)
			require.Equal(t, out.Version == 0, lines.count("resourceVersion") > 0, "an odd version is logged")
		})
	}
}

func TestConvertRefusesOtherTypes(t *testing.T) {
	for _, odd := range []any{nil, 7, &corev1.Pod{}, (*corev1.Service)(nil), (*discoveryv1.EndpointSlice)(nil), cache.DeletedFinalStateUnknown{}} {
		_, err := services.convert(slog.Default(), odd)
		require.Error(t, err)
		_, err = endpointSlices.convert(slog.Default(), odd)
		require.Error(t, err)
	}
}

// D10: whatever a store is handed, it neither panics nor loses what it has; a tombstone deletes.
func TestStoreTombstone(t *testing.T) {
	posted := &sink{}
	n := newNamespace("ns", SourceConfig{Sink: posted, Log: slog.Default()})
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "x", ResourceVersion: "1"}}
	require.NoError(t, n.services.Replace([]any{nil, 7}, ""))
	require.NoError(t, n.slices.Replace([]any{slice}, ""))
	require.Error(t, n.slices.Add(&corev1.Service{}))
	require.Error(t, n.slices.Delete(7))
	synced := posted.take(t, 1)[0].(engine.NamespaceSynced)
	require.Len(t, synced.Slices, 1)
	require.Empty(t, synced.Services)

	require.NoError(t, n.slices.Delete(cache.DeletedFinalStateUnknown{Key: "ns/x"}))
	require.NoError(t, n.slices.Delete(cache.DeletedFinalStateUnknown{Key: "ns/unknown", Obj: 7}))
	require.Equal(t, []engine.Event{engine.SliceGone{Namespace: "ns", Name: "x"}}, posted.take(t, 1))
}

// Any object that JSON can describe is converted, and equal objects convert to what counts as the same.
func FuzzConvert(f *testing.F) {
	f.Add([]byte(`{"metadata":{"name":"x","resourceVersion":"1","ownerReferences":[{"controller":true}]},"endpoints":[{"targetRef":{}}]}`))
	f.Add([]byte(`{"metadata":{"labels":{"meridio.nordix.org/stream":""}},"spec":{"selector":{}}}`))
	log := slog.New(slog.DiscardHandler)
	f.Fuzz(func(t *testing.T, data []byte) {
		var service corev1.Service
		if json.Unmarshal(data, &service) == nil {
			a, err := services.convert(log, &service)
			require.NoError(t, err)
			b, _ := services.convert(log, service.DeepCopy())
			require.True(t, services.same(a, b))
		}
		var slice discoveryv1.EndpointSlice
		if json.Unmarshal(data, &slice) == nil {
			a, err := endpointSlices.convert(log, &slice)
			require.NoError(t, err)
			require.Len(t, a.Endpoints, len(slice.Endpoints))
		}
	})
}
