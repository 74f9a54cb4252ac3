package kube

import (
	"fmt"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/nordix/meridio-nsp/pkg/engine"
)

// store holds what is known of one kind in one namespace, converted, and posts the differences. A reflector feeds it: after a
// relist by Replace, so that what went while nobody watched is found by its absence. It is guarded by the namespace's mutex.
type store[V any] struct {
	kind[V]
	ns     *namespace
	items  map[string]V // by name
	synced bool
	heard  time.Time // when the API server last said anything of this kind
}

var (
	_ cache.TransformingStore      = (*store[int])(nil)
	_ cache.ReflectorBookmarkStore = (*store[int])(nil)
)

func newStore[V any](ns *namespace, k kind[V]) *store[V] {
	return &store[V]{kind: k, ns: ns, items: make(map[string]V), heard: time.Now()}
}

// Add takes a new object in.
func (s *store[V]) Add(obj any) error { return s.Update(obj) }

// Update takes a changed object in.
func (s *store[V]) Update(obj any) error {
	name, value, err := s.read(obj)
	if err != nil {
		return err
	}
	s.ns.mu.Lock()
	defer s.ns.mu.Unlock()
	s.heard = time.Now()
	s.ns.post(s.put(name, value)...)
	return nil
}

// Delete drops an object; a tombstone, which knows only the key, will do.
func (s *store[V]) Delete(obj any) error {
	key, err := cache.DeletionHandlingObjectToName(obj)
	if err != nil {
		return fmt.Errorf("deleting from %s: %w", s.resource, err)
	}
	s.ns.mu.Lock()
	defer s.ns.mu.Unlock()
	s.heard = time.Now()
	s.ns.post(s.drop(key.Name)...)
	return nil
}

// Replace takes the complete state in. What it says is posted at once: an endpoint that moved to another slice while nobody watched is
// never in none.
func (s *store[V]) Replace(objs []any, _ string) error {
	values := make(map[string]V, len(objs))
	for _, obj := range objs {
		name, value, err := s.read(obj)
		if err != nil {
			s.ns.log.Error("object ignored", "error", err)
			continue
		}
		values[name] = value
	}
	s.ns.mu.Lock()
	defer s.ns.mu.Unlock()
	s.heard = time.Now()
	var events []engine.Event
	for _, name := range slices.Sorted(maps.Keys(s.items)) {
		if _, ok := values[name]; !ok {
			events = append(events, s.drop(name)...)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		events = append(events, s.put(name, values[name])...)
	}
	s.ns.post(events...)
	s.synced = true
	s.ns.postInitial()
	return nil
}

// Resync has nothing to do: nothing is derived from the store.
func (s *store[V]) Resync() error { return nil }

// Bookmark is a sign of life, about one a minute.
func (s *store[V]) Bookmark(string) error {
	s.ns.mu.Lock()
	defer s.ns.mu.Unlock()
	s.heard = time.Now()
	return nil
}

// Transformer keeps the reflector's own copy of a first list small.
func (s *store[V]) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) {
		if o, ok := obj.(metav1.Object); ok {
			o.SetManagedFields(nil)
		}
		return obj, nil
	}
}

func (s *store[V]) read(obj any) (string, V, error) {
	value, err := s.convert(s.ns.log, obj)
	if err != nil {
		return "", value, err
	}
	return obj.(metav1.Object).GetName(), value, nil
}

// put keeps an object and returns what there is to post of it.
func (s *store[V]) put(name string, value V) []engine.Event {
	old, known := s.items[name]
	if known && s.same(old, value) {
		return nil
	}
	s.items[name] = value
	return []engine.Event{s.set(value)}
}

// drop forgets an object, likewise.
func (s *store[V]) drop(name string) []engine.Event {
	if _, known := s.items[name]; !known {
		return nil
	}
	delete(s.items, name)
	return []engine.Event{s.gone(s.ns.name, name)}
}

func (s *store[V]) sorted() []V {
	values := make([]V, 0, len(s.items))
	for _, name := range slices.Sorted(maps.Keys(s.items)) {
		values = append(values, s.items[name])
	}
	return values
}

// post is a no-op before the first sync: the complete state will say it all.
func (n *namespace) post(events ...engine.Event) {
	if n.synced && len(events) > 0 {
		n.sink.Post(events...)
	}
}

func (n *namespace) postInitial() {
	if n.synced || !n.services.synced || !n.slices.synced || !n.targets.known {
		return
	}
	n.synced = true
	n.sink.Post(engine.NamespaceSynced{Namespace: n.name, Services: n.services.sorted(), Slices: n.slices.sorted(),
		Targets: n.targets.sorted()})
}
