package relay

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// tally is what the metrics are made of besides the mirror. The lock of the relay guards it.
type tally struct {
	// since is when the namespace process went away, and zero while it is there; a relay begins without.
	since   time.Time
	outages int
	// outage is the length of those that are over.
	outage time.Duration
	// confirmed is when the namespace process last said that the mirror is as its own rows are.
	confirmed time.Time
	// waiting counts calls that need the namespace process and wait for it.
	waiting int
	// refreshed and withdrawn count calls that were answered without it.
	refreshed, withdrawn int
}

func newTally(now time.Time) tally { return tally{since: now, confirmed: now} }

func (t *tally) found(now time.Time) {
	t.outage += now.Sub(t.since)
	t.since = time.Time{}
}

func (t *tally) lost(now time.Time) {
	t.since = now
	t.outages++
}

// away is how long the namespace process was away in all, the present outage included.
func (t *tally) away(now time.Time) time.Duration {
	if t.since.IsZero() {
		return t.outage
	}
	return t.outage + now.Sub(t.since)
}

var (
	liveDesc    = desc("live", "Whether the namespace process is there and the mirror follows it (1).")
	outagesDesc = desc("outages_total", "Times that the namespace process went away.")
	outageDesc  = desc("outage_seconds_total", "Time without the namespace process since this one was started, the present outage included.")
	ageDesc     = desc("mirror_age_seconds", "Time since the namespace process last confirmed the mirror; it does so every few seconds.")
	rowsDesc    = desc("registrations", "Registrations in the mirror, without those removed here that the namespace process still has.")
	waitingDesc = desc("calls_waiting", "Calls that wait for the namespace process.")
	untoldDesc  = desc("untold", "What the namespace process has to be told when it is back: refresh or removal.", "kind")
	aloneDesc   = desc("answered_alone_total", "Calls answered without the namespace process: refresh or removal.", "kind")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("nsp_relay_"+name, help, labels, nil)
}

// Describe implements prometheus.Collector.
func (r *Relay) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{liveDesc, outagesDesc, outageDesc, ageDesc, rowsDesc, waitingDesc, untoldDesc, aloneDesc} {
		descs <- d
	}
}

// Collect implements prometheus.Collector.
func (r *Relay) Collect(metrics chan<- prometheus.Metric) {
	now := time.Now()
	r.mu.Lock()
	t, live := r.tally, r.line != nil
	rows, untoldRefreshes, untoldRemovals := r.mirror.size(), len(r.mirror.restore), len(r.mirror.pending())
	r.mu.Unlock()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v float64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	is := 0.0
	if live {
		is = 1
	}
	gauge(liveDesc, is)
	gauge(ageDesc, now.Sub(t.confirmed).Seconds())
	gauge(rowsDesc, float64(rows))
	gauge(waitingDesc, float64(t.waiting))
	gauge(untoldDesc, float64(untoldRefreshes), "refresh")
	gauge(untoldDesc, float64(untoldRemovals), "removal")
	counter(outagesDesc, float64(t.outages))
	counter(outageDesc, t.away(now).Seconds())
	counter(aloneDesc, float64(t.refreshed), "refresh")
	counter(aloneDesc, float64(t.withdrawn), "removal")
}
