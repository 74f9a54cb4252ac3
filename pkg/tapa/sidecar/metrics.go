package sidecar

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/nordix/meridio-nsp/pkg/cli"
	"github.com/nordix/meridio-nsp/pkg/tapa"
	"github.com/nordix/meridio-nsp/pkg/targetpool/client"
)

// metrics are those of the process. It implements tapa.Observer.
type metrics struct {
	registry   *prometheus.Registry
	operations *prometheus.CounterVec
	took       *prometheus.HistogramVec
	sessions   prometheus.Counter
	notStored  prometheus.Counter
	refused    prometheus.Counter
}

func newMetrics() *metrics {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	f := promauto.With(r)
	counter := func(name, help string) prometheus.Counter {
		return f.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "tapa_build_info", Help: "Always 1; the version is a label.", ConstLabels: prometheus.Labels{"version": cli.Version},
	}, func() float64 { return 1 })
	return &metrics{
		registry: r,
		operations: f.NewCounterVec(prometheus.CounterOpts{
			Name: "tapa_operations_total", Help: "Attempts to open or close a stream, by result: ok or error.",
		}, []string{"operation", "result"}),
		took: f.NewHistogramVec(prometheus.HistogramOpts{
			Name: "tapa_operation_duration_seconds", Help: "Time an attempt to open or close took.", Buckets: prometheus.DefBuckets,
		}, []string{"operation"}),
		sessions:  counter("tapa_connector_sessions_total", "Times that the connector began to tell what is open; a restarted TAPA begins anew."),
		notStored: counter("tapa_state_write_errors_total", "Failed writes of the state file."),
		refused:   counter("tapa_assignments_refused_total", "Assigned streams that are not of the NSP's namespace."),
	}
}

// watch has the metrics of streams and connections read when they are asked for.
func (m *metrics) watch(r *tapa.Reconciler, a *client.Assignments) {
	m.registry.MustRegister(&streams{r}, &link{a, r})
}

// Operated implements tapa.Observer.
func (m *metrics) Operated(operation string, took time.Duration, err error) {
	result := "ok"
	if err != nil {
		result = "error"
	}
	m.operations.WithLabelValues(operation, result).Inc()
	m.took.WithLabelValues(operation).Observe(took.Seconds())
}

// Session implements tapa.Observer.
func (m *metrics) Session() { m.sessions.Inc() }

// NotStored implements tapa.Observer.
func (m *metrics) NotStored() { m.notStored.Inc() }

func (m *metrics) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}))
	return mux
}

var (
	streamLabels = []string{"trench", "conduit", "stream"}
	statusDesc   = prometheus.NewDesc("tapa_stream_status",
		"1 for the status that a stream has, 0 for the others: OPEN, PENDING, UNAVAILABLE, UNDEFINED.", append(streamLabels, "status"), nil)
	ownerDesc = prometheus.NewDesc("tapa_stream_owner",
		"1 where it wants the stream, else 0: application, pool.", append(streamLabels, "owner"), nil)
	nspDesc       = prometheus.NewDesc("tapa_nsp_up", "1 while the watch at the NSP is live.", nil, nil)
	connectorDesc = prometheus.NewDesc("tapa_connector_up", "1 while the connector tells what is open.", nil, nil)
)

// streams collects what the streams are like.
type streams struct{ reconciler *tapa.Reconciler }

// Describe implements prometheus.Collector.
func (s *streams) Describe(ch chan<- *prometheus.Desc) { ch <- statusDesc; ch <- ownerDesc }

// Collect implements prometheus.Collector.
func (s *streams) Collect(ch chan<- prometheus.Metric) {
	view, _ := s.reconciler.View()
	for _, row := range view.Rows {
		gauge := func(d *prometheus.Desc, is bool, last string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, one(is), row.Stream.Trench, row.Stream.Conduit, row.Stream.Name, last)
		}
		for _, status := range tapa.Statuses {
			gauge(statusDesc, row.Status == status, status.String())
		}
		gauge(ownerDesc, row.Owners.Has(tapa.Application), "application")
		gauge(ownerDesc, row.Owners.Has(tapa.Pool), "pool")
	}
}

// link collects whether the two connections are up.
type link struct {
	assigned   *client.Assignments
	reconciler *tapa.Reconciler
}

// Describe implements prometheus.Collector.
func (l *link) Describe(ch chan<- *prometheus.Desc) { ch <- nspDesc; ch <- connectorDesc }

// Collect implements prometheus.Collector.
func (l *link) Collect(ch chan<- prometheus.Metric) {
	view, _ := l.reconciler.View()
	ch <- prometheus.MustNewConstMetric(nspDesc, prometheus.GaugeValue, one(l.assigned.Status().Live))
	ch <- prometheus.MustNewConstMetric(connectorDesc, prometheus.GaugeValue, one(view.Connected))
}

func one(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
