package reference

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// Monitoring holds the dashboards and rules of the chart against the metrics that there are: of those that begin with the prefix, all
// that they use exist. It returns how many are used.
func Monitoring(t *testing.T, prefix string, all []Metric) int {
	t.Helper()
	root, err := Root()
	require.NoError(t, err)
	files, err := filepath.Glob(filepath.Join(root, "deployments", "helm", "meridio-nsp", "files", "*", "*"))
	require.NoError(t, err)
	exist, used := series(all), map[string]bool{}
	for _, path := range files {
		if kind := filepath.Base(filepath.Dir(path)); kind != "dashboards" && kind != "rules" {
			continue
		}
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, name := range namesIn(string(data), prefix) {
			require.True(t, exist[name], "%s uses %s, which no process has", filepath.Base(path), name)
			used[name] = true
		}
	}
	return len(used)
}

func namesIn(text, prefix string) []string {
	return regexp.MustCompile(`\b`+regexp.QuoteMeta(prefix)+`[a-z0-9_]+`).FindAllString(text, -1)
}
