package play

import (
	"context"
	"fmt"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

// Slices watches the EndpointSlices of a namespace on its own, to tell when the cluster announced something.
type Slices struct {
	watch watch.Interface

	mu      sync.Mutex
	ready   map[string]bool
	at      map[string]time.Time
	changed chan struct{}
}

// WatchSlices begins to watch.
func WatchSlices(ctx context.Context, c kubernetes.Interface, namespace string) (*Slices, error) {
	w, err := c.DiscoveryV1().EndpointSlices(namespace).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("watching EndpointSlices of %s: %w", namespace, err)
	}
	return &Slices{
		watch: w, ready: make(map[string]bool), at: make(map[string]time.Time), changed: make(chan struct{}),
	}, nil
}

// Run watches until ctx ends.
func (s *Slices) Run(ctx context.Context) error {
	defer s.watch.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case ev, ok := <-s.watch.ResultChan():
			if !ok {
				return fmt.Errorf("the watch of EndpointSlices was cut: %w", context.Cause(ctx))
			}
			if slice, is := ev.Object.(*discoveryv1.EndpointSlice); is && ev.Type != watch.Deleted {
				s.note(slice, time.Now())
			}
		}
	}
}

func (s *Slices) note(slice *discoveryv1.EndpointSlice, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ep := range slice.Endpoints {
		if ep.TargetRef == nil {
			continue
		}
		ready := ep.Conditions.Ready == nil || *ep.Conditions.Ready
		was, known := s.ready[ep.TargetRef.Name]
		if !known || was != ready {
			s.ready[ep.TargetRef.Name], s.at[ep.TargetRef.Name] = ready, now
		}
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// WaitReady waits until a slice says of a pod that it is ready, or is not, and returns when it first said so.
func (s *Slices) WaitReady(ctx context.Context, pod string, ready bool) (time.Time, error) {
	for {
		s.mu.Lock()
		is, known := s.ready[pod]
		at, changed := s.at[pod], s.changed
		s.mu.Unlock()
		if known && is == ready {
			return at, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("waiting for an EndpointSlice to say ready=%v of %s: %w", ready, pod, context.Cause(ctx))
		}
	}
}
