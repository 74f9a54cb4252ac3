package meridio1x

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/registry/memory"
	"github.com/nordix/meridio-nsp/pkg/registry/sqlite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// background is for those who have no test at hand.
var background = context.Background()

const own = "red"

// recorded is a copy of a file that a real 1.x NSP wrote, in a folder of its own.
func recorded(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "registry.db")
	require.NoError(t, os.WriteFile(path, data, 0o600))
	// So that a write would show, however soon it comes.
	require.NoError(t, os.Chtimes(path, time.Unix(1e9, 0), time.Unix(1e9, 0)))
	return path
}

// made is a 1.x registry with what the statements do to it.
func made(t *testing.T, statements ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "registry.db")
	execute(t, path, append(append([]string{}, schema...), statements...)...)
	return path
}

func execute(t *testing.T, path string, statements ...string) {
	t.Helper()
	db, err := sql.Open("sqlite", sqlite.DSN(path))
	require.NoError(t, err)
	defer db.Close()
	for _, s := range statements {
		_, err := db.Exec(s)
		require.NoError(t, err, s)
	}
}

// fingerprint is what must not change: names, bytes and times of all that is in the folder of the path.
func fingerprint(t *testing.T, path string) map[string]string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*"))
	require.NoError(t, err)
	all := map[string]string{}
	for _, name := range names {
		data, err := os.ReadFile(name)
		require.NoError(t, err)
		info, err := os.Stat(name)
		require.NoError(t, err)
		sum := sha256.Sum256(data)
		all[filepath.Base(name)] = hex.EncodeToString(sum[:]) + " " + info.ModTime().String() + " " + info.Mode().String()
	}
	return all
}

// untouched reads a file and asserts that it stays as it is.
func untouched(t *testing.T, path string) (Content, error) {
	t.Helper()
	before := fingerprint(t, path)
	c, err := Read(t.Context(), ReadConfig{Path: path, Namespace: own})
	require.Equal(t, before, fingerprint(t, path))
	return c, err
}

func mustRead(t *testing.T, path string) Content {
	t.Helper()
	c, err := untouched(t, path)
	require.NoError(t, err)
	return c
}

// entries are what a registry makes of the targets.
func entries(t require.TestingT, targets []registry.Target) []*registry.Entry {
	store := memory.New()
	_, err := registry.Adopt(background, store, own, registry.Adoption{Targets: targets})
	require.NoError(t, err)
	saved, err := store.Load(background)
	require.NoError(t, err)
	return saved.Entries
}
