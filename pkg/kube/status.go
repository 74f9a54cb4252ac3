package kube

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/pool"
)

// manager owns the conditions in metadata.managedFields, and reports the events.
const manager = "meridio-nsp"

const (
	// callTimeout bounds the calls for one Service, so that one that hangs does not hold up the others for long.
	callTimeout = 10 * time.Second
	// settling is how long a change waits to be written. Load balancers hear of it meanwhile, without the API server working
	// on our writes at that moment, and what changes and changes back is never written.
	settling = 200 * time.Millisecond
	minRetry = 500 * time.Millisecond
	maxRetry = 30 * time.Second
)

// StatusConfig configures Status.
type StatusConfig struct {
	Client kubernetes.Interface
	// Namespaces are those in which conditions are looked for that an earlier run left behind; see SetNamespaces.
	Namespaces []string
	// Interval is the least time between two writes for one Service; default 1 s.
	Interval time.Duration
	// Limit bounds the Services served per second; default 50.
	Limit float64
	Log   *slog.Logger
}

// Status writes conditions and events on Services. The latest that Pools was told of a Service is written, sooner or later,
// whatever fails in between; nothing is written twice. It is a prometheus.Collector.
type Status struct {
	cfg     StatusConfig
	limiter *rate.Limiter
	writes  *prometheus.CounterVec

	mu      sync.Mutex
	entries map[pool.Ref]*entry
	queue   workqueue.TypedRateLimitingInterface[pool.Ref] // nil unless Run runs
	// namespaces have been looked through, or are by look, which is nil unless Run runs.
	namespaces map[string]bool
	look       func(namespace string)
}

// entry is one Service. Only want is shared, under the mutex; the rest belongs to the worker.
type entry struct {
	want *engine.PoolStatus // nil: no pool any more
	// pool is set once the Service was one in this run, under the mutex too.
	pool bool
	// uid and known are the Service and its conditions as last read or written; uid is empty where that is not known.
	uid   types.UID
	known []metav1.Condition
	next  time.Time // no write before
	// stream is the one that was written last, empty where none was.
	stream string
	fault  string
}

// NewStatus makes a Status.
func NewStatus(cfg StatusConfig) *Status {
	cfg.Log = cmp.Or(cfg.Log, slog.Default())
	cfg.Interval = cmp.Or(cfg.Interval, time.Second)
	cfg.Limit = cmp.Or(cfg.Limit, 50)
	s := &Status{
		cfg:     cfg,
		limiter: rate.NewLimiter(rate.Limit(cfg.Limit), max(1, int(2*cfg.Limit))),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nsp_status_writes_total", Help: "Writes of conditions to Services.",
		}, []string{"result"}),
		entries: make(map[pool.Ref]*entry),
	}
	s.SetNamespaces(cfg.Namespaces)
	return s
}

// Pools says what there is to say of some pools; nil is a Service that is no pool any more. It does not block.
func (s *Status) Pools(changes map[pool.Ref]*engine.PoolStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ref, want := range changes {
		e := s.entries[ref]
		if e == nil {
			e = &entry{}
			s.entries[ref] = e
		}
		e.want, e.pool = want, e.pool || want != nil
		if s.queue != nil {
			s.queue.AddAfter(ref, settling)
		}
	}
}

// Run writes until ctx ends, and then returns nil.
func (s *Status) Run(ctx context.Context) error {
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: s.cfg.Client.EventsV1()})
	defer broadcaster.Shutdown()
	if err := broadcaster.StartRecordingToSinkWithContext(klog.NewContext(ctx, logr.FromSlogHandler(s.cfg.Log.Handler()))); err != nil {
		return fmt.Errorf("starting to record events: %w", err)
	}
	w := &worker{Status: s, recorder: broadcaster.NewRecorder(scheme.Scheme, manager)}

	queue := workqueue.NewTypedRateLimitingQueue(
		workqueue.NewTypedItemExponentialFailureRateLimiter[pool.Ref](minRetry, maxRetry))
	stop := context.AfterFunc(ctx, queue.ShutDown)
	defer stop()
	s.mu.Lock()
	s.queue = queue
	for ref := range s.entries {
		queue.Add(ref)
	}
	s.mu.Unlock()
	defer s.sweepAll(ctx)()

	for {
		ref, ending := queue.Get()
		if ending {
			return nil
		}
		w.serve(ctx, ref)
		queue.Done(ref)
	}
}

// worker serves one Service at a time.
type worker struct {
	*Status
	recorder events.EventRecorder
}

func (w *worker) serve(ctx context.Context, ref pool.Ref) {
	w.mu.Lock()
	e := w.entries[ref]
	if e == nil {
		w.mu.Unlock()
		return
	}
	want := e.want
	w.mu.Unlock()

	if want != nil && string(e.uid) == want.Pool.UID && e.uid != "" && sameConditions(conditionsOf(want), e.known) {
		w.queue.Forget(ref)
		return
	}
	if wait := time.Until(e.next); wait > 0 {
		w.queue.AddAfter(ref, wait)
		return
	}
	if w.limiter.Wait(ctx) != nil {
		return
	}
	calls, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	switch err := w.sync(calls, ref, e, want); {
	case ctx.Err() != nil:
		return
	case err != nil:
		w.retry(ref, e, err)
		return
	}
	e.fault = ""
	w.queue.Forget(ref)
	w.forget(ref, e)
}

// retry comes back to the Service until its write is acknowledged, and logs the kind of error once.
func (w *worker) retry(ref pool.Ref, e *entry, err error) {
	w.writes.WithLabelValues("error").Inc()
	if fault := faultOf(err); fault != e.fault {
		e.fault = fault
		w.cfg.Log.Warn("the status of a Service cannot be written; it is tried again until it can",
			"namespace", ref.Namespace, "service", ref.Name, "fault", fault, "error", err)
	}
	w.queue.AddRateLimited(ref)
}

// forget drops the entry of what is no pool, unless it has become one meanwhile.
func (w *worker) forget(ref pool.Ref, e *entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.want == nil {
		delete(w.entries, ref)
	}
}

// sync makes the Service say what is wanted.
func (w *worker) sync(ctx context.Context, ref pool.Ref, e *entry, want *engine.PoolStatus) error {
	if want != nil && e.uid != "" && string(e.uid) == want.Pool.UID {
		return w.write(ctx, ref, e, want)
	}
	service, err := w.cfg.Client.CoreV1().Services(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		e.uid, e.known = "", nil
		return nil // deleted, and its conditions with it
	}
	if err != nil {
		return fmt.Errorf("reading the Service: %w", err)
	}
	if want == nil {
		return w.remove(ctx, ref, e, service)
	}
	if string(service.UID) != want.Pool.UID {
		return nil // made anew since; what is wanted of the new one comes
	}
	e.uid, e.known = service.UID, ours(service.Status.Conditions)
	return w.write(ctx, ref, e, want)
}

func (w *worker) write(ctx context.Context, ref pool.Ref, e *entry, want *engine.PoolStatus) error {
	fresh := conditionsOf(want)
	if sameConditions(fresh, e.known) {
		return nil
	}
	fresh = withTimes(fresh, e.known, metav1.Now().Rfc3339Copy())
	// The UID keeps the write from a Service made anew.
	err := w.apply(ctx, ref, corev1ac.Service(ref.Name, ref.Namespace).WithUID(e.uid).WithStatus(statusWith(fresh)))
	if err != nil {
		e.uid, e.known = "", nil // whatever happened: read before the next try
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("writing conditions: %w", err)
	}
	was, is := find(e.known, ConditionAccepted), find(fresh, ConditionAccepted)
	if was == nil || was.Status != is.Status || was.Reason != is.Reason {
		kind := corev1.EventTypeNormal
		if is.Reason != pool.ReasonAccepted {
			kind = corev1.EventTypeWarning
		}
		w.event(ref, e.uid, kind, is.Reason, "Accept", is.Message)
	}
	if to := want.Pool.Stream.String(); want.Pool.Accepted {
		if e.stream != "" && e.stream != to {
			w.event(ref, e.uid, corev1.EventTypeNormal, ReasonStreamChanged, "Move",
				fmt.Sprintf("the Service moved from stream %s to stream %s; its pods close the one and open the other", e.stream, to))
		}
		e.stream = to
	}
	e.known, e.next = fresh, time.Now().Add(w.cfg.Interval)
	return nil
}

// remove takes the conditions from what is no pool of this NSP any more. With the marker still there the Service may be
// another NSP's by now, whose conditions bear the same names: only those written here go.
func (w *worker) remove(ctx context.Context, ref pool.Ref, e *entry, service *corev1.Service) error {
	found := ours(service.Status.Conditions)
	marked := service.Labels[pool.LabelMarker] == pool.MarkerValue
	if len(found) == 0 {
		if !marked && w.wasPool(e) { // before anything was written
			w.event(ref, service.UID, corev1.EventTypeNormal, ReasonMarkerRemoved, "Remove", markerRemoved(service))
		}
		return nil
	}
	if marked && (e.uid != service.UID || !sameConditions(found, e.known)) {
		return nil
	}
	err := w.apply(ctx, ref, corev1ac.Service(ref.Name, ref.Namespace).
		WithUID(service.UID).WithResourceVersion(service.ResourceVersion).WithStatus(statusWith(nil)))
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("removing conditions: %w", err)
	}
	if err == nil && !marked {
		w.event(ref, service.UID, corev1.EventTypeNormal, ReasonMarkerRemoved, "Remove", markerRemoved(service))
	}
	return nil
}

func (w *worker) wasPool(e *entry) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return e.pool
}

// markerRemoved says who serves the Service from now on.
func markerRemoved(s *corev1.Service) string {
	const closed = "the label " + pool.LabelMarker + " is gone or names another proxy, so the streams of its pods are closed; "
	switch {
	case s.Labels[pool.LabelMarker] != "":
		return closed + "the Service is left to the proxy " + s.Labels[pool.LabelMarker]
	case s.Spec.ClusterIP == corev1.ClusterIPNone:
		return closed + "the Service is back with kube-proxy, which does not load balance it because it is headless"
	}
	return closed + "the Service is back with kube-proxy"
}

func (w *worker) apply(ctx context.Context, ref pool.Ref, service *corev1ac.ServiceApplyConfiguration) error {
	_, err := w.cfg.Client.CoreV1().Services(ref.Namespace).ApplyStatus(ctx, service,
		metav1.ApplyOptions{FieldManager: manager, Force: true})
	if err == nil {
		w.writes.WithLabelValues("ok").Inc()
	}
	return err
}

func statusWith(conditions []metav1.Condition) *corev1ac.ServiceStatusApplyConfiguration {
	status := corev1ac.ServiceStatus()
	for _, c := range conditions {
		status.WithConditions(metav1ac.Condition().WithType(c.Type).WithStatus(c.Status).WithReason(c.Reason).
			WithMessage(c.Message).WithLastTransitionTime(c.LastTransitionTime))
	}
	return status
}

// maxNote is the limit of events.k8s.io/v1.
const maxNote = 1024

func (w *worker) event(ref pool.Ref, uid types.UID, kind, reason, action, note string) {
	service := &corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: ref.Namespace, Name: ref.Name, UID: uid}
	w.recorder.Eventf(service, nil, kind, reason, action, "%s", clip(note, maxNote))
}
