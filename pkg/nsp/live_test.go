package nsp

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// Where there are too many streams those are reported that are about to be full.
func TestFullestStreams(t *testing.T) {
	var all []engine.Usage
	for i := range 10 {
		all = append(all, engine.Usage{Stream: stream.Key{Name: fmt.Sprint(i)}, Held: i, Limit: 10})
	}
	require.Len(t, fullest(all, 10), 10)
	var names []string
	for _, u := range fullest(all, 3) {
		names = append(names, u.Stream.Name)
	}
	require.Equal(t, []string{"9", "8", "7"}, names)
}

// The cluster's time counts from the start of the process on, and never as negative: clocks differ.
func TestPropagation(t *testing.T) {
	m := newMetrics()
	now := time.Now()
	m.committed(engine.Commit{
		Events: []time.Time{now.Add(-3 * time.Millisecond)},
		Causes: []time.Time{now.Add(-time.Hour), now.Add(time.Hour)},
	})
	got := map[string]uint64{}
	families, err := m.registry.Gather()
	require.NoError(t, err)
	for _, f := range families {
		for _, metric := range f.GetMetric() {
			if f.GetName() == "nsp_readiness_propagation_seconds" {
				got[metric.GetLabel()[0].GetValue()] = metric.GetHistogram().GetSampleCount()
				require.GreaterOrEqual(t, metric.GetHistogram().GetSampleSum(), 0.0)
			}
		}
	}
	require.Equal(t, map[string]uint64{fromCluster: 1, fromEvent: 1}, got)
}

func TestOperationsByResult(t *testing.T) {
	m := newMetrics()
	m.round(registry.Round{Operations: 5, Failed: 2, Abandoned: 1, Queued: 7})
	require.NoError(t, testutil.GatherAndCompare(m.registry, strings.NewReader(`
# HELP nsp_registry_operations_total What was done to the registry, refreshes included: ok, failed (the store did), abandoned (the caller gave up before its turn).
# TYPE nsp_registry_operations_total counter
nsp_registry_operations_total{result="abandoned"} 1
nsp_registry_operations_total{result="failed"} 2
nsp_registry_operations_total{result="ok"} 5
`), "nsp_registry_operations_total"))
	require.InDelta(t, 7, testutil.ToFloat64(m.queued), 0)
}
