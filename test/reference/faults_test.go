package reference

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every kind of fault of docs/faults.md has a test that says so, and a test that names one by its number means one of that page.
func TestFaultsHaveTests(t *testing.T) {
	root, err := Root()
	require.NoError(t, err)
	page, err := os.ReadFile(filepath.Join(root, "docs", "faults.md"))
	require.NoError(t, err)
	tested := map[string]int{}
	for _, row := range regexp.MustCompile(`(?m)^\| ([DP]\d+) \|`).FindAllStringSubmatch(string(page), -1) {
		require.NotContains(t, tested, row[1], "twice on the page")
		tested[row[1]] = 0
	}
	require.NotEmpty(t, tested)
	number := regexp.MustCompile(`\b[DP]\d{1,2}\b`)
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(source)) {
			_, comment, _ := strings.Cut(line, "//")
			for _, id := range number.FindAllString(comment, -1) {
				require.Contains(t, tested, id, "%s: %s is no fault of docs/faults.md", path, id)
				tested[id]++
			}
		}
		return nil
	}))
	for id, tests := range tested {
		require.Positive(t, tests, "no test says that it guards against %s", id)
	}
}
