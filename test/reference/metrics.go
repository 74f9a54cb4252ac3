package reference

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
)

// Metric is one that a process has.
type Metric struct {
	Name, Help string
	Type       dto.MetricType
	Labels     []string
	// Of are the processes that have it.
	Of []string
}

// Metrics are those that registries have, by the name of the process, without those of the Go runtime. Metrics with labels say what type
// they are only once something was counted: until then they are counters or gauges, as their names say.
func Metrics(t *testing.T, registries map[string]*prometheus.Registry) []Metric {
	t.Helper()
	all := map[string]*Metric{}
	for _, process := range slices.Sorted(maps.Keys(registries)) {
		types := typesOf(t, registries[process])
		for d := range descsOf(registries[process]) {
			m := parseDesc(t, d)
			if strings.HasPrefix(m.Name, "go_") || strings.HasPrefix(m.Name, "process_") {
				continue
			}
			if all[m.Name] == nil {
				all[m.Name] = &m
			}
			known := all[m.Name]
			require.Equal(t, known.Help, m.Help, "%s means two things", m.Name)
			known.Of = append(known.Of, process)
			if is, seen := types[m.Name]; seen {
				known.Type = is
			}
		}
	}
	var out []Metric
	for _, m := range all {
		out = append(out, *m)
	}
	slices.SortFunc(out, func(a, b Metric) int { return cmp.Compare(a.Name, b.Name) })
	lint(t, out)
	return out
}

func descsOf(r *prometheus.Registry) <-chan *prometheus.Desc {
	descs := make(chan *prometheus.Desc)
	go func() { defer close(descs); r.Describe(descs) }()
	return descs
}

func typesOf(t *testing.T, r *prometheus.Registry) map[string]dto.MetricType {
	t.Helper()
	families, err := r.Gather()
	require.NoError(t, err)
	types := map[string]dto.MetricType{}
	for _, f := range families {
		types[f.GetName()] = f.GetType()
	}
	return types
}

// A Desc tells what it is by its text only.
var descText = regexp.MustCompile(`^Desc\{fqName: ("(?:[^"\\]|\\.)*"), help: ("(?:[^"\\]|\\.)*"), unit: "[^"]*", constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)

func parseDesc(t *testing.T, d *prometheus.Desc) Metric {
	t.Helper()
	parts := descText.FindStringSubmatch(d.String())
	require.NotNil(t, parts, "%s", d)
	name, err := strconv.Unquote(parts[1])
	require.NoError(t, err)
	help, err := strconv.Unquote(parts[2])
	require.NoError(t, err)
	m := Metric{Name: name, Help: help, Type: dto.MetricType_GAUGE}
	if strings.HasSuffix(name, "_total") {
		m.Type = dto.MetricType_COUNTER
	}
	for _, pair := range regexp.MustCompile(`(\w+)=`).FindAllStringSubmatch(parts[3], -1) {
		m.Labels = append(m.Labels, pair[1])
	}
	if parts[4] != "" {
		m.Labels = append(m.Labels, strings.Split(parts[4], ",")...)
	}
	return m
}

// lint holds the metrics against the conventions of Prometheus.
func lint(t *testing.T, all []Metric) {
	t.Helper()
	var families []*dto.MetricFamily
	for _, m := range all {
		one := &dto.Metric{}
		for _, l := range m.Labels {
			one.Label = append(one.Label, &dto.LabelPair{Name: &l, Value: new("value")})
		}
		families = append(families, &dto.MetricFamily{Name: &m.Name, Help: &m.Help, Type: &m.Type, Metric: []*dto.Metric{one}})
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	require.NoError(t, err)
	require.Empty(t, problems)
}

// MetricsTable is the section of a page.
func MetricsTable(all []Metric) string {
	b := strings.Builder{}
	b.WriteString(Head("metric", "type", "labels", "process", "meaning"))
	for _, m := range all {
		b.WriteString(Row("`"+m.Name+"`", strings.ToLower(m.Type.String()), strings.Join(m.Labels, ", "), strings.Join(m.Of, ", "), m.Help))
	}
	return b.String()
}

// series are the names that queries may use.
func series(all []Metric) map[string]bool {
	names := map[string]bool{}
	for _, m := range all {
		if m.Type == dto.MetricType_HISTOGRAM {
			for _, suffix := range []string{"bucket", "sum", "count"} {
				names[fmt.Sprintf("%s_%s", m.Name, suffix)] = true
			}
			continue
		}
		names[m.Name] = true
	}
	return names
}
