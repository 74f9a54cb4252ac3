package meridio1x

import (
	"context"
	"database/sql"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/registry/sqlite"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// dump is all that SQL can see of a database, schema included.
func dump(t *testing.T, path string) []string {
	t.Helper()
	db, err := sql.Open("sqlite", sqlite.DSN(path)+"?mode=ro")
	require.NoError(t, err)
	defer db.Close()
	lines := []string{}
	for _, q := range []string{
		"SELECT name || '|' || sql FROM sqlite_master WHERE sql NOTNULL", "SELECT name FROM trenches", "SELECT name || '|' || trench_name FROM conduits",
		"SELECT name || '|' || conduit_name FROM streams",
		"SELECT id || '|' || ips || '|' || context || '|' || status || '|' || type || '|' || stream_name || typeof(status) || typeof(ips) FROM targets",
		"SELECT * FROM pragma_journal_mode", "SELECT * FROM pragma_user_version", "SELECT * FROM pragma_application_id", "SELECT * FROM pragma_encoding",
	} {
		rows, err := db.Query(q)
		require.NoError(t, err)
		for rows.Next() {
			var line string
			require.NoError(t, rows.Scan(&line))
			lines = append(lines, line)
		}
		require.NoError(t, rows.Err())
		require.NoError(t, rows.Close())
	}
	slices.Sort(lines)
	return lines
}

// What we write is what a 1.x NSP wrote: its own file, read and written, is the same to SQL, its IDs and schema included.
func TestWriteRecorded(t *testing.T) {
	for _, name := range []string{"small.db", "thousand.db"} {
		t.Run(name, func(t *testing.T) {
			from := recorded(t, name)
			c := mustRead(t, from)
			to := filepath.Join(t.TempDir(), "new.db")
			problems, err := Write(t.Context(), WriteConfig{Path: to}, entries(t, c.Targets))
			require.NoError(t, err)
			require.Empty(t, problems)
			require.Equal(t, dump(t, from), dump(t, to))
			require.Equal(t, c, mustRead(t, to))
			require.Len(t, fingerprint(t, to), 1, "nothing else is left behind")
		})
	}
}

func TestWriteNothing(t *testing.T) {
	to := filepath.Join(t.TempDir(), "new.db")
	_, err := Write(t.Context(), WriteConfig{Path: to}, nil)
	require.NoError(t, err)
	require.Empty(t, mustRead(t, to).Targets)
}

func TestWriteRefuses(t *testing.T) {
	refused := func(path string, force bool) error {
		before := fingerprint(t, path)
		_, err := Write(t.Context(), WriteConfig{Path: path, Force: force}, nil)
		require.Error(t, err)
		require.ErrorContains(t, err, path)
		require.Equal(t, before, fingerprint(t, path))
		return err
	}
	require.ErrorIs(t, refused(recorded(t, "small.db"), false), fs.ErrExist)

	ours := filepath.Join(t.TempDir(), "registry.db")
	s, err := sqlite.Open(t.Context(), sqlite.Config{Path: ours})
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.ErrorContains(t, refused(ours, true), "registry of this NSP")

	log := filepath.Join(t.TempDir(), "registry.db")
	require.NoError(t, os.WriteFile(log+"-journal", []byte("left over"), 0o600))
	require.ErrorIs(t, refused(log, false), fs.ErrExist, "SQLite would take it for ours")

	require.ErrorIs(t, refused(filepath.Join(t.TempDir(), "nowhere", "registry.db"), false), fs.ErrNotExist)
}

// With force the file is replaced as a whole, with what SQLite left beside the old one.
func TestWriteForce(t *testing.T) {
	path := killed(t, "WAL")
	small := mustRead(t, recorded(t, "small.db"))
	_, err := Write(t.Context(), WriteConfig{Path: path, Force: true}, entries(t, small.Targets))
	require.NoError(t, err)
	require.Len(t, fingerprint(t, path), 1)
	require.Equal(t, small, mustRead(t, path))
}

func TestWriteFailsWhole(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	path := filepath.Join(t.TempDir(), "registry.db")
	_, err := Write(ctx, WriteConfig{Path: path}, nil)
	require.ErrorIs(t, err, context.Canceled)
	require.Empty(t, fingerprint(t, path))
}

// Names are global in 1.x: what does not fit beside the rest is named. // P28, P29
func TestWriteWhatDoesNotFit(t *testing.T) {
	key := func(trench, conduit, name string) stream.Key {
		return stream.Key{Namespace: own, Trench: trench, Conduit: conduit, Name: name}
	}
	target := func(k stream.Key, ip string) registry.Target {
		return registry.Target{Stream: k, IPs: []string{ip}, Context: map[string]string{"identifier": "1"}}
	}
	frontend := func(scope, name string) registry.Target {
		return registry.Target{Type: registry.Frontend, Scope: scope, IPs: []string{name}}
	}
	all := entries(t, []registry.Target{
		target(key("t", "c", "s"), "10.0.0.1"), target(key("t", "d", "s"), "10.0.0.2"), target(key("u", "c", "x"), "10.0.0.3"),
		target(key("t", "d", "y"), "10.0.0.4"), frontend("t", "lb"), frontend("u", "lb"), frontend("t", "a;b"),
	})
	to := filepath.Join(t.TempDir(), "new.db")
	problems, err := Write(t.Context(), WriteConfig{Path: to}, all)
	require.NoError(t, err)
	var why []string
	for _, p := range problems {
		why = append(why, p.String())
	}
	require.Len(t, why, 4, "%s", why)
	require.Contains(t, why[0], `that of a stream in conduit "c"`)
	require.Contains(t, why[1], `that of a conduit in trench "t"`)
	require.Contains(t, why[2], "same primary key")
	require.Contains(t, why[3], "semicolon")
	c := mustRead(t, to)
	require.Empty(t, c.Problems)
	require.Len(t, c.Targets, 3)
	require.Equal(t, "d", c.Targets[1].Stream.Conduit)
}

// An entry that waits for its identifier is what its clients see: DISABLED.
func TestWriteWaiting(t *testing.T) {
	c := mustRead(t, made(t, names, insert("10.0.0.1", `{"identifier":"1"}`, 0), insert("10.0.0.2", `{"identifier":"1"}`, 0)))
	to := filepath.Join(t.TempDir(), "new.db")
	_, err := Write(t.Context(), WriteConfig{Path: to}, entries(t, c.Targets))
	require.NoError(t, err)
	again := mustRead(t, to)
	require.Equal(t, registry.Enabled, again.Targets[0].Status)
	require.Equal(t, registry.Disabled, again.Targets[1].Status)
}

// Whatever registrations there are, what is written and read is equal to them, or is named.
func TestRoundTrip(t *testing.T) {
	dir, n := t.TempDir(), 0
	name := rapid.SampledFrom([]string{"a", "b", "ü.-", "a.b", "'; --", "x y"})
	text := rapid.StringN(0, 6, 24)
	rapid.Check(t, func(rt *rapid.T) {
		targets := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) registry.Target {
			target := registry.Target{
				Status: registry.Status(rapid.IntRange(0, 3).Draw(rt, "status")), Context: rapid.MapOfN(text, text, 0, 3).Draw(rt, "context"),
				Stream: stream.Key{Namespace: own, Trench: "t" + name.Draw(rt, "trench"), Conduit: name.Draw(rt, "conduit"), Name: name.Draw(rt, "stream")},
			}
			if rapid.Bool().Draw(rt, "frontend") {
				target.Type, target.Stream = registry.Frontend, stream.Key{Namespace: own}
				target.IPs = []string{text.Draw(rt, "host")}
				return target
			}
			for i := range rapid.IntRange(1, 3).Draw(rt, "addresses") {
				target.IPs = append(target.IPs, fmt.Sprintf("10.0.%d.%d/24", i, rapid.IntRange(0, 3).Draw(rt, "address")))
			}
			return target
		}), 0, 8).Draw(rt, "targets")
		all := entries(rt, targets)
		n++
		path := filepath.Join(dir, fmt.Sprintf("%d.db", n))
		problems, err := Write(background, WriteConfig{Path: path}, all)
		require.NoError(rt, err)
		c, err := Read(background, ReadConfig{Path: path, Namespace: own})
		require.NoError(rt, err)
		require.Empty(rt, c.Problems)
		require.Len(rt, c.Targets, len(all)-len(problems))
		var want []string
		for _, e := range all {
			st := e.Stream
			left := slices.ContainsFunc(problems, func(p Problem) bool { return p.ID == id(e.IPs, int32(e.Type), st.Name, st.Conduit, st.Trench) })
			if !left {
				want = append(want, fmt.Sprintf("%q %q %d %d %v", e.Stream, e.IPs, e.Type, e.Status, e.Context))
			}
		}
		var got []string
		for _, e := range c.Targets {
			got = append(got, fmt.Sprintf("%q %q %d %d %v", e.Stream, e.IPs, e.Type, e.Status, e.Context))
		}
		require.Equal(rt, want, got)
	})
}
