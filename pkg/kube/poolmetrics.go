package kube

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/pool"
)

var (
	membersDesc = prometheus.NewDesc("nsp_pool_members",
		"Members of a Service: all, ready, draining, registered (in its stream), active (taking traffic), withheld (held by another trench), "+
			"unwatched (no sidecar watches for it), waiting (for an identifier).",
		[]string{"namespace", "service", "state"}, nil)
	panicDesc = prometheus.NewDesc("nsp_pool_panic",
		"Whether so few members of a Service are ready that all count as active (1).", []string{"namespace", "service"}, nil)
	strangersDesc = prometheus.NewDesc("nsp_pool_unmatched_targets",
		"Registrations in the stream of a Service that belong to no member of any pool of that stream.", []string{"namespace", "service"}, nil)
)

var queueDesc = prometheus.NewDesc("nsp_status_queue", "Services whose conditions are to be looked at, some of them not yet.", nil, nil)

// Describe implements prometheus.Collector.
func (s *Status) Describe(descs chan<- *prometheus.Desc) {
	s.writes.Describe(descs)
	descs <- queueDesc
	descs <- membersDesc
	descs <- panicDesc
	descs <- strangersDesc
}

// Collect implements prometheus.Collector.
func (s *Status) Collect(metrics chan<- prometheus.Metric) {
	s.writes.Collect(metrics)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queue != nil {
		gauge(metrics, queueDesc, float64(s.queue.Len()))
	}
	for ref, e := range s.entries {
		if e.want != nil {
			collectPool(metrics, ref, e.want)
		}
	}
}

func collectPool(metrics chan<- prometheus.Metric, ref pool.Ref, is *engine.PoolStatus) {
	c := is.Pool.Counts
	for state, n := range map[string]int{
		"all": c.Members, "ready": c.Ready, "draining": c.Draining, "registered": is.Targets.Registered,
		"active": is.Targets.Active, "withheld": c.Withheld,
		"unwatched": is.Unwatched.Total, "waiting": is.Waiting.Total,
	} {
		gauge(metrics, membersDesc, float64(n), ref.Namespace, ref.Name, state)
	}
	gauge(metrics, panicDesc, number(is.Pool.Panic), ref.Namespace, ref.Name)
	gauge(metrics, strangersDesc, float64(is.Strangers.Total), ref.Namespace, ref.Name)
}
