package reference

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// update is the environment variable that has sections written.
const update = "UPDATE_REFERENCE"

// Section compares a section of a page of docs/reference with what it has to be.
func Section(t *testing.T, page, section, want string) {
	t.Helper()
	root, err := Root()
	require.NoError(t, err)
	path := filepath.Join(root, "docs", "reference", page)
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	before, is, after, err := cut(string(data), section)
	require.NoError(t, err, page)
	want = strings.TrimSpace(want)
	if os.Getenv(update) == "" {
		require.Equal(t, want, is, "%s is stale: run \"make docs\"", page)
		return
	}
	require.NoError(t, os.WriteFile(path, []byte(before+want+after), 0o644))
}

// cut finds a section between its marks, which are comments.
func cut(page, section string) (before, is, after string, err error) {
	begin, end := fmt.Sprintf("<!-- generated: %s -->\n", section), fmt.Sprintf("\n<!-- end: %s -->", section)
	i := strings.Index(page, begin)
	j := strings.Index(page, end)
	if i < 0 || j < i {
		return "", "", "", fmt.Errorf("no section between %q and %q", begin, end)
	}
	i += len(begin)
	return page[:i], strings.TrimSpace(page[min(i, j):j]), page[j:], nil
}

// Root is the folder of the repository: the one above this with a go.mod.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("finding the repository: %w", err)
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("finding the repository: no go.mod above")
		}
	}
}

// Row is a line of a table in Markdown; what is in a cell cannot end it.
func Row(cells ...string) string {
	var b strings.Builder
	for _, c := range cells {
		b.WriteString("| " + strings.NewReplacer("|", "\\|", "\n", " ").Replace(c) + " ")
	}
	return strings.ReplaceAll(b.String(), "|  ", "| ") + "|\n"
}

// Head is the head of a table.
func Head(titles ...string) string {
	return Row(titles...) + strings.Repeat("| --- ", len(titles)) + "|\n"
}
