package sqlite

import (
	"database/sql"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/pkg/registry"
)

// Two processes never have one file open; the second says so, and gets it once the first has ended.
func TestOneProcessOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "registry.db")
	first := mustOpen(t, path)
	require.NoError(t, first.Write(t.Context(), batch(1)))
	_, err := Open(t.Context(), Config{Path: path})
	require.ErrorIs(t, err, ErrInUse)
	require.ErrorContains(t, err, path)
	require.NoError(t, first.Write(t.Context(), batch(2)))
	require.NoError(t, first.Close())
	require.NoError(t, first.Close())
	second := mustOpen(t, path)
	defer second.Close()
	saved, err := second.Load(t.Context())
	require.NoError(t, err)
	require.Len(t, saved.Entries, 2)
}

// The lock outlives a damaged file, and is given back where opening fails.
func TestLockAndDamage(t *testing.T) {
	path := filled(t, 3)
	require.NoError(t, os.WriteFile(path, []byte("hello"), 0o600))
	_, err := Open(t.Context(), Config{Path: path, Strict: true})
	require.ErrorContains(t, err, "it is damaged: it has only 5 bytes")
	require.Empty(t, glob(t, path+".damaged-*"), "strict: nothing is moved")
	s := mustOpen(t, path)
	defer s.Close()
	require.Len(t, glob(t, path+".damaged-*"), 1)
	_, err = Open(t.Context(), Config{Path: path})
	require.ErrorIs(t, err, ErrInUse)
}

func TestStrictWhileOpen(t *testing.T) {
	path := filled(t, 500)
	s, err := Open(t.Context(), Config{Path: path, Strict: true})
	require.NoError(t, err)
	defer s.Close()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	spoilPages(data, 4096)
	require.NoError(t, os.WriteFile(path, data, 0o600))
	_, err = s.db.conn.ExecContext(t.Context(), "PRAGMA shrink_memory")
	require.NoError(t, err)
	_, err = s.Load(t.Context())
	require.ErrorContains(t, err, "damaged")
	require.NotErrorIs(t, err, registry.ErrLost)
	require.Empty(t, glob(t, path+".damaged-*"))
}

func TestInspect(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, content string) { require.NoError(t, os.WriteFile(at(name), []byte(content), 0o600)) }
	write("empty", "")
	write("text", "hello, this is a text that is longer than the header of a database would be, "+"and then some more of it")
	write("ours damaged", "hello")
	write("ours damaged.lock", "")
	s := mustOpen(t, at("ours"))
	require.NoError(t, s.Close())
	execute(t, at("other"), "CREATE TABLE targets (id TEXT)")
	execute(t, at("1.x"), meridio1...)
	for name, want := range map[string]Kind{
		"missing": Free, "empty": Free, "text": Foreign, "ours damaged": Own, "ours": Own, "other": Foreign, "1.x": Meridio1,
	} {
		k, why, err := Inspect(t.Context(), at(name))
		require.NoError(t, err)
		require.Equal(t, want, k, name)
		require.Equal(t, k == Foreign, why != "", name)
	}
	_, _, err := Inspect(t.Context(), at("empty/registry.db"))
	require.ErrorContains(t, err, "not a directory")
}

// A 1.x registry whose tables are still in the log is known all the same, and stays as it is.
func TestInspectLog(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "registry.db")
	db, err := sql.Open("sqlite", DSN(path)+"?_pragma=journal_mode(WAL)")
	require.NoError(t, err)
	defer db.Close()
	for _, s := range meridio1 {
		_, err = db.Exec(s)
		require.NoError(t, err)
	}
	before := contents(t, path)
	killed := filepath.Join(t.TempDir(), "registry.db")
	for _, suffix := range []string{"", "-wal"} {
		require.NoError(t, os.WriteFile(killed+suffix, before[filepath.Base(path)+suffix], 0o600))
	}
	before = contents(t, killed)
	k, why, err := Inspect(t.Context(), killed)
	require.NoError(t, err)
	require.Equal(t, Meridio1, k, why)
	_, err = Open(t.Context(), Config{Path: killed})
	require.ErrorIs(t, err, ErrForeign)
	require.Equal(t, before, contents(t, killed))
}

var meridio1 = []string{
	"CREATE TABLE trenches (name)", "CREATE TABLE conduits (name)", "CREATE TABLE streams (name)", "CREATE TABLE targets (name)",
}

func execute(t *testing.T, path string, statements ...string) {
	t.Helper()
	db, err := sql.Open("sqlite", DSN(path))
	require.NoError(t, err)
	for _, s := range statements {
		_, err = db.Exec(s)
		require.NoError(t, err)
	}
	require.NoError(t, db.Close())
}

// contents are all files beside the path, that included, by name.
func contents(t *testing.T, path string) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	for _, name := range glob(t, filepath.Join(filepath.Dir(path), "*")) {
		data, err := os.ReadFile(name)
		require.NoError(t, err)
		all[filepath.Base(name)] = data
	}
	return all
}
