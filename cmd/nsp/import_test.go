package main

import (
	"database/sql"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/pkg/registry/sqlite"
)

// volume is a folder with a registry that a real 1.x NSP wrote.
func volume(t *testing.T) (dir, registry string) {
	t.Helper()
	dir = t.TempDir()
	data, err := os.ReadFile("../../pkg/registry/meridio1x/testdata/small.db")
	require.NoError(t, err)
	registry = filepath.Join(dir, "registry.db")
	require.NoError(t, os.WriteFile(registry, data, 0o600))
	return dir, registry
}

func files(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func succeeds(t *testing.T, args ...string) string {
	t.Helper()
	r := command(t, args...)
	require.Zero(t, r.code, r.stderr)
	require.Empty(t, r.stderr)
	return r.stdout
}

func TestImport(t *testing.T) {
	dir, old := volume(t)
	to := filepath.Join(dir, "new.db")
	args := []string{"import", "--from", old, "--datasource", to, "--namespace", "red"}
	dry := succeeds(t, append(args, "--dry-run")...)
	require.Equal(t, []string{"registry.db"}, files(t, dir), "a dry run writes nothing")
	require.Regexp(t, `DEFAULT +trench-a/conduit-a/stream-a +172.16.0.12/24 +3 +DISABLED`, dry)
	require.Regexp(t, `FRONTEND +- +stateless-lb\S+ +stateless-lb\S+ +ENABLED`, dry)
	require.Contains(t, dry, "Would be taken over from "+old+" into "+to+": 6 registrations (6 added, 0 changed, 0 unchanged), 0 removed.")

	real := succeeds(t, args...)
	require.Equal(t, strings.Replace(dry, "Would be taken over", "Taken over", 1), real)
	before, err := os.ReadFile(to)
	require.NoError(t, err)
	for _, more := range [][]string{args, append(args, "--dry-run")} {
		require.Contains(t, succeeds(t, more...), "nothing to do")
	}
	after, err := os.ReadFile(to)
	require.NoError(t, err)
	require.Equal(t, before, after)
}

// What the environment of a process says holds for its offline commands too.
func TestImportByEnvironment(t *testing.T) {
	_, old := volume(t)
	t.Setenv("NSP_NAMESPACE", "red")
	t.Setenv("NSP_DATASOURCE", old)
	require.Contains(t, succeeds(t, "import", "--from", old), "into "+old+".v2")
	require.FileExists(t, old+".v2")
}

func TestExport(t *testing.T) {
	dir, old := volume(t)
	succeeds(t, "import", "--from", old, "--datasource", old, "--namespace", "red")
	to := filepath.Join(dir, "down.db")
	require.Equal(t, "Written from "+old+".v2 to "+to+": 6 registrations.\n", succeeds(t, "export", "--to", to, "--datasource", old))
	fails(t, exitFailed, []string{"export", "--to", to, "--datasource", old}, "exists", "see --force")
	succeeds(t, "export", "--to", to, "--datasource", old, "--force")
	fails(t, exitFailed, []string{"export", "--to", old + ".v2", "--datasource", old, "--force"}, "registry of this NSP")
	table := func(from string) string {
		out := succeeds(t, "import", "--from", from, "--datasource", filepath.Join(t.TempDir(), "x.db"), "--namespace", "red", "--dry-run")
		return strings.Split(out, "\n\n")[0]
	}
	require.Equal(t, table(old), table(to))
}

// Problems are named, not hidden.
func TestImportProblems(t *testing.T) {
	dir := t.TempDir()
	old := filepath.Join(dir, "registry.db")
	odd(t, old)
	out := succeeds(t, "import", "--from", old, "--datasource", filepath.Join(dir, "new.db"), "--namespace", "red")
	require.Contains(t, out, "Left out, 1 entry:\n")
	require.Contains(t, out, `"odd one": invalid target`)
	require.Contains(t, out, "1 enabled registration waits for an identifier that another one holds.")
}

func TestOfflineFailures(t *testing.T) {
	dir, old := volume(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	require.NoError(t, os.WriteFile(at("text"), []byte("hello"), 0o600))
	require.NoError(t, os.WriteFile(at("empty"), nil, 0o600))
	require.NoError(t, os.WriteFile(at("ours"), []byte("damaged"), 0o600))
	require.NoError(t, os.WriteFile(at("ours.lock"), nil, 0o600))
	used, err := sqlite.Open(t.Context(), sqlite.Config{Path: at("used")})
	require.NoError(t, err)
	defer used.Close()
	before := files(t, dir)
	for line, says := range map[string]string{
		"import --from OLD --datasource used --namespace red":           "in use by another process: stop that one first",
		"import --from OLD --datasource used --namespace red --dry-run": "in use by another process: stop that one first",
		"import --from OLD --datasource ours --namespace red":           "it is damaged",
		"import --from OLD --datasource ours --namespace red --dry-run": "damaged",
		"import --from none --datasource new --namespace red":           "no such file",
		"import --from text --datasource new --namespace red":           "no usable registry of Meridio 1.x",
		"import --from empty --datasource new --namespace red":          "it is empty",
		"import --from used --datasource new --namespace red":           "of this NSP already",
		"export --to new --datasource used":                             "in use by another process: stop that one first",
		"export --to new --datasource none":                             "does not exist",
		"export --to new --datasource OLD":                              "does not exist",
		"export --to new --datasource ours":                             "it is damaged",
	} {
		t.Run(line, func(t *testing.T) {
			var args []string
			for i, word := range strings.Fields(line) {
				switch {
				case word == "OLD":
					word = old
				case i > 0 && !strings.HasPrefix(word, "-") && word != "red":
					word = at(word)
				}
				args = append(args, word)
			}
			fails(t, exitFailed, args, says)
			require.Equal(t, before, files(t, dir), "nothing is made or moved")
		})
	}
	for line, says := range map[string]string{
		"import":                              "--from is empty",
		"import --from x --datasource=":       "--datasource is empty",
		"import --from x":                     "--namespace is empty: set it, or NSP_NAMESPACE",
		"import x":                            `"x"`,
		"export":                              "--to is empty",
		"export --to x --datasource=":         "--datasource is empty",
		"export --to x --namespace red":       "unknown flag: --namespace",
		"import --from x --dry-run=perhaps":   "--dry-run",
		"import --from x --namespace red now": `"now"`,
	} {
		t.Run(line, func(t *testing.T) { fails(t, exitUsage, strings.Fields(line), says) })
	}
}

// odd makes a 1.x registry with an entry that is none, and two that claim one identifier.
func odd(t *testing.T, path string) {
	t.Helper()
	db, err := sql.Open("sqlite", sqlite.DSN(path))
	require.NoError(t, err)
	defer db.Close()
	for _, s := range []string{
		"CREATE TABLE trenches (name)", "INSERT INTO trenches VALUES ('t')",
		"CREATE TABLE conduits (name, trench_name)", "INSERT INTO conduits VALUES ('c', 't')",
		"CREATE TABLE streams (name, conduit_name)", "INSERT INTO streams VALUES ('s', 'c')",
		"CREATE TABLE targets (id, ips, context, status, type, stream_name)",
		"INSERT INTO targets VALUES ('odd one', 'web-0', '{}', 0, 0, 's')",
		`INSERT INTO targets VALUES ('1', '10.0.0.1', '{"identifier":"7"}', 0, 0, 's'), ('2', '10.0.0.2', '{"identifier":"7"}', 0, 0, 's')`,
	} {
		_, err := db.Exec(s)
		require.NoError(t, err)
	}
}
