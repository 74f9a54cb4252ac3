package reference

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every label, annotation and condition that the code knows by name is on the page, and the page has no other.
func TestReference(t *testing.T) {
	root, err := Root()
	require.NoError(t, err)
	name := regexp.MustCompile(`^(meridio\.nordix\.org|service\.kubernetes\.io)/[A-Za-z-]+$`)
	known, parts := map[string]bool{}, map[string]bool{}
	require.NoError(t, filepath.WalkDir(filepath.Join(root, "pkg"), func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				text, _ := strconv.Unquote(lit.Value)
				parts[text] = true // as in prefix + "target-namespaces"
				if name.MatchString(text) {
					known[text] = true
				}
			}
			return true
		})
		return nil
	}))
	require.NotEmpty(t, known)
	page, err := os.ReadFile(filepath.Join(root, "docs", "reference", "labels-and-annotations.md"))
	require.NoError(t, err)
	shown := map[string]bool{}
	for _, quoted := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(string(page), -1) {
		if name.MatchString(quoted[1]) {
			shown[quoted[1]] = true
		}
	}
	for k := range known {
		require.True(t, shown[k], "the page lacks %s", k)
	}
	for k := range shown {
		require.True(t, known[k] || parts[filepath.Base(k)], "no code knows %s", k)
	}
}
