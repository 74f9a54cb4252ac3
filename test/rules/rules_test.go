package rules

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/rules"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

const (
	alerts   = "../../deployments/helm/meridio-nsp/files/rules/meridio-nsp.yaml"
	interval = time.Minute
)

// scenario is what is scraped every minute, and which alerts fire then. It is one test of a file in testdata.
type scenario struct {
	Name string `yaml:"name"`
	// Series are in the notation of Prometheus's own tests, as "metric{label="x"}: 0+10x5".
	Series map[string]string `yaml:"series"`
	// Fires says which alerts fire at a time: alert and summary. Those that are not named must not.
	Fires map[string]map[string]string `yaml:"fires"`
}

func read(t *testing.T) []scenario {
	data, err := os.ReadFile("testdata/scenarios.yaml")
	require.NoError(t, err)
	var all []scenario
	require.NoError(t, yaml.Unmarshal(data, &all))
	return all
}

func TestScenarios(t *testing.T) {
	for _, s := range read(t) {
		t.Run(s.Name, func(t *testing.T) {
			for at, want := range s.Fires {
				after, err := model.ParseDuration(at)
				require.NoError(t, err)
				require.Equal(t, want, s.firing(t, time.Duration(after)), "after %s", at)
			}
		})
	}
}

// Every alert fires in some scenario, and does not in another.
func TestEveryAlertIsTested(t *testing.T) {
	fires := map[string]bool{}
	for _, s := range read(t) {
		for _, alerts := range s.Fires {
			for name := range alerts {
				fires[name] = true
			}
		}
	}
	var names []string
	for _, g := range manager(t, "load 1m\n").groups {
		for _, r := range g.AlertingRules() {
			names = append(names, r.Name())
		}
	}
	slices.Sort(names)
	require.Equal(t, names, slices.Sorted(maps.Keys(fires)))
}

// loaded are the rules over a storage.
type loaded struct {
	storage *promqltest.LazyLoader
	groups  map[string]*rules.Group
}

func manager(t *testing.T, series string) loaded {
	l, err := promqltest.NewLazyLoader(series, promqltest.LazyLoaderOpts{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	l.SubqueryInterval = interval
	m := rules.NewManager(&rules.ManagerOptions{
		QueryFunc:    rules.EngineQueryFunc(l.QueryEngine(), l.Storage()),
		AppendableV2: l.Storage(),
		Context:      t.Context(),
		NotifyFunc:   func(context.Context, string, ...*rules.Alert) {},
		Logger:       slog.New(slog.DiscardHandler),
		Parser:       parser.NewParser(parser.Options{}),
	})
	groups, errs := m.LoadGroups(interval, labels.EmptyLabels(), "", nil, false, alerts)
	require.Empty(t, errs)
	return loaded{l, groups}
}

// firing evaluates each minute up to a time and says what fires then.
func (s scenario) firing(t *testing.T, until time.Duration) map[string]string {
	var b strings.Builder
	b.WriteString("load 1m\n")
	for series, values := range s.Series {
		b.WriteString("  " + series + " " + values + "\n")
	}
	m := manager(t, b.String())
	for at := time.Duration(0); at <= until; at += interval {
		now := time.Unix(0, 0).UTC().Add(at)
		m.storage.WithSamplesTill(now, func(err error) {
			require.NoError(t, err)
			for _, g := range m.groups {
				g.Eval(m.storage.Context(), now)
				for _, r := range g.Rules() {
					require.NoError(t, r.LastError(), r.Name())
				}
			}
		})
	}
	fires := map[string]string{}
	for _, g := range m.groups {
		for _, r := range g.AlertingRules() {
			for _, a := range r.ActiveAlerts() {
				if a.State == rules.StateFiring {
					fires[r.Name()] = a.Annotations.Get("summary")
				}
			}
		}
	}
	return fires
}
