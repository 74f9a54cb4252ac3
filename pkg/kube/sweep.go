package kube

import (
	"context"
	"fmt"
	"slices"
	"sync"
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

// SetNamespaces replaces the set of namespaces, at any time. One that is new in it is looked through for what an earlier run left
// behind.
func (s *Status) SetNamespaces(names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.namespaces
	s.namespaces = make(map[string]bool, len(names))
	for _, name := range names {
		if !before[name] && !s.namespaces[name] && s.look != nil {
			s.look(name)
		}
		s.namespaces[name] = true
	}
}

// sweepAll looks through the namespaces, and those to come, until ctx ends; what it returns waits for that.
func (s *Status) sweepAll(ctx context.Context) (wait func()) {
	var sweeps sync.WaitGroup
	s.mu.Lock()
	defer s.mu.Unlock()
	s.look = func(namespace string) { sweeps.Go(func() { s.sweep(ctx, namespace) }) }
	for namespace := range s.namespaces {
		s.look(namespace)
	}
	return func() {
		s.mu.Lock()
		s.look = nil
		s.mu.Unlock()
		sweeps.Wait()
	}
}

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
