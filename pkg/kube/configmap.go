package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

// watchTimeout bounds a watch, so that one that died unnoticed is opened again; a random part of it is added.
const watchTimeout = 5 * time.Minute

var errNoBookmark = errors.New("the watch ended before its initial state was complete")

// ConfigMapWatch watches one ConfigMap by name. It needs the verb watch only, which a Role can limit to that name: the current
// state comes as the initial events of a streaming list, and that there is none from the bookmark at their end.
//
// https://kubernetes.io/docs/reference/using-api/api-concepts/#streaming-lists
type ConfigMapWatch struct {
	Client          kubernetes.Interface
	Namespace, Name string
	Log             *slog.Logger
	// Changed is called from Run's goroutine for the first state and each later one; present is false where there is no such
	// ConfigMap. It is not called again for a state that it was told last.
	Changed func(data map[string]string, present bool)

	heard atomic.Int64 // Unix time in ns of the last sign of life
	told  string       // the resourceVersion of the last state told, none if absent, empty before the first
	fault string
}

// none is no resourceVersion.
const none = "none"

// Run watches until ctx ends, and then returns nil.
func (w *ConfigMapWatch) Run(ctx context.Context) error {
	w.Log = cmp.Or(w.Log, slog.Default()).With("namespace", w.Namespace, "configmap", w.Name)
	w.heard.CompareAndSwap(0, time.Now().UnixNano())
	forever(ctx, func(ctx context.Context) {
		if complete, err := w.watch(ctx); ctx.Err() == nil {
			w.report(complete, err)
		}
	})
	return nil
}

// Age is the time since the API server last said anything, about a minute at most while it answers; 0 before Run.
func (w *ConfigMapWatch) Age() time.Duration {
	if ns := w.heard.Load(); ns != 0 {
		return time.Since(time.Unix(0, ns))
	}
	return 0
}

// watch is one watch from its beginning to its end; complete is whether its initial state was read.
func (w *ConfigMapWatch) watch(ctx context.Context) (complete bool, err error) {
	events, err := w.Client.CoreV1().ConfigMaps(w.Namespace).Watch(ctx, metav1.ListOptions{
		FieldSelector:        fields.OneTermEqualSelector(metav1.ObjectNameField, w.Name).String(),
		SendInitialEvents:    new(true),
		ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
		AllowWatchBookmarks:  true,
		TimeoutSeconds:       new(int64((watchTimeout + rand.N(watchTimeout)).Seconds())),
	})
	if err != nil {
		return false, err
	}
	defer events.Stop()
	seen := false
	for e := range events.ResultChan() {
		w.heard.Store(time.Now().UnixNano())
		switch e.Type {
		case watch.Error:
			return complete, apierrors.FromObject(e.Object)
		case watch.Bookmark:
			if !complete && initialEnd(e) {
				complete = true
				w.recovered()
				if !seen {
					w.absent()
				}
			}
		case watch.Deleted:
			w.absent()
		case watch.Added, watch.Modified:
			seen = true
			w.present(e)
		}
	}
	if !complete {
		return false, errNoBookmark
	}
	return true, nil
}

func initialEnd(e watch.Event) bool {
	o, ok := e.Object.(metav1.Object)
	return ok && o.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true"
}

// present skips what is told already: each new watch begins with the current state.
func (w *ConfigMapWatch) present(e watch.Event) {
	m, ok := e.Object.(*corev1.ConfigMap)
	if !ok || m.ResourceVersion == w.told {
		return
	}
	w.told = m.ResourceVersion
	w.Changed(m.Data, true)
}

func (w *ConfigMapWatch) absent() {
	if w.told != none {
		w.told = none
		w.Changed(nil, false)
	}
}

// report logs a fault once, until there is another or none.
func (w *ConfigMapWatch) report(complete bool, err error) {
	if err == nil || complete || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return // the normal end of a watch; the next one tells
	}
	if kind := faultOf(err); kind != w.fault {
		w.fault = kind
		err = fmt.Errorf("watching: %w", err)
		w.Log.Warn("the ConfigMap cannot be read; what was read of it is kept", "fault", kind, "error", err, "known", w.told != "")
	}
}

func (w *ConfigMapWatch) recovered() {
	if w.fault != "" {
		w.fault = ""
		w.Log.Info("the ConfigMap can be read again")
	}
}
