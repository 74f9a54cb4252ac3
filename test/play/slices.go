package play

import (
	"context"
	"errors"
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
	// OnEvent, if set before Run, is called for each change.
	OnEvent func(SliceEvent)

	mu      sync.Mutex
	pods    map[string]SliceEvent
	listed  map[string]map[string]bool // pods by slice
	changed chan struct{}
}

// SliceEvent is a change of what EndpointSlices say of a pod.
type SliceEvent struct {
	Time time.Time
	Pod  string
	// State is one of the constants.
	State string
}

// What EndpointSlices say of a pod.
const (
	PodReady       = "ready"
	PodNotReady    = "not ready"
	PodTerminating = "terminating" // and not ready
	PodGone        = "gone"        // from all slices
)

// WatchSlices begins to watch.
func WatchSlices(ctx context.Context, c kubernetes.Interface, namespace string) (*Slices, error) {
	w, err := c.DiscoveryV1().EndpointSlices(namespace).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("watching EndpointSlices of %s: %w", namespace, err)
	}
	return &Slices{
		watch: w, pods: make(map[string]SliceEvent), listed: make(map[string]map[string]bool), changed: make(chan struct{}),
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
				if ctx.Err() != nil {
					return nil
				}
				return errors.New("the watch of EndpointSlices was cut")
			}
			if slice, is := ev.Object.(*discoveryv1.EndpointSlice); is {
				s.take(slice, ev.Type == watch.Deleted, time.Now())
			}
		}
	}
}

// take notes what a slice says. The slices of the two families of a Service say the same, one after the other; the first counts.
func (s *Slices) take(slice *discoveryv1.EndpointSlice, deleted bool, now time.Time) {
	events := s.note(slice, deleted, now)
	for _, ev := range events {
		if s.OnEvent != nil {
			s.OnEvent(ev)
		}
	}
}

func (s *Slices) note(slice *discoveryv1.EndpointSlice, deleted bool, now time.Time) (events []SliceEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	set := func(pod, state string) {
		if s.pods[pod].State != state {
			s.pods[pod] = SliceEvent{Time: now, Pod: pod, State: state}
			events = append(events, s.pods[pod])
		}
	}
	before := s.listed[slice.Name]
	listed := make(map[string]bool)
	s.listed[slice.Name] = listed
	for _, ep := range slice.Endpoints {
		if ep.TargetRef != nil && !deleted {
			listed[ep.TargetRef.Name] = true
			set(ep.TargetRef.Name, podState(ep.Conditions))
		}
	}
	for pod := range before {
		if !s.anySlice(pod) {
			set(pod, PodGone)
		}
	}
	close(s.changed)
	s.changed = make(chan struct{})
	return events
}

func (s *Slices) anySlice(pod string) bool {
	for _, pods := range s.listed {
		if pods[pod] {
			return true
		}
	}
	return false
}

// podState reads unset conditions as discovery/v1 says.
func podState(c discoveryv1.EndpointConditions) string {
	switch {
	case c.Ready == nil || *c.Ready:
		return PodReady
	case c.Terminating != nil && *c.Terminating:
		return PodTerminating
	default:
		return PodNotReady
	}
}

// WaitReady waits until a slice says of a pod that it is ready, or is not, and returns when it first said so.
func (s *Slices) WaitReady(ctx context.Context, pod string, ready bool) (time.Time, error) {
	for {
		s.mu.Lock()
		last, known := s.pods[pod]
		changed := s.changed
		s.mu.Unlock()
		if known && (last.State == PodReady) == ready {
			return last.Time, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("waiting for an EndpointSlice to say ready=%v of %s: %w", ready, pod, context.Cause(ctx))
		}
	}
}
