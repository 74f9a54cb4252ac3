package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/nordix/meridio-nsp/api/v1alpha1"
)

// Config configures Run.
type Config struct {
	REST *rest.Config
	// Namespace is the controller's own, in which the lease of the leader is, and the StreamPolicies are.
	Namespace string
	// ClusterName is that of this cluster: no source may give it to another one. Empty where it has none.
	ClusterName string
	// TargetNamespaces are those whose objects are looked at; none stands for all.
	TargetNamespaces []string
	// LeaderElection lets one of several processes work at a time. Identity names this one.
	LeaderElection bool
	// Providers are the connections to providers, by name.
	Providers map[string]grpc.ClientConnInterface
	// MetricsAddress and HealthAddress are listened at; empty for not at all.
	MetricsAddress, HealthAddress string
	Log                           *slog.Logger
}

// leaseName is that of the lease of the leader.
const leaseName = "meridio-nsp-controller"

// shutdownTimeout is how long writes that are under way may take at the end.
const shutdownTimeout = 5 * time.Second

// Run works until ctx ends, and then returns nil, or until leadership is lost.
func Run(ctx context.Context, cfg Config) error {
	m, err := newManager(cfg)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	w, e := newWatches(ctx), newEndpoints(ctx)
	defer func() { cancel(); w.ended.Wait(); e.ended.Wait() }()
	if err := errors.Join(setUp(m, cfg, w), setUpPolicies(m, cfg, e)); err != nil {
		return err
	}
	if err := m.Start(ctx); err != nil {
		return fmt.Errorf("running the controller: %w", err)
	}
	return nil
}

func newManager(cfg Config) (manager.Manager, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	mine := labels.SelectorFromSet(labels.Set{discoveryv1.LabelManagedBy: ManagedBy})
	options := manager.Options{
		Scheme: scheme,
		Logger: logr.FromSlogHandler(cmp.Or(cfg.Log, slog.Default()).Handler()),
		Cache: cache.Options{
			DefaultTransform: cache.TransformStripManagedFields(),
			ByObject: map[client.Object]cache.ByObject{
				&discoveryv1.EndpointSlice{}: {Label: mine},
				&v1alpha1.StreamPolicy{}:     {Namespaces: map[string]cache.Config{cfg.Namespace: {}}},
			},
		},
		Metrics:                       metricsserver.Options{BindAddress: cmp.Or(cfg.MetricsAddress, "0")},
		HealthProbeBindAddress:        cmp.Or(cfg.HealthAddress, "0"),
		LeaderElection:                cfg.LeaderElection,
		LeaderElectionID:              leaseName,
		LeaderElectionNamespace:       cfg.Namespace,
		LeaderElectionReleaseOnCancel: true, // Run returns as soon as it has ended
		GracefulShutdownTimeout:       new(shutdownTimeout),
		Controller:                    config.Controller{SkipNameValidation: new(true)}, // tests run several in a process
	}
	if len(cfg.TargetNamespaces) > 0 {
		options.Cache.DefaultNamespaces = make(map[string]cache.Config)
		for _, n := range cfg.TargetNamespaces {
			options.Cache.DefaultNamespaces[n] = cache.Config{}
		}
	}
	m, err := manager.New(cfg.REST, options)
	if err != nil {
		return nil, fmt.Errorf("making the controller: %w", err)
	}
	always := func(*http.Request) error { return nil }
	return m, errors.Join(m.AddHealthzCheck("alive", always), m.AddReadyzCheck("alive", always))
}

// setUp says what wakes which reconciler.
func setUp(m manager.Manager, cfg Config, w *watches) error {
	c := m.GetClient()
	err := errors.Join(
		builder.ControllerManagedBy(m).Named("externaltarget").
			For(&v1alpha1.ExternalTarget{}, builder.WithPredicates(specOrLabels())).
			Watches(&corev1.Service{}, handler.EnqueueRequestsFromMapFunc(targetsOf(c)), builder.WithPredicates(relevantOfService())).
			WatchesRawSource(reports(w)).
			WithOptions(controller.Options{MaxConcurrentReconciles: 4}).
			Complete(&targets{client: c, sources: &sources{reader: m.GetAPIReader(), providers: cfg.Providers, cluster: cfg.ClusterName}, watches: w}),
		builder.ControllerManagedBy(m).Named("service").
			For(&corev1.Service{}, builder.WithPredicates(relevantOfService())).
			Owns(&discoveryv1.EndpointSlice{}).
			Watches(&v1alpha1.ExternalTarget{}, handler.EnqueueRequestsFromMapFunc(servicesOf(c))).
			WithOptions(controller.Options{MaxConcurrentReconciles: 4}).
			Complete(&services{c}),
		builder.ControllerManagedBy(m).Named("targetpool").
			For(&v1alpha1.TargetPool{}).
			Owns(&corev1.Service{}, builder.WithPredicates(relevantOfService())).
			Complete(&pools{c}),
	)
	if err != nil {
		return fmt.Errorf("making the controller: %w", err)
	}
	return setUpStreams(m)
}

// setUpPolicies says what wakes the reconciler of StreamPolicies.
func setUpPolicies(m manager.Manager, cfg Config, e *endpoints) error {
	clients, err := kubernetes.NewForConfigAndClient(m.GetConfig(), m.GetHTTPClient())
	if err != nil {
		return fmt.Errorf("making the controller: %w", err)
	}
	e.client = clients
	c := m.GetClient()
	err = builder.ControllerManagedBy(m).Named("streampolicy").
		For(&v1alpha1.StreamPolicy{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.ExternalTarget{}, handler.EnqueueRequestsFromMapFunc(policiesOf(c, cfg.Namespace))).
		Watches(&corev1.Service{}, handler.EnqueueRequestsFromMapFunc(policiesOf(c, cfg.Namespace)), builder.WithPredicates(relevantOfService())).
		WatchesRawSource(e.reports()).
		Complete(&policies{client: c, watched: cfg.TargetNamespaces, services: e, before: make(map[types.NamespacedName]foundBefore)})
	if err != nil {
		return fmt.Errorf("making the controller: %w", err)
	}
	return nil
}

// policiesOf are the StreamPolicies that name the object, or one of another kind with its name.
func policiesOf(c client.Client, namespace string) handler.MapFunc {
	return func(ctx context.Context, object client.Object) (requests []reconcile.Request) {
		var list v1alpha1.StreamPolicyList
		if err := c.List(ctx, &list, client.InNamespace(namespace)); err != nil {
			return nil // as above
		}
		names := func(ref *v1alpha1.ObjectReference) bool {
			return ref != nil && string(ref.Name) == object.GetName() && cmp.Or(string(ref.Namespace), namespace) == object.GetNamespace()
		}
		for i := range list.Items {
			if slices.ContainsFunc(list.Items[i].Spec.Sources, func(s v1alpha1.PolicySource) bool { return names(s.ExternalTarget) || names(s.Service) }) {
				requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
			}
		}
		return requests
	}
}

// setUpStreams is for clusters in which Meridio is installed.
func setUpStreams(m manager.Manager) error {
	mapping, err := m.GetRESTMapper().RESTMapping(streamKind)
	if meta.IsNoMatchError(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("looking for Meridio's Stream objects: %w", err)
	}
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(mapping.GroupVersionKind)
	return builder.ControllerManagedBy(m).Named("stream").
		For(object).
		Owns(&corev1.Service{}, builder.WithPredicates(relevantOfService())).
		Complete(&streams{m.GetClient(), mapping.GroupVersionKind, m.GetEventRecorder(fieldManager)})
}

// reports wakes the reconciler of the target that a source has reported of.
func reports(w *watches) source.Source {
	return source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		w.changed = func(name types.NamespacedName) { queue.Add(reconcile.Request{NamespacedName: name}) }
		return nil
	})
}

// servicesOf are the Services that select the target. An update is asked of before and after.
func servicesOf(c client.Client) handler.MapFunc {
	return func(ctx context.Context, object client.Object) (requests []reconcile.Request) {
		var list corev1.ServiceList
		if err := c.List(ctx, &list, client.InNamespace(object.GetNamespace())); err != nil {
			return nil // from memory: it fails only at the end
		}
		for i := range list.Items {
			if selects(&list.Items[i], object.GetLabels()) {
				requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
			}
		}
		return requests
	}
}

// targetsOf are all ExternalTargets of the namespace: which a Service selected before is not known any more.
func targetsOf(c client.Client) handler.MapFunc {
	return func(ctx context.Context, object client.Object) (requests []reconcile.Request) {
		var list v1alpha1.ExternalTargetList
		if err := c.List(ctx, &list, client.InNamespace(object.GetNamespace())); err != nil {
			return nil // as above
		}
		for i := range list.Items {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
		return requests
	}
}

// specOrLabels leaves out what is written here.
func specOrLabels() predicate.Predicate {
	return predicate.Or[client.Object](predicate.GenerationChangedPredicate{}, predicate.LabelChangedPredicate{})
}

// relevantOfService leaves out the conditions of Services, which change all the time.
func relevantOfService() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok1 := e.ObjectOld.(*corev1.Service)
		after, ok2 := e.ObjectNew.(*corev1.Service)
		return !ok1 || !ok2 || !equality.Semantic.DeepEqual(before.Spec, after.Spec) ||
			!equality.Semantic.DeepEqual(before.Labels, after.Labels) ||
			!equality.Semantic.DeepEqual(before.Annotations, after.Annotations) ||
			!equality.Semantic.DeepEqual(before.OwnerReferences, after.OwnerReferences) ||
			!before.DeletionTimestamp.Equal(after.DeletionTimestamp)
	}}
}
