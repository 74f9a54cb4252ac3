package rules

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"
	"github.com/stretchr/testify/require"
)

// Every query of the dashboards is one that Prometheus understands.
func TestDashboardQueries(t *testing.T) {
	files, err := filepath.Glob("../../deployments/helm/meridio-nsp/files/dashboards/*.json")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	variables := strings.NewReplacer("$__rate_interval", "5m", "$namespace", "red")
	for _, path := range files {
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		var dashboard struct {
			Panels []struct {
				Title   string
				Targets []struct{ Expr string }
			}
		}
		require.NoError(t, json.Unmarshal(data, &dashboard))
		queries := 0
		for _, panel := range dashboard.Panels {
			for _, target := range panel.Targets {
				_, err := parser.NewParser(parser.Options{}).ParseExpr(variables.Replace(target.Expr))
				require.NoError(t, err, "%s: %s", panel.Title, target.Expr)
				queries++
			}
		}
		require.Positive(t, queries)
	}
}
