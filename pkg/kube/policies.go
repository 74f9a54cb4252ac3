package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"

	"github.com/nordix/meridio-nsp/api/v1alpha1"
	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/sources"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

var policiesResource = v1alpha1.Resource("streampolicies")

// PoliciesDocument is the name under which Save is given from where streams may be used.
const PoliciesDocument = "policies"

// maxPrefixes is from how many prefixes one stream may be used, by all its policies: so many fit into one message of the feed. What is
// beyond lets nobody in.
const maxPrefixes = 10_000

// PoliciesConfig configures Policies.
type PoliciesConfig struct {
	Client dynamic.Interface
	Sink   Sink
	// Namespace is the NSP's own, in which policies are.
	Namespace string
	// Stored is what Save was given last, nil where it was not.
	Stored []byte
	// Save keeps a document for after a restart; it must not block.
	Save func(name string, data []byte)
	// Absent is how long to wait before looking again for a kind that the cluster does not have; default 1 min.
	Absent time.Duration
	Log    *slog.Logger
}

// Policies posts AccessChanged: from where streams may be used, as the status of their StreamPolicies says, which is the controller's.
// A policy that no controller has accepted yet is not in force. While policies cannot be read what is known of them stays; where
// nothing is, nothing is posted. It is a prometheus.Collector.
type Policies struct {
	cfg PoliciesConfig

	mu     sync.Mutex
	posted []byte
	limits map[stream.Key]*sources.Set
	fault  string
	// crowded are the streams that have too many prefixes.
	crowded map[stream.Key]bool
}

// NewPolicies makes Policies.
func NewPolicies(cfg PoliciesConfig) *Policies {
	cfg.Log = cmp.Or(cfg.Log, slog.Default())
	cfg.Absent = cmp.Or(cfg.Absent, time.Minute)
	return &Policies{cfg: cfg, crowded: make(map[stream.Key]bool)}
}

// Run watches until ctx ends, and then returns nil.
func (p *Policies) Run(ctx context.Context) error {
	f := &few[*policy]{
		client: p.cfg.Client.Resource(policiesResource).Namespace(p.cfg.Namespace), kind: policiesResource.Resource,
		read: p.read, set: p.set, failed: p.failed, absent: p.cfg.Absent,
	}
	f.run(ctx)
	return nil
}

// policy is one that is in force.
type policy struct {
	stream  stream.Key
	sources *sources.Set
}

// read is nil of a policy that is not in force.
func (p *Policies) read(o *unstructured.Unstructured) *policy {
	var of v1alpha1.StreamPolicy
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &of); err != nil {
		p.cfg.Log.Warn("a StreamPolicy is not understood, and not in force", "name", o.GetName(), "error", err)
		return nil
	}
	accepted := meta.FindStatusCondition(of.Status.Conditions, v1alpha1.ConditionAccepted)
	if accepted == nil || accepted.Status == metav1.ConditionUnknown {
		return nil
	}
	var texts []string
	for _, prefix := range of.Status.Prefixes {
		texts = append(texts, string(prefix))
	}
	prefixes, err := sources.ParseAll(texts)
	if err != nil {
		p.cfg.Log.Warn("the status of a StreamPolicy has prefixes that are not understood", "name", o.GetName(), "error", err)
	}
	s := of.Spec.Stream
	return &policy{
		stream:  stream.Key{Namespace: p.cfg.Namespace, Trench: string(s.Trench), Conduit: string(s.Conduit), Name: string(s.Stream)},
		sources: sources.Of(prefixes...),
	}
}

// set takes all policies in.
func (p *Policies) set(all map[string]*policy) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = ""
	of := make(map[stream.Key][]*sources.Set)
	for _, one := range all {
		if one != nil {
			of[one.stream] = append(of[one.stream], one.sources)
		}
	}
	limits := make(map[stream.Key]*sources.Set, len(of))
	for k, sets := range of {
		limits[k] = p.bounded(k, sources.Union(sets...))
	}
	maps.DeleteFunc(p.crowded, func(k stream.Key, _ bool) bool { return limits[k] == nil })
	p.tell(limits)
}

func (p *Policies) bounded(k stream.Key, set *sources.Set) *sources.Set {
	crowded := set.Len() > maxPrefixes
	if crowded && !p.crowded[k] {
		p.cfg.Log.Warn("nobody may use a stream, for its policies have too many prefixes", "stream", k.String(), "prefixes", set.Len(), "most", maxPrefixes)
	}
	if p.crowded[k] = crowded; crowded {
		return sources.Of()
	}
	return set
}

// failed lets what was stored count where nothing was read yet. A cluster that does not know the kind has no policies; neither
// has one that does not show them and never did.
func (p *Policies) failed(err error) (seen bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if apierrors.IsNotFound(err) {
		p.fault = ""
		p.tell(map[stream.Key]*sources.Set{})
		return true
	}
	if fault := faultOf(err); fault != p.fault {
		p.fault = fault
		p.cfg.Log.Warn("policies cannot be read; what is known of them is kept", "fault", fault, "error", err)
	}
	if p.posted != nil {
		return false
	}
	limits, stored := storedLimits(p.cfg.Stored)
	if stored || apierrors.IsForbidden(err) {
		p.tell(limits)
	}
	return false
}

// limit is a stream's as it is stored.
type limit struct {
	Stream   stream.Key
	Prefixes []string
}

func storedLimits(document []byte) (limits map[stream.Key]*sources.Set, stored bool) {
	var all []limit
	if json.Unmarshal(document, &all) != nil {
		return nil, false
	}
	limits = make(map[stream.Key]*sources.Set, len(all))
	for _, l := range all {
		prefixes, _ := sources.ParseAll(l.Prefixes) // written by us
		limits[l.Stream] = sources.Of(prefixes...)
	}
	return limits, true
}

// tell posts from where streams may be used, where that differs from what was posted last.
func (p *Policies) tell(limits map[stream.Key]*sources.Set) {
	all := []limit{}
	for _, k := range slices.SortedFunc(maps.Keys(limits), stream.Compare) {
		all = append(all, limit{k, limits[k].Strings()})
	}
	document, err := json.Marshal(all)
	if err != nil {
		panic(fmt.Sprintf("encoding policies: %v", err)) // names and prefixes always can be
	}
	if slices.Equal(document, p.posted) {
		return
	}
	p.posted, p.limits = document, limits
	p.cfg.Save(PoliciesDocument, document)
	p.cfg.Log.Info("policies changed", "streams", len(limits))
	p.cfg.Sink.Post(engine.AccessChanged{Sources: limits})
}

var sourcesDesc = prometheus.NewDesc("nsp_stream_source_prefixes",
	"Prefixes from which a stream may be used, of streams that have a policy; from 0 nobody may use it.", []string{"trench", "conduit", "stream"}, nil)

// Describe implements prometheus.Collector.
func (p *Policies) Describe(descs chan<- *prometheus.Desc) { descs <- sourcesDesc }

// Collect implements prometheus.Collector.
func (p *Policies) Collect(metrics chan<- prometheus.Metric) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for k, set := range p.limits {
		gauge(metrics, sourcesDesc, float64(set.Len()), k.Trench, k.Conduit, k.Name)
	}
}
