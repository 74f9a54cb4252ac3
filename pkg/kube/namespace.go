package kube

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/pool"
)

// marked selects pools and their slices on the server.
var marked = labels.SelectorFromSet(labels.Set{pool.LabelMarker: pool.MarkerValue}).String()

// namespace watches the Services and slices of one namespace.
type namespace struct {
	name   string
	client kubernetes.Interface
	sink   Sink
	log    *slog.Logger

	mu       sync.Mutex // guards all below and the stores; held while posting, so that events keep their order
	services *store[pool.Service]
	slices   *store[pool.Slice]
	targets  *targets
	synced   bool
	faults   map[string]error // by resource, what keeps it from being read
	fault    string           // the kind of fault reported last, empty for none
	cancel   context.CancelFunc
	done     chan struct{}
}

func newNamespace(name string, cfg SourceConfig) *namespace {
	n := &namespace{name: name, client: cfg.Client, sink: cfg.Sink, log: cfg.Log.With("namespace", name),
		faults: make(map[string]error), done: make(chan struct{})}
	n.services = newStore(n, services)
	n.slices = newStore(n, endpointSlices)
	n.targets = newTargets(n, cfg.Dynamic, cfg.Identities)
	return n
}

func (n *namespace) start(ctx context.Context) {
	ctx, n.cancel = context.WithCancel(ctx)
	go func() {
		defer close(n.done)
		var wg sync.WaitGroup
		wg.Go(func() { follow(ctx, n, n.services) })
		wg.Go(func() { follow(ctx, n, n.slices) })
		wg.Go(func() { n.targets.follow(ctx) })
		wg.Wait()
	}()
}

func (n *namespace) stop() {
	n.cancel()
	<-n.done
}

// follow keeps one store up to date. A cut watch is continued inside ListAndWatch; what ends it starts with a list.
func follow[V any](ctx context.Context, n *namespace, s *store[V]) {
	lw := cache.NewFilteredListWatchFromClient(s.client(n.client), s.resource, n.name,
		func(o *metav1.ListOptions) { o.LabelSelector = marked })
	ctx = klog.NewContext(ctx, logr.FromSlogHandler(n.log.Handler()))
	report := func(err error) { n.report(ctx, s.resource, err) }
	r := cache.NewReflectorWithOptions(watched{lw, report}, s.example, s,
		cache.ReflectorOptions{Name: n.name + "/" + s.resource, Backoff: pauses()})
	forever(ctx, func(ctx context.Context) {
		if err := r.ListAndWatchWithContext(ctx); err != nil {
			report(err)
		}
	})
}

// watched reports how opening a watch went.
type watched struct {
	*cache.ListWatch
	report func(error)
}

// WatchWithContext reports success, and those failures after which the reflector goes on by itself.
func (w watched) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	events, err := w.ListWatch.WatchWithContext(ctx, options)
	switch {
	case err == nil:
		w.report(nil)
	case options.SendInitialEvents != nil:
		// With its type hidden the reflector tries a plain list at once, whose error comes back to us; in its own retry loop
		// it would say nothing and not heed the end of ctx.
		err = fmt.Errorf("listing by watch: %v", err) //nolint:errorlint // on purpose, see above
	default:
		w.report(err)
	}
	return events, err
}

// report notes whether a resource can be read, and says so when the kind of fault changed.
func (n *namespace) report(ctx context.Context, resource string, err error) {
	if ctx.Err() != nil || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return // ending, or about to list anew
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.faults[resource] = err; err == nil {
		delete(n.faults, resource)
	}
	kind, err := n.worst()
	if kind == n.fault {
		return
	}
	n.fault = kind
	if err == nil {
		n.log.Info("the namespace can be read again")
		return
	}
	n.log.Warn("the namespace cannot be read; what is known of it is kept", "fault", kind, "error", err, "synced", n.synced)
	n.sink.Post(engine.NamespaceUnavailable{Namespace: n.name, Err: err})
}

// worst is the first fault in a fixed order, so that two resources in trouble are one fault.
func (n *namespace) worst() (string, error) {
	for _, resource := range []string{n.services.resource, n.slices.resource} {
		if err := n.faults[resource]; err != nil {
			return faultOf(err), fmt.Errorf("reading %s of namespace %s: %w", resource, n.name, err)
		}
	}
	return "", nil
}

// faultOf names the kind of an error: the reason that the API server gives, or Unreachable.
func faultOf(err error) string {
	if reason := apierrors.ReasonForError(err); reason != metav1.StatusReasonUnknown {
		return string(reason)
	}
	return "Unreachable"
}

// state is what there is to say of the namespace now.
func (n *namespace) state() NamespaceState {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, err := n.worst()
	heard := n.services.heard
	if n.slices.heard.Before(heard) {
		heard = n.slices.heard
	}
	return NamespaceState{Name: n.name, Synced: n.synced, Age: time.Since(heard), Err: err}
}
