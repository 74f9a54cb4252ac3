package nsp

import (
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/registry"
)

// metrics are those of the whole process.
type metrics struct {
	registry *prometheus.Registry

	watchers *prometheus.GaugeVec
	sent     *prometheus.CounterVec
	messages *prometheus.CounterVec
	calls    *prometheus.CounterVec
	took     *prometheus.HistogramVec
	// traffic has the counters of each method that has sent something, for each message: a *traffic by its name.
	traffic sync.Map

	turn, wait prometheus.Histogram
	rows       prometheus.Counter
	refused    prometheus.Counter
	// propagation is by where the time begins; causes from before started say nothing of this process.
	propagation *prometheus.HistogramVec
	started     time.Time

	operations               *prometheus.CounterVec
	expired, storeErrors     prometheus.Counter
	entries, blocked, queued prometheus.Gauge
	storeUp                  prometheus.Gauge
	store                    prometheus.Histogram
}

// fine are buckets, in seconds, for what takes from 10 us to 1 s, and coarse for what takes from 0.5 ms to 10 s.
var (
	fine   = prometheus.ExponentialBuckets(10e-6, 2.5, 13)
	coarse = []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10}
)

// Where the propagation of readiness is measured from.
const (
	fromCluster = "cluster"
	fromEvent   = "event"
)

// What became of an operation of the registry.
const (
	resultOK        = "ok"
	resultFailed    = "failed"
	resultAbandoned = "abandoned"
)

func newMetrics() *metrics {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	f := promauto.With(r)
	counter := func(name, help string) prometheus.Counter {
		return f.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return f.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	histogram := func(name, help string) prometheus.Histogram {
		return f.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: fine})
	}
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "nsp_build_info", Help: "Always 1; the version is a label.", ConstLabels: prometheus.Labels{"version": Version},
	}, func() float64 { return 1 })
	return &metrics{
		registry: r,
		watchers: f.NewGaugeVec(prometheus.GaugeOpts{Name: "nsp_watchers", Help: "Open watches."}, []string{"method"}),
		sent: f.NewCounterVec(prometheus.CounterOpts{
			Name: "nsp_sent_bytes_total", Help: "Bytes of watch messages, before framing.",
		}, []string{"method"}),
		messages: f.NewCounterVec(prometheus.CounterOpts{
			Name: "nsp_sent_messages_total", Help: "Messages of watches, heartbeats included.",
		}, []string{"method"}),
		calls: f.NewCounterVec(prometheus.CounterOpts{
			Name: "nsp_calls_total", Help: "Calls and watches that ended, by gRPC code.",
		}, []string{"method", "code"}),
		took: f.NewHistogramVec(prometheus.HistogramOpts{
			Name: "nsp_call_duration_seconds", Help: "Time a call took; of a watch, how long it lasted.", Buckets: prometheus.DefBuckets,
		}, []string{"method"}),
		turn: histogram("nsp_engine_turn_seconds", "Time from taking a batch of inputs to having published what follows."),
		wait: histogram("nsp_engine_wait_seconds", "Time the oldest input of a batch waited."),
		rows: counter("nsp_engine_rows_changed_total", "Registrations whose state or content changed."),
		refused: counter("nsp_trenches_refused_total",
			"Times that the configuration of a trench which a client named was not asked for, because too many are."),
		propagation: newPropagation(f),
		started:     time.Now(),
		operations: f.NewCounterVec(prometheus.CounterOpts{
			Name: "nsp_registry_operations_total",
			Help: "What was done to the registry, refreshes included: ok, failed (the store did), abandoned (the caller gave up before its turn).",
		}, []string{"result"}),
		expired:     counter("nsp_registry_expired_total", "Registrations removed because nobody refreshed them."),
		storeErrors: counter("nsp_registry_store_errors_total", "Failed writes of the store."),
		entries:     gauge("nsp_registry_entries", "Registrations."),
		blocked:     gauge("nsp_registry_blocked", "Registrations that wait for an identifier which another one holds."),
		queued:      gauge("nsp_registry_queued", "Targets that are not registered yet because they wait to be given an identifier."),
		storeUp:     gauge("nsp_registry_store_up", "1 where the last write of the store succeeded, 0 where it failed or the registry file cannot be opened."),
		store:       histogram("nsp_registry_store_seconds", "Time one transaction of the store took."),
	}
}

// Watching implements server.Observer.
func (m *metrics) Watching(method string) func() {
	g := m.watchers.WithLabelValues(method)
	g.Inc()
	return g.Dec
}

// Sent implements server.Observer.
func (m *metrics) Sent(method string, bytes int) {
	known, ok := m.traffic.Load(method)
	if !ok {
		known, _ = m.traffic.LoadOrStore(method, &traffic{
			bytes: m.sent.WithLabelValues(method), messages: m.messages.WithLabelValues(method),
		})
	}
	t := known.(*traffic)
	t.bytes.Add(float64(bytes))
	t.messages.Inc()
}

// traffic counts what watches of one method are sent.
type traffic struct{ bytes, messages prometheus.Counter }

// Called implements server.Observer.
func (m *metrics) Called(method, code string, took time.Duration) {
	m.calls.WithLabelValues(method, code).Inc()
	m.took.WithLabelValues(method).Observe(took.Seconds())
}

func (m *metrics) committed(c engine.Commit) {
	m.turn.Observe(c.Took.Seconds())
	m.wait.Observe(c.Waited.Seconds())
	m.rows.Add(float64(c.Rows))
	m.refused.Add(float64(c.Refused))
	now := time.Now()
	for _, at := range c.Events {
		m.propagation.WithLabelValues(fromEvent).Observe(now.Sub(at).Seconds())
	}
	for _, at := range c.Causes {
		if at.After(m.started) {
			m.propagation.WithLabelValues(fromCluster).Observe(max(0, now.Sub(at)).Seconds())
		}
	}
}

// newPropagation is the one thing that all this is for.
func newPropagation(f promauto.Factory) *prometheus.HistogramVec {
	h := f.NewHistogramVec(prometheus.HistogramOpts{
		Name: "nsp_readiness_propagation_seconds",
		Help: "Time until watchers were told, from the change that the cluster states " +
			"(cluster: endpoints.kubernetes.io/last-change-trigger-time, in whole seconds; one for each target) " +
			"or from the arrival of an EndpointSlice that changed some target (event).",
		Buckets: coarse,
	}, []string{"from"})
	h.WithLabelValues(fromCluster)
	h.WithLabelValues(fromEvent)
	return h
}

func (m *metrics) round(r registry.Round) {
	m.operations.WithLabelValues(resultOK).Add(float64(r.Operations))
	m.operations.WithLabelValues(resultFailed).Add(float64(r.Failed))
	m.operations.WithLabelValues(resultAbandoned).Add(float64(r.Abandoned))
	m.expired.Add(float64(r.Expired))
	m.entries.Set(float64(r.Entries))
	m.blocked.Set(float64(r.Waiting))
	m.queued.Set(float64(r.Queued))
	if r.Store > 0 {
		m.store.Observe(r.Store.Seconds())
	}
	if r.Err != nil {
		m.storeErrors.Inc()
	}
}

// storing is told whether the store works.
func (m *metrics) storing(works bool) {
	if works {
		m.storeUp.Set(1)
	} else {
		m.storeUp.Set(0)
	}
}

func (m *metrics) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}))
	return mux
}
