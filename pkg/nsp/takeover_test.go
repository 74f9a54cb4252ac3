package nsp

import (
	"bytes"
	"context"
	"crypto/sha256"
	database "database/sql"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/registry/meridio1x"
	"github.com/nordix/meridio-nsp/pkg/registry/sqlite"
	"github.com/nordix/meridio-nsp/pkg/relay"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// upgraded puts a file that a real 1.x NSP wrote into a folder.
func upgraded(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("../registry/meridio1x/testdata", name))
	require.NoError(t, err)
	return placed(t, data)
}

func placed(t *testing.T, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "registry.db")
	require.NoError(t, os.WriteFile(path, data, 0o400))
	require.NoError(t, os.Chtimes(path, time.Unix(1e9, 0), time.Unix(1e9, 0)))
	return path
}

// fingerprint is what must not change of a file.
func fingerprint(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	info, err := os.Stat(path)
	require.NoError(t, err)
	return fmt.Sprintf("%x %s %s", sha256.Sum256(data), info.ModTime(), info.Mode())
}

// opened is what a process finds at its start, and says.
type opened struct {
	registry.Saved
	log        string
	rebuilding bool
}

// begin is the part of a start that opens the registry.
func begin(t *testing.T, datasource string) opened {
	t.Helper()
	var log bytes.Buffer
	cfg := good().ProcessConfig
	cfg.Datasource = datasource
	p := newProcess(cfg, slog.New(slog.NewTextHandler(&log, nil)))
	require.NoError(t, p.openRegistry(t.Context()))
	p.close()
	return opened{p.saved, log.String(), p.rebuilding()}
}

// sql does something to a file of SQLite.
func sql(t *testing.T, path string, statements ...string) {
	t.Helper()
	db, err := database.Open("sqlite", sqlite.DSN(path))
	require.NoError(t, err)
	defer db.Close()
	for _, s := range statements {
		_, err := db.Exec(s)
		require.NoError(t, err)
	}
}

// change does something to a registry while no process has it open.
func change(t *testing.T, path string, b registry.Batch) {
	t.Helper()
	store, err := sqlite.Open(t.Context(), sqlite.Config{Path: path})
	require.NoError(t, err)
	require.NoError(t, store.Write(t.Context(), b))
	require.NoError(t, store.Close())
}

func TestTakeover(t *testing.T) {
	for name, n := range map[string]int{"small.db": 6, "thousand.db": 1000} {
		t.Run(name, func(t *testing.T) {
			path := upgraded(t, name)
			before := fingerprint(t, path)
			first := begin(t, path)
			require.Len(t, first.Entries, n)
			require.Equal(t, registry.Enabled, first.Entries[0].Status, "no open sequence is needed")
			require.Contains(t, first.log, "has been taken over")
			require.False(t, first.rebuilding)
			require.FileExists(t, path+beside)

			change(t, path+beside, registry.Batch{Delete: []registry.Key{first.Entries[0].Key}})
			second := begin(t, path)
			require.Len(t, second.Entries, n-1, "what went does not come back")
			require.Contains(t, second.log, "was taken over before")
			require.Equal(t, before, fingerprint(t, path))

			// Nobody wants to go back any more.
			require.NoError(t, os.Remove(path))
			require.Len(t, begin(t, path).Entries, n-1)
			require.NoFileExists(t, path)
		})
	}
}

// What is no registry is left alone, and the process starts. Load balancers are not told that everything has gone. // P20
func TestNothingToTakeOver(t *testing.T) {
	small, err := os.ReadFile("../registry/meridio1x/testdata/small.db")
	require.NoError(t, err)
	thousand, err := os.ReadFile("../registry/meridio1x/testdata/thousand.db")
	require.NoError(t, err)
	damaged := bytes.Clone(thousand)
	for i := 8 * 4096; i < len(damaged); i++ {
		damaged[i] ^= 0xa5
	}
	for name, tt := range map[string]struct {
		data []byte
		says string
	}{
		"text":       {[]byte("hello, world\n"), "left alone"},
		"header":     {append([]byte("garbage garbage "), small[16:]...), "it is no SQLite file"},
		"pages":      {damaged, "is unusable"},
		"cut off":    {thousand[:len(thousand)/2], "left alone"},
		"few bytes":  {small[:50], "only 50 bytes"},
		"two tables": {sqliteFile(t, "CREATE TABLE targets (id)", "CREATE TABLE streams (id)"), "of another program"},
	} {
		t.Run(name, func(t *testing.T) {
			path := placed(t, tt.data)
			before := fingerprint(t, path)
			first := begin(t, path)
			require.Empty(t, first.Entries)
			require.Contains(t, first.log, tt.says)
			require.Contains(t, first.log, "level=ERROR")
			require.True(t, first.rebuilding)
			change(t, path+beside, registry.Batch{Put: []*registry.Entry{entry("172.16.0.1/24")}})
			second := begin(t, path)
			require.Len(t, second.Entries, 1)
			require.False(t, second.rebuilding)
			require.Equal(t, before, fingerprint(t, path))
			names, err := filepath.Glob(path + "*")
			require.NoError(t, err)
			require.Equal(t, []string{path, path + beside, path + beside + ".lock"}, names)
		})
	}
}

func sqliteFile(t *testing.T, statements ...string) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "other.db")
	sql(t, path, statements...)
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	return data
}

func entry(ip string) *registry.Entry {
	st := stream.Key{Namespace: "red", Trench: "trench-a", Conduit: "conduit-a", Name: "stream-a"}
	return &registry.Entry{
		Key: registry.Key{Scope: "trench-a", Stream: st, Addrs: ip}, ID: 77, IPs: []string{ip},
		Context: map[string]string{"identifier": "42"},
	}
}

// A new registry, or one of ours, is where the datasource says.
func TestOwnRegistry(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "new", "registry.db")
	empty := filepath.Join(t.TempDir(), "registry.db")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	for _, path := range []string{missing, empty} {
		for range 2 {
			begun := begin(t, path)
			require.NotContains(t, begun.log, "1.x")
			require.False(t, begun.rebuilding)
			require.NoFileExists(t, path+beside)
		}
		change(t, path, registry.Batch{Put: []*registry.Entry{entry("172.16.0.1/24")}})
		// One that lies beside it is of no account then, and a damaged header does not make ours a foreign one.
		change(t, path+beside, registry.Batch{})
		require.Len(t, begin(t, path).Entries, 1)
		require.NoError(t, os.WriteFile(path, []byte("hello"), 0o600))
		begun := begin(t, path)
		require.Contains(t, begun.log, "moved aside")
		require.True(t, begun.rebuilding)
	}
}

// A 1.x file that has changed comes from a downgrade: it counts, also where a relay had mirrored rows since.
func TestTakeoverAgain(t *testing.T) {
	path := upgraded(t, "small.db")
	first := begin(t, path)
	change(t, path+beside, registry.Batch{
		Put: []*registry.Entry{entry("172.16.0.77/24")}, Documents: map[string][]byte{relay.Document: []byte("{}")},
	})
	require.Len(t, begin(t, path).Entries, 7)
	require.NoError(t, os.Chmod(path, 0o600))
	sql(t, path, "DELETE FROM targets WHERE rowid = 2", `UPDATE targets SET context = '{"identifier":"42"}' WHERE rowid = 1`)
	again := begin(t, path)
	require.Contains(t, again.log, "added=0 changed=1 removed=2")
	require.Len(t, again.Entries, 5)
	require.Equal(t, "42", again.Entries[0].Context["identifier"])
	require.Equal(t, registry.Enabled, again.Entries[0].Status)
	require.Equal(t, first.Entries[0].ID, again.Entries[0].ID)
	require.NotContains(t, again.Documents, relay.Document, "the rows are this process's own now")
}

// Problems are named, and the rest is taken.
func TestTakeoverWithProblems(t *testing.T) {
	path := upgraded(t, "small.db")
	require.NoError(t, os.Chmod(path, 0o600))
	sql(t, path, "INSERT INTO targets VALUES ('odd one', 'web-0', '{}', 0, 0, 'stream-a')",
		`INSERT INTO targets VALUES ('rival', '172.16.0.99/24', '{"identifier":"7"}', 0, 0, 'stream-a')`)
	begun := begin(t, path)
	require.Len(t, begun.Entries, 7)
	require.Contains(t, begun.log, "odd one")
	require.Contains(t, begun.log, "is no address")
	require.Contains(t, begun.log, "waiting_for_identifier=1 problems=1")
}

func TestStartIsInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p := newProcess(good().ProcessConfig, slog.New(slog.DiscardHandler))
	p.common.Datasource = upgraded(t, "small.db")
	require.ErrorIs(t, p.openRegistry(ctx), context.Canceled)
	p.close()
}

// Two processes do not share a registry.
func TestSecondProcess(t *testing.T) {
	path := upgraded(t, "small.db")
	store, err := sqlite.Open(t.Context(), sqlite.Config{Path: path + beside})
	require.NoError(t, err)
	defer store.Close()
	p := newProcess(good().ProcessConfig, slog.New(slog.DiscardHandler))
	p.common.Datasource = path
	require.ErrorIs(t, p.openRegistry(t.Context()), sqlite.ErrInUse)
	_, _, err = Import(t.Context(), ImportConfig{From: path, Datasource: path, Namespace: "red", DryRun: true})
	require.ErrorIs(t, err, sqlite.ErrInUse)
	_, err = Export(t.Context(), ExportConfig{To: filepath.Join(t.TempDir(), "x"), Datasource: path})
	require.ErrorIs(t, err, sqlite.ErrInUse)
}

// Up and down and up again, all that 1.x can know is equal.
func TestRoundTrip(t *testing.T) {
	for _, name := range []string{"small.db", "thousand.db"} {
		t.Run(name, func(t *testing.T) {
			path := upgraded(t, name)
			first := begin(t, path)
			down := filepath.Join(t.TempDir(), "registry.db")
			report, err := Export(t.Context(), ExportConfig{To: down, Datasource: path})
			require.NoError(t, err)
			require.Equal(t, ExportReport{From: path + beside, Written: len(first.Entries)}, report)
			read := func(path string) meridio1x.Content {
				c, err := meridio1x.Read(t.Context(), meridio1x.ReadConfig{Path: path, Namespace: "red"})
				require.NoError(t, err)
				return c
			}
			require.Equal(t, read(path), read(down))
			second := begin(t, down)
			require.Equal(t, first.Entries, second.Entries)
		})
	}
}

func TestExportOfOneTrench(t *testing.T) {
	path := filepath.Join(t.TempDir(), "registry.db")
	other := entry("172.16.0.2/24")
	other.Scope, other.Stream.Trench, other.ID = "trench-b", "trench-b", 78
	frontend := &registry.Entry{Key: registry.Key{Type: registry.Frontend, Stream: stream.Key{Namespace: "red"}, Addrs: `"lb"`}, ID: 79, IPs: []string{"lb"}}
	change(t, path, registry.Batch{Put: []*registry.Entry{entry("172.16.0.1/24"), other, frontend}})
	to := filepath.Join(t.TempDir(), "registry.db")
	report, err := Export(t.Context(), ExportConfig{To: to, Datasource: path, Trench: "trench-b"})
	require.NoError(t, err)
	require.Equal(t, 2, report.Written)
	require.Empty(t, report.Problems, "without the other trench nothing collides")
	report, err = Export(t.Context(), ExportConfig{To: to, Datasource: path, Force: true})
	require.NoError(t, err)
	require.Len(t, report.Problems, 1)
}
