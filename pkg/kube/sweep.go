package kube

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/nordix/meridio-nsp/pkg/pool"
)

// unmarked selects, on the server, what source.go does not watch.
var unmarked = fields.OneTermNotEqualSelector(pool.LabelMarker, pool.MarkerValue).String()

// sweepPage bounds one answer: a namespace may have thousands of Services that are none of our business.
const sweepPage = 500

// sweep looks once for Services that lost their marker while nobody watched: nothing else would ever take their conditions
// away, and they would claim to be served. It tries until it has seen them all.
func (s *Status) sweep(ctx context.Context, namespace string) {
	pause, fault := pauses(), ""
	for {
		err := s.trySweep(ctx, namespace)
		if err == nil || ctx.Err() != nil {
			return
		}
		if kind := faultOf(err); kind != fault {
			fault = kind
			s.cfg.Log.Warn("conditions that an earlier run left behind cannot be looked for; it is tried again until they can",
				"namespace", namespace, "fault", kind, "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause.Step()):
		}
	}
}

func (s *Status) trySweep(ctx context.Context, namespace string) error {
	options := metav1.ListOptions{LabelSelector: unmarked, Limit: sweepPage}
	for {
		page, err := s.cfg.Client.CoreV1().Services(namespace).List(ctx, options)
		if err != nil {
			return fmt.Errorf("listing Services without the marker: %w", err)
		}
		for i := range page.Items {
			if service := &page.Items[i]; wroteTo(service) {
				s.leftover(pool.Ref{Namespace: service.Namespace, Name: service.Name})
			}
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return nil
		}
	}
}

// wroteTo is whether conditions there are of this program's writing.
func wroteTo(service *corev1.Service) bool {
	return len(ours(service.Status.Conditions)) > 0 &&
		slices.ContainsFunc(service.ManagedFields, func(f metav1.ManagedFieldsEntry) bool {
			return f.Manager == manager && f.Subresource == "status"
		})
}

// leftover has the conditions of a Service removed, unless the engine has spoken of it: it knows more than the list.
func (s *Status) leftover(ref pool.Ref) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.entries[ref] == nil {
		s.entries[ref] = &entry{}
		s.queue.Add(ref)
	}
}
