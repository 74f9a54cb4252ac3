package kube

import (
	"context"
	"fmt"
	"maps"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
)

// few follows all objects of a kind of which there are few: whenever one changes, all are told.
type few[T any] struct {
	client dynamic.ResourceInterface
	// kind is the plural, for messages.
	kind string
	read func(*unstructured.Unstructured) T
	// set is told what the objects say, by their names. The map is not changed afterwards.
	set func(map[string]T)
	// failed is told of each error, and whether it has seen to that: then the next attempt is after the pause absent.
	failed func(error) (seen bool)
	absent time.Duration
}

// run lists and watches until ctx ends.
func (f *few[T]) run(ctx context.Context) {
	forever(ctx, func(ctx context.Context) {
		err := f.once(ctx)
		if err == nil || ctx.Err() != nil || !f.failed(err) {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(f.absent):
		}
	})
}

// once lists and then watches, until the watch ends.
func (f *few[T]) once(ctx context.Context) error {
	list, err := f.client.List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing %s: %w", f.kind, err)
	}
	all := make(map[string]T)
	for i := range list.Items {
		all[list.Items[i].GetName()] = f.read(&list.Items[i])
	}
	f.set(all)
	seconds := int64(watchTimeout.Seconds())
	w, err := f.client.Watch(ctx, metav1.ListOptions{ResourceVersion: list.GetResourceVersion(), TimeoutSeconds: &seconds})
	if err != nil {
		return fmt.Errorf("watching %s: %w", f.kind, err)
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		o, ok := e.Object.(*unstructured.Unstructured)
		if !ok {
			return nil // an error, or nothing that we know: list again
		}
		all = maps.Clone(all)
		if delete(all, o.GetName()); e.Type != "DELETED" {
			all[o.GetName()] = f.read(o)
		}
		f.set(all)
	}
	return nil
}
