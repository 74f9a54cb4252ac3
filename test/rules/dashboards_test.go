package rules

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/stretchr/testify/require"
)

// dashboard is what matters here of Grafana's model.
type dashboard struct {
	UID, Title string
	Panels     []panel
}

type panel struct {
	ID                       int
	Type, Title, Description string
	GridPos                  struct{ X, Y, W, H int }
	FieldConfig              struct {
		Defaults struct{ Unit string }
	}
	Targets []target
}

type target struct{ RefID, Expr, LegendFormat string }

func dashboards(t *testing.T) map[string]dashboard {
	files, err := filepath.Glob("../../deployments/helm/meridio-nsp/files/dashboards/*.json")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	all := map[string]dashboard{}
	for _, path := range files {
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		var d dashboard
		require.NoError(t, json.Unmarshal(data, &d))
		require.NotEmpty(t, d.UID)
		require.NotEmpty(t, d.Title)
		all[filepath.Base(path)] = d
	}
	return all
}

// moments are the scrapes of the recorded processes, a minute apart.
const moments = 2

// recorded is a Prometheus that has scraped the processes of testdata/recorded as the ServiceMonitor of the chart would. A test in
// test/e2e wrote them and holds them against real processes.
func recorded(t *testing.T) *promqltest.LazyLoader {
	values := map[string][]string{}
	for moment := range moments {
		files, err := filepath.Glob(fmt.Sprintf("testdata/recorded/*.%d.prom", moment+1))
		require.NoError(t, err)
		require.Len(t, files, 4, "namespace, trench, tapa and stateless-lb")
		for _, path := range files {
			data, err := os.ReadFile(path)
			require.NoError(t, err)
			process, _, _ := strings.Cut(filepath.Base(path), ".")
			for line := range strings.Lines(string(data)) {
				cut := strings.LastIndexByte(strings.TrimSpace(line), ' ')
				series := scraped(line[:cut], process)
				if values[series] == nil {
					values[series] = slices.Repeat([]string{"_"}, moments)
				}
				values[series][moment] = strings.TrimSpace(line[cut:])
			}
		}
	}
	var b strings.Builder
	b.WriteString("load 1m\n")
	for series, v := range values {
		b.WriteString("  " + series + " " + strings.Join(v, " ") + "\n")
	}
	l, err := promqltest.NewLazyLoader(b.String(), promqltest.LazyLoaderOpts{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l
}

var label = regexp.MustCompile(`(\w+)="`)

// scraped adds the labels of the target to a series. As by default in Prometheus, those of the process that are of the same name give
// way to them.
func scraped(series, process string) string {
	name, labels, _ := strings.Cut(strings.TrimSuffix(series, "}"), "{")
	own := []string{
		`namespace="red"`, `service="nsp-service"`, `pod="` + process + `-0"`, `container="` + process + `"`, `job="nsp-service"`,
		`endpoint="metrics"`, `instance="10.0.0.1:9090"`,
	}
	labels = label.ReplaceAllStringFunc(labels, func(l string) string {
		if slices.ContainsFunc(own, func(o string) bool { return strings.HasPrefix(o, l) }) {
			return "exported_" + l
		}
		return l
	})
	if labels != "" {
		own = append(own, labels)
	}
	return name + "{" + strings.Join(own, ",") + "}"
}

// Every query of the dashboards is one that Prometheus understands and that processes have an answer to, and every line of a panel has a
// name of its own.
func TestDashboardQueries(t *testing.T) {
	l := recorded(t)
	variables := strings.NewReplacer("$__rate_interval", "5m", "$namespace", "red")
	now := time.Unix(0, 0).UTC().Add((moments - 1) * time.Minute)
	l.WithSamplesTill(now, func(err error) { require.NoError(t, err) })
	for file, d := range dashboards(t) {
		for _, p := range d.Panels {
			names := map[string]bool{}
			for _, q := range p.Targets {
				expr := variables.Replace(q.Expr)
				_, err := parser.NewParser(parser.Options{}).ParseExpr(expr)
				require.NoError(t, err, "%s: %s: %s", file, p.Title, q.Expr)
				query, err := l.QueryEngine().NewInstantQuery(t.Context(), l.Storage(), nil, expr, now)
				require.NoError(t, err)
				result, err := query.Exec(t.Context()).Vector()
				require.NoError(t, err, "%s: %s: %s", file, p.Title, q.Expr)
				require.NotEmpty(t, result, "%s: %s: no data for %s", file, p.Title, q.Expr)
				for _, sample := range result {
					require.False(t, math.IsNaN(sample.F), "%s: %s: no number for %s", file, p.Title, q.Expr)
					name := legend(t, q, sample)
					require.False(t, names[name], "%s: %s: two lines are named %q", file, p.Title, name)
					names[name] = true
				}
			}
		}
	}
}

var placeholder = regexp.MustCompile(`{{ *(\w+) *}}`)

// legend is how Grafana names a line.
func legend(t *testing.T, q target, s promql.Sample) string {
	name := placeholder.ReplaceAllStringFunc(q.LegendFormat, func(p string) string {
		value := s.Metric.Get(placeholder.FindStringSubmatch(p)[1])
		require.NotEmpty(t, value, "%s in the legend of %s, which has %s", p, q.Expr, s.Metric)
		return value
	})
	require.NotEmpty(t, strings.TrimSpace(name), "the legend of %s", q.Expr)
	return name
}

// Whoever looks at a panel is told what it is, in which unit, and what it means; panels lie beside each other.
func TestDashboardPanels(t *testing.T) {
	const columns = 24
	for file, d := range dashboards(t) {
		ids, taken := map[int]string{}, map[[2]int]string{}
		for _, p := range d.Panels {
			name := file + ": " + p.Title
			require.NotEmpty(t, p.Title, file)
			require.Empty(t, ids[p.ID], "%s: its id is another one's too", name)
			ids[p.ID] = p.Title
			g := p.GridPos
			require.True(t, g.X >= 0 && g.Y >= 0 && g.W > 0 && g.H > 0 && g.X+g.W <= columns, "%s lies outside", name)
			for x := g.X; x < g.X+g.W; x++ {
				for y := g.Y; y < g.Y+g.H; y++ {
					require.Empty(t, taken[[2]int{x, y}], "%s lies over another one", name)
					taken[[2]int{x, y}] = p.Title
				}
			}
			if p.Type == "row" {
				require.Equal(t, columns, g.W, name)
				continue
			}
			require.NotEmpty(t, p.Description, name)
			require.NotEmpty(t, p.FieldConfig.Defaults.Unit, name)
			require.NotEmpty(t, p.Targets, name)
			require.Len(t, uniq(p.Targets), len(p.Targets), "%s: two queries have one letter", name)
		}
	}
}

func uniq(targets []target) map[string]bool {
	ids := map[string]bool{}
	for _, q := range targets {
		ids[q.RefID] = true
	}
	return ids
}
