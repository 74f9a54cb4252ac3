package controller

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/nordix/meridio-nsp/pkg/external"
	"github.com/nordix/meridio-nsp/pkg/external/cluster"
)

// endpoints are the addresses of the Services that policies name, each followed by a watch of its own: a cache would have those of
// all Services.
type endpoints struct {
	ctx    context.Context
	client kubernetes.Interface
	// changed is told of the policies that name a Service whose state changed.
	changed func(policy types.NamespacedName)
	ended   sync.WaitGroup

	mu      sync.Mutex
	running map[types.NamespacedName]*followed
	// named are the Services of each policy.
	named map[types.NamespacedName][]types.NamespacedName
}

type followed struct {
	stop  context.CancelFunc
	state *endpointState // nil before the first report
}

// endpointState is what is known of one Service. It is immutable.
type endpointState struct {
	addrs []netip.Addr
	// read is set once there was a good answer; failure is why the latest was none.
	read    bool
	failure string
}

// newEndpoints makes endpoints that end with ctx.
func newEndpoints(ctx context.Context) *endpoints {
	return &endpoints{
		ctx: ctx, changed: func(types.NamespacedName) {},
		running: make(map[types.NamespacedName]*followed), named: make(map[types.NamespacedName][]types.NamespacedName),
	}
}

// follow replaces the Services that a policy names. Those that nobody names any more are forgotten.
func (e *endpoints) follow(policy types.NamespacedName, services []types.NamespacedName) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.named[policy] = services; len(services) == 0 {
		delete(e.named, policy)
	}
	for _, s := range services {
		if e.running[s] == nil {
			e.running[s] = e.start(s)
		}
	}
	for s, f := range e.running {
		if len(e.naming(s)) == 0 {
			f.stop()
			delete(e.running, s)
		}
	}
}

// naming are the policies that name a Service.
func (e *endpoints) naming(service types.NamespacedName) (all []types.NamespacedName) {
	for policy, services := range e.named {
		if slices.Contains(services, service) {
			all = append(all, policy)
		}
	}
	return all
}

func (e *endpoints) start(service types.NamespacedName) *followed {
	ctx, stop := context.WithCancel(e.ctx)
	f := &followed{stop: stop}
	from := cluster.New(cluster.Config{Client: e.client, Namespace: service.Namespace, Service: service.Name})
	e.ended.Go(func() { from.Run(ctx, func(r external.Report) { e.report(service, f, r) }) })
	return f
}

func (e *endpoints) report(service types.NamespacedName, f *followed, r external.Report) {
	e.mu.Lock()
	next := &endpointState{read: true}
	if r.Failure != nil {
		next.failure = strings.TrimSuffix(r.Failure.Message, ".")
		if f.state != nil {
			next.addrs, next.read = f.state.addrs, f.state.read
		} else {
			next.read = false
		}
	}
	for _, one := range r.Endpoints {
		next.addrs = append(next.addrs, one.Addr)
	}
	f.state = next
	policies := e.naming(service)
	e.mu.Unlock()
	for _, p := range policies {
		e.changed(p)
	}
}

// state is nil before the first report.
func (e *endpoints) state(service types.NamespacedName) *endpointState {
	e.mu.Lock()
	defer e.mu.Unlock()
	if f := e.running[service]; f != nil {
		return f.state
	}
	return nil
}

// reports wakes the reconciler of policies.
func (e *endpoints) reports() source.Source {
	return source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		e.changed = func(policy types.NamespacedName) { queue.Add(reconcile.Request{NamespacedName: policy}) }
		return nil
	})
}
