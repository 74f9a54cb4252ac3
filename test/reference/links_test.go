package reference

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Links between pages lead somewhere, and from the README to every page.
func TestLinks(t *testing.T) {
	root, err := Root()
	require.NoError(t, err)
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	require.NoError(t, err)
	below, err := filepath.Glob(filepath.Join(root, "docs", "reference", "*.md"))
	require.NoError(t, err)
	readme := filepath.Join(root, "README.md")
	linked := map[string]bool{}
	for _, page := range append(append(pages, below...), readme) {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, link := range regexp.MustCompile(`\]\(([^)#]+)[^)]*\)`).FindAllStringSubmatch(string(text), -1) {
			if strings.Contains(link[1], "://") {
				continue
			}
			to := filepath.Join(filepath.Dir(page), link[1])
			require.FileExists(t, to, "a link of %s", page)
			linked[to] = linked[to] || page == readme
		}
	}
	for _, page := range append(pages, below...) {
		require.True(t, linked[page], "the README does not lead to %s", page)
	}
}
