package relay

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/pkg/registry/memory"
)

func (p *process) metrics() *prometheus.Registry {
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(p.Relay)
	return r
}

// value is that of one metric of a relay.
func (p *process) value(name string, labels ...string) float64 {
	p.Helper()
	families, err := p.metrics().Gather()
	require.NoError(p, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var has []string
			for _, l := range m.GetLabel() {
				has = append(has, l.GetValue())
			}
			if f.GetName() == "nsp_relay_"+name && strings.Join(has, ",") == strings.Join(labels, ",") {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	require.FailNow(p, "no such metric", "%s %v", name, labels)
	return 0
}

func TestMetricsOfAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNSP(t)
		p := n.relay(memory.New())
		time.Sleep(2 * time.Second)
		require.Zero(t, p.value("live"))
		require.InDelta(t, 2, p.value("outage_seconds_total"), 0.01, "a relay begins without")
		require.Zero(t, p.value("outages_total"), "nothing went away")
		n.start()
		p.live()
		start := p.value("outage_seconds_total")
		p.open(1, 2)
		time.Sleep(time.Minute)
		require.EqualValues(t, 1, p.value("live"))
		require.EqualValues(t, 2, p.value("registrations"))
		require.LessOrEqual(t, p.value("mirror_age_seconds"), 6.0, "heartbeats confirm it")
		require.InDelta(t, start, p.value("outage_seconds_total"), 0.01)

		n.kill()
		p.away()
		require.NoError(t, p.Register(t.Context(), target(1), from(1)))
		require.NoError(t, p.Unregister(t.Context(), target(2), from(2)))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		done := make(chan error)
		go func() { done <- p.Register(ctx, target(3), from(3)) }()
		time.Sleep(5 * time.Second)
		require.Zero(t, p.value("live"))
		require.EqualValues(t, 1, p.value("calls_waiting"))
		require.EqualValues(t, 1, p.value("registrations"))
		for _, kind := range []string{"refresh", "removal"} {
			require.EqualValues(t, 1, p.value("untold", kind))
			require.EqualValues(t, 1, p.value("answered_alone_total", kind))
		}
		require.EqualValues(t, 1, p.value("outages_total"))
		require.InDelta(t, start+5, p.value("outage_seconds_total"), 0.1)
		require.GreaterOrEqual(t, p.value("mirror_age_seconds"), 5.0)
		require.Error(t, <-done)
		require.Zero(t, p.value("calls_waiting"))

		n.start()
		p.live()
		for _, kind := range []string{"refresh", "removal"} {
			require.Zero(t, p.value("untold", kind))
		}
		p.stop()
		n.stop()
	})
}

func TestMetricsAreConventional(t *testing.T) {
	families, err := newNSP(t).relay(memory.New()).metrics().Gather()
	require.NoError(t, err)
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	require.NoError(t, err)
	require.Empty(t, problems)
}
