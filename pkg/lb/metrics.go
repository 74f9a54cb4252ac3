package lb

import (
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/nordix/meridio-nsp/pkg/lb/nft"
)

// metrics of one Balancer. Counts of packets are read from the kernel when they are asked for.
type metrics struct {
	registry *prometheus.Registry
	applies  *prometheus.CounterVec
	reported prometheus.Histogram
	received prometheus.Histogram

	balancer                                 *Balancer
	flowPackets, flowBytes                   *prometheus.Desc
	targetPackets, targetBytes               *prometheus.Desc
	targets                                  *prometheus.Desc
	dropped, pending, refused, connected, up *prometheus.Desc
}

// latencyBuckets go from what a small table takes to what is no fast path any more, in seconds.
var latencyBuckets = []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30, 60}

func newMetrics(b *Balancer) *metrics {
	constant := prometheus.Labels{"trench": b.cfg.Trench, "conduit": b.cfg.Conduit}
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("stateless_lb_"+name, help, labels, constant)
	}
	histogram := func(name, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "stateless_lb_" + name, Help: help, Buckets: latencyBuckets, ConstLabels: constant,
		})
	}
	m := &metrics{
		registry: prometheus.NewRegistry(), balancer: b,
		applies: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stateless_lb_rounds_total", Help: "Attempts to bring the kernel to what is desired.", ConstLabels: constant,
		}, []string{"result"}),
		reported: histogram("readiness_to_kernel_seconds",
			"From when the cluster reported that a target's state changed until the kernel forwarded accordingly."),
		received: histogram("update_to_kernel_seconds", "From when an update of a target arrived until the kernel forwarded accordingly."),

		flowPackets:   desc("flow_packets_total", "Packets that a flow took; summed, those of a stream.", "stream", "flow"),
		flowBytes:     desc("flow_bytes_total", "Bytes of packets that a flow took.", "stream", "flow"),
		targetPackets: desc("target_packets_total", "Packets that were sent to a target.", "stream", "identifier"),
		targetBytes:   desc("target_bytes_total", "Bytes of packets that were sent to a target.", "stream", "identifier"),
		targets:       desc("targets", "Targets that the NSP has named, by state; pending ones among them.", "stream", "state"),
		dropped:       desc("dropped_packets_total", "Packets to VIPs that were dropped; the stream is that which had no target.", "reason", "stream"),
		pending:       desc("pending_targets", "Targets that no link leads to yet."),
		refused:       desc("refused", "Flows, targets and others that cannot be programmed; the log names them."),
		connected:     desc("connected", "Whether all watches are live."),
		up:            desc("programmed", "Whether the kernel has what is desired."),
	}
	m.registry.MustRegister(m.applies, m.reported, m.received, m, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Metrics are those of the load balancer.
func (b *Balancer) Metrics() prometheus.Gatherer { return b.metrics.registry }

// applied counts a round. A cause that is not known, as that of a registration, is not observed.
func (m *metrics) applied(news []cause, r nft.Result, err error) {
	now := time.Now()
	switch {
	case err != nil:
		m.applies.WithLabelValues("failed").Inc()
		return
	case r.Changed:
		m.applies.WithLabelValues("changed").Inc()
	default:
		m.applies.WithLabelValues("unchanged").Inc()
	}
	for _, c := range news {
		m.received.Observe(now.Sub(c.received).Seconds())
		if !c.reported.IsZero() {
			m.reported.Observe(max(0, now.Sub(c.reported).Seconds()))
		}
	}
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		m.flowPackets, m.flowBytes, m.targetPackets, m.targetBytes, m.targets, m.dropped, m.pending, m.refused, m.connected, m.up,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64) { ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v) }
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	s := m.balancer.Status()
	gauge(m.pending, float64(len(s.Pending)))
	gauge(m.refused, float64(len(s.Refused)))
	gauge(m.connected, number(s.Connected))
	gauge(m.up, number(s.Programmed))
	for stream, n := range s.Targets {
		ch <- prometheus.MustNewConstMetric(m.targets, prometheus.GaugeValue, float64(n.Active), stream, "active")
		ch <- prometheus.MustNewConstMetric(m.targets, prometheus.GaugeValue, float64(n.Draining), stream, "draining")
	}
	counters, err := m.balancer.plane.Counters()
	if err != nil {
		m.balancer.log.Warn("counters could not be read", "error", err)
		return
	}
	for flow, n := range counters.Flows {
		count(m.flowPackets, n.Packets, s.StreamOf[flow], flow)
		count(m.flowBytes, n.Bytes, s.StreamOf[flow], flow)
	}
	for t, n := range counters.Targets {
		id := strconv.FormatUint(uint64(t.Identifier), 10)
		count(m.targetPackets, n.Packets, t.Stream, id)
		count(m.targetBytes, n.Bytes, t.Stream, id)
	}
	for why, n := range counters.Drops {
		reason, stream, _ := strings.Cut(why, ".")
		count(m.dropped, n.Packets, reason, stream)
	}
}

func number(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
