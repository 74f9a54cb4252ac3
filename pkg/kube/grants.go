package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/nordix/meridio-nsp/api/v1alpha1"
	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/pool"
)

// AnnotationTargetNamespaces on Meridio's Trench object lists namespaces, separated by commas, whose pods may join all of its
// streams.
const AnnotationTargetNamespaces = prefix + "target-namespaces"

var (
	grantsResource = v1alpha1.Resource("targetgrants")
	// trenchResource is Meridio's own kind.
	trenchResource = schema.GroupVersionResource{Group: "meridio.nordix.org", Version: "v1", Resource: "trenches"}
)

// GrantsDocument is the name under which Save is given the grants.
const GrantsDocument = "grants"

// GrantsConfig configures Grants.
type GrantsConfig struct {
	Client dynamic.Interface
	Sink   Sink
	// Namespace is the NSP's own, in which grants and Trench objects are.
	Namespace string
	// Stored are the grants as Save was given them last, nil where it was not.
	Stored []byte
	// Save keeps a document for after a restart; it must not block.
	Save func(name string, data []byte)
	// Changed is told of the namespaces that grants name, sorted, before the sink is told of the grants.
	Changed func(namespaces []string)
	// Absent is how long to wait before looking again for a kind that the cluster does not have; default 1 min.
	Absent time.Duration
	Log    *slog.Logger
}

// Grants posts GrantsChanged: the TargetGrants of the namespace and the annotations of its Trench objects, first what was stored,
// or, once both kinds were read or are known to be absent, what the cluster says. While the cluster cannot be read the last state
// stays.
type Grants struct {
	cfg GrantsConfig

	mu sync.Mutex
	// of are the grants by kind and object; a kind that was never read is not in it.
	of     map[string]map[string][]pool.Grant
	posted []byte
	faults map[string]string
}

// NewGrants makes Grants.
func NewGrants(cfg GrantsConfig) *Grants {
	cfg.Log = cmp.Or(cfg.Log, slog.Default())
	cfg.Absent = cmp.Or(cfg.Absent, time.Minute)
	return &Grants{cfg: cfg, of: make(map[string]map[string][]pool.Grant), faults: make(map[string]string)}
}

// StoredGrants reads what Save was given; damaged or absent ones are none.
func StoredGrants(document []byte) *pool.Grants {
	var all []pool.Grant
	if json.Unmarshal(document, &all) != nil {
		return nil
	}
	return pool.NewGrants(all)
}

// Run watches until ctx ends, and then returns nil.
func (g *Grants) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { g.follow(ctx, grantsResource, grantsOf) })
	wg.Go(func() { g.follow(ctx, trenchResource, annotated) })
	wg.Wait()
	return nil
}

// reader says what one object grants.
type reader func(*unstructured.Unstructured) ([]pool.Grant, error)

// follow keeps the grants of one kind up to date.
func (g *Grants) follow(ctx context.Context, kind schema.GroupVersionResource, read reader) {
	f := &few[[]pool.Grant]{
		client: g.cfg.Client.Resource(kind).Namespace(g.cfg.Namespace), kind: kind.Resource, absent: g.cfg.Absent,
		set: func(all map[string][]pool.Grant) { g.set(kind.Resource, all) },
		read: func(o *unstructured.Unstructured) []pool.Grant {
			grants, err := read(o)
			if err != nil {
				g.cfg.Log.Warn("an object grants nothing, for it is not understood", "kind", kind.Resource, "name", o.GetName(), "error", err)
			}
			return grants
		},
		failed: func(err error) (seen bool) {
			if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) && kind == trenchResource {
				// The cluster does not know the kind, or nobody wants its annotations to count.
				g.set(kind.Resource, map[string][]pool.Grant{})
				return true
			}
			g.failed(kind.Resource, err)
			return false
		},
	}
	f.run(ctx)
}

// failed lets what was stored count where nothing was read yet, so that an API server that is away holds up nobody for ever.
func (g *Grants) failed(kind string, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if fault := faultOf(err); fault != g.faults[kind] {
		g.faults[kind] = fault
		g.cfg.Log.Warn("grants cannot be read; what is known of them is kept", "kind", kind, "fault", fault, "error", err)
	}
	if g.posted != nil {
		return
	}
	g.tell(StoredGrants(g.cfg.Stored))
}

// set takes the grants of one kind in and posts all of them, once every kind was read.
func (g *Grants) set(kind string, all map[string][]pool.Grant) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.faults, kind)
	g.of[kind] = all
	if len(g.of) < 2 {
		return
	}
	var grants []pool.Grant
	for _, objects := range g.of {
		for _, some := range objects {
			grants = append(grants, some...)
		}
	}
	g.tell(pool.NewGrants(grants))
}

// tell posts the grants where they differ from those posted last.
func (g *Grants) tell(grants *pool.Grants) {
	document, err := json.Marshal(grants.All())
	if err != nil || slices.Equal(document, g.posted) {
		return
	}
	g.posted = document
	g.cfg.Save(GrantsDocument, document)
	if g.cfg.Changed != nil {
		g.cfg.Changed(grants.Namespaces())
	}
	g.cfg.Log.Info("grants changed", "namespaces", grants.Namespaces())
	g.cfg.Sink.Post(engine.GrantsChanged{Grants: grants})
}

// grantsOf reads a TargetGrant: each of "from" with each of "to".
func grantsOf(o *unstructured.Unstructured) ([]pool.Grant, error) {
	var grant v1alpha1.TargetGrant
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &grant); err != nil {
		return nil, fmt.Errorf("reading a TargetGrant: %w", err)
	}
	var all []pool.Grant
	for _, from := range grant.Spec.From {
		for _, to := range grant.Spec.To {
			all = append(all, pool.Grant{
				Namespace: string(from.Namespace), Accounts: texts(from.ServiceAccounts), Externals: texts(from.ExternalTargets),
				Trench: string(to.Trench), Conduit: string(to.Conduit), Stream: string(to.Stream),
			})
		}
	}
	return all, nil
}

func texts[S ~string](in []S) []string {
	var out []string
	for _, s := range in {
		out = append(out, string(s))
	}
	return out
}

// annotated reads the annotation of a Trench object. The trench has the name of the object.
func annotated(o *unstructured.Unstructured) ([]pool.Grant, error) {
	var all []pool.Grant
	for name := range strings.SplitSeq(o.GetAnnotations()[AnnotationTargetNamespaces], ",") {
		switch name = strings.TrimSpace(name); {
		case name == pool.Any:
			return all, errors.New("the annotation names namespaces one by one; * is not understood")
		case name != "":
			all = append(all, pool.Grant{Namespace: name, Trench: o.GetName()})
		}
	}
	return all, nil
}
