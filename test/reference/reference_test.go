package reference

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestCut(t *testing.T) {
	page := "a\n<!-- generated: x -->\nold\n<!-- end: x -->\nb"
	before, is, after, err := cut(page, "x")
	require.NoError(t, err)
	require.Equal(t, []string{"a\n<!-- generated: x -->\n", "old", "\n<!-- end: x -->\nb"}, []string{before, is, after})
	_, is, _, err = cut("<!-- generated: x -->\n<!-- end: x -->", "x")
	require.NoError(t, err)
	require.Empty(t, is)
	for _, bad := range []string{"", "<!-- generated: x -->\n", "\n<!-- end: x --><!-- generated: x -->\n"} {
		_, _, _, err = cut(bad, "x")
		require.Error(t, err)
	}
}

func TestFlags(t *testing.T) {
	root := &cobra.Command{Use: "prog", Short: "Does it", Run: func(*cobra.Command, []string) {}}
	root.Flags().IntP("port", "p", 7, "the `number` a|b")
	sub := &cobra.Command{Use: "sub", Short: "Is below", Run: func(*cobra.Command, []string) {}}
	hidden := &cobra.Command{Use: "hidden", Hidden: true}
	root.AddCommand(sub, hidden)
	require.Equal(t, "### prog\n\nDoes it.\n\n    prog [flags]\n\n| flag | default | variable | meaning |\n| --- | --- | --- | --- |\n"+
		"| `-p, --port number` | `7` | `V` | the number a\\|b |\n\n### prog sub\n\nIs below.\n\n    prog sub [flags]\n\n",
		Flags(root, func(*pflag.Flag) string { return "V" }))
}

func TestMetrics(t *testing.T) {
	a, b := prometheus.NewRegistry(), prometheus.NewRegistry()
	took := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "x_took_seconds", Help: "Time."}, []string{"to"})
	took.WithLabelValues("z")
	a.MustRegister(took, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "x_calls_total", Help: `Says "so".`, ConstLabels: prometheus.Labels{"of": "me"},
	}, []string{"code"}))
	b.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "x_size", Help: "Size."}))
	all := Metrics(t, map[string]*prometheus.Registry{"a": a, "b": b})
	require.Equal(t, []Metric{
		{"x_calls_total", `Says "so".`, dto.MetricType_COUNTER, []string{"of", "code"}, []string{"a"}},
		{"x_size", "Size.", dto.MetricType_GAUGE, nil, []string{"b"}},
		{"x_took_seconds", "Time.", dto.MetricType_HISTOGRAM, []string{"to"}, []string{"a"}},
	}, all)
	require.Equal(t, map[string]bool{
		"x_calls_total": true, "x_size": true, "x_took_seconds_bucket": true, "x_took_seconds_sum": true, "x_took_seconds_count": true,
	}, series(all))
	require.Equal(t, []string{"x_a_total", "x_b"}, namesIn(`sum(x_a_total{z="1"}) / max_x_c + x_b`, "x_"))
}
