package nsp

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/server"
)

// reportedStreams bounds the streams that have figures of their own. Only configured ones have any, so it takes an operator, and
// no client, to reach it; of more the fullest are reported.
const reportedStreams = 1000

// live collects what is read when it is asked for.
type live struct {
	// engine is nil where there is none.
	engine *engine.Engine
	server *server.Server
}

var (
	streamLabels = []string{"trench", "conduit", "stream"}
	heldDesc     = prometheus.NewDesc("nsp_stream_identifiers",
		"Identifiers of a configured stream that targets hold or have reserved.", streamLabels, nil)
	limitDesc = prometheus.NewDesc("nsp_stream_max_targets",
		"Identifiers that a configured stream has (max-targets).", streamLabels, nil)
	omittedDesc = prometheus.NewDesc("nsp_streams_unreported",
		"Configured streams beyond the 1000 fullest, which have no figures of their own.", nil, nil)
	backlogDesc = prometheus.NewDesc("nsp_engine_backlog", "Inputs that wait to be taken in.", nil, nil)
	lagDesc     = prometheus.NewDesc("nsp_watch_lag_seconds",
		"For how long the slowest receiver of a method has not taken what it is being sent, beyond some 64 KiB on the way; 0 where all keep up.",
		[]string{"method"}, nil)
	coalescedDesc = prometheus.NewDesc("nsp_coalesced_changes_total",
		"Changes that a load balancer or trench process never saw, because a later one of the same target came before it read.", nil, nil)
)

// Describe implements prometheus.Collector.
func (l *live) Describe(descs chan<- *prometheus.Desc) {
	own := []*prometheus.Desc{lagDesc, coalescedDesc}
	if l.engine != nil {
		own = append(own, heldDesc, limitDesc, omittedDesc, backlogDesc)
	}
	for _, d := range own {
		descs <- d
	}
}

// Collect implements prometheus.Collector.
func (l *live) Collect(metrics chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for method, lag := range l.server.Lags() {
		gauge(lagDesc, lag.Seconds(), method)
	}
	metrics <- prometheus.MustNewConstMetric(coalescedDesc, prometheus.CounterValue, float64(l.server.Coalesced()))
	if l.engine == nil {
		return
	}
	gauge(backlogDesc, float64(l.engine.Backlog()))
	// An engine that is so busy, or has ended, has no figures; those that are asked for next time may be better.
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	usages, err := l.engine.Usages(ctx)
	if err != nil {
		return
	}
	reported := fullest(usages, reportedStreams)
	gauge(omittedDesc, float64(len(usages)-len(reported)))
	for _, u := range reported {
		gauge(heldDesc, float64(u.Held), u.Stream.Trench, u.Stream.Conduit, u.Stream.Name)
		gauge(limitDesc, float64(u.Limit), u.Stream.Trench, u.Stream.Conduit, u.Stream.Name)
	}
}

// fullest are at most n of the streams, those with the greatest share of their identifiers held. It may reorder what it is given.
func fullest(all []engine.Usage, n int) []engine.Usage {
	if len(all) <= n {
		return all
	}
	share := func(u engine.Usage) float64 { return float64(u.Held) / float64(u.Limit) }
	slices.SortFunc(all, func(a, b engine.Usage) int {
		return cmp.Or(cmp.Compare(share(b), share(a)), strings.Compare(a.Stream.String(), b.Stream.String()))
	})
	return all[:n]
}
