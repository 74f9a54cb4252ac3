package kube

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/pkg/engine"
)

// Sink takes events. Post does not block and keeps the order.
type Sink interface{ Post(...engine.Event) }

// SourceConfig configures a Source.
type SourceConfig struct {
	Client kubernetes.Interface
	// Dynamic reads ExternalTargets; nil reads none.
	Dynamic dynamic.Interface
	// Identities are told what ExternalTargets prove; optional.
	Identities *auth.Targets
	Sink       Sink
	// Namespaces are those watched from the start.
	Namespaces []string
	Log        *slog.Logger
}

// Source posts the Services and EndpointSlices that bear the marker, and the ExternalTargets: per namespace one NamespaceSynced, then
// differences.
// It is a prometheus.Collector.
type Source struct {
	cfg SourceConfig
	// changed has room for one: the set is read again after each take.
	changed chan struct{}

	mu      sync.Mutex
	want    map[string]bool
	running map[string]*namespace
}

// NewSource makes a Source.
func NewSource(cfg SourceConfig) *Source {
	cfg.Log = cmp.Or(cfg.Log, slog.Default())
	s := &Source{cfg: cfg, changed: make(chan struct{}, 1), running: make(map[string]*namespace)}
	s.SetNamespaces(cfg.Namespaces)
	return s
}

// SetNamespaces replaces the set of namespaces, at any time. One that leaves it is dropped with NamespaceDropped.
func (s *Source) SetNamespaces(names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.want = make(map[string]bool, len(names))
	for _, name := range names {
		s.want[name] = true
	}
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// Run watches until ctx ends, and then returns nil. No namespace holds up another.
func (s *Source) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			for _, n := range s.running { // only this goroutine writes the map
				n.stop()
			}
			return nil
		case <-s.changed:
			s.reconcile(ctx)
		}
	}
}

// reconcile starts and stops namespaces. One that is stopped has posted its last event before it is said to be dropped.
func (s *Source) reconcile(ctx context.Context) {
	s.mu.Lock()
	var started, stopped []*namespace
	for _, name := range slices.Sorted(maps.Keys(s.want)) {
		if s.running[name] == nil {
			n := newNamespace(name, s.cfg)
			s.running[name] = n
			started = append(started, n)
		}
	}
	for name, n := range s.running {
		if !s.want[name] {
			delete(s.running, name)
			stopped = append(stopped, n)
		}
	}
	s.mu.Unlock()
	for _, n := range started {
		n.start(ctx)
	}
	for _, n := range stopped {
		n.stop()
		n.targets.identities.drop()
		s.cfg.Sink.Post(engine.NamespaceDropped{Namespace: n.name})
	}
}

// NamespaceState is what there is to say of a watched namespace.
type NamespaceState struct {
	Name   string
	Synced bool
	// Age is the time since the API server last said anything, the shortest pause being that between bookmarks, about 1 min.
	Age time.Duration
	// Err is what keeps the namespace from being read, nil while it is watched.
	Err error
}

// Namespaces lists the watched namespaces, sorted by name.
func (s *Source) Namespaces() []NamespaceState {
	s.mu.Lock()
	defer s.mu.Unlock()
	var states []NamespaceState
	for _, name := range slices.Sorted(maps.Keys(s.running)) {
		states = append(states, s.running[name].state())
	}
	return states
}

var (
	ageDesc = prometheus.NewDesc("nsp_namespace_state_age_seconds",
		"Time since the API server last said anything of a watched namespace.", []string{"namespace"}, nil)
	readableDesc = prometheus.NewDesc("nsp_namespace_readable",
		"Whether the watches of a namespace are open (1) or failing (0).", []string{"namespace"}, nil)
	syncedDesc = prometheus.NewDesc("nsp_namespace_synced",
		"Whether the state of a namespace was ever read since the process started.", []string{"namespace"}, nil)
)

// Describe implements prometheus.Collector.
func (s *Source) Describe(descs chan<- *prometheus.Desc) {
	descs <- ageDesc
	descs <- readableDesc
	descs <- syncedDesc
}

// Collect implements prometheus.Collector.
func (s *Source) Collect(metrics chan<- prometheus.Metric) {
	for _, n := range s.Namespaces() {
		gauge(metrics, ageDesc, n.Age.Seconds(), n.Name)
		gauge(metrics, readableDesc, number(n.Err == nil), n.Name)
		gauge(metrics, syncedDesc, number(n.Synced), n.Name)
	}
}

func gauge(metrics chan<- prometheus.Metric, desc *prometheus.Desc, value float64, labels ...string) {
	metrics <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
}

func number(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
