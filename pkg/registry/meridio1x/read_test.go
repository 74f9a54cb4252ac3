package meridio1x

import (
	"context"
	"database/sql"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/registry/sqlite"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

func at(conduit, name string) stream.Key {
	return stream.Key{Namespace: own, Trench: "trench-a", Conduit: conduit, Name: name}
}

func TestReadRecorded(t *testing.T) {
	c := mustRead(t, recorded(t, "small.db"))
	number := func(n string) map[string]string { return map[string]string{"identifier": n} }
	const lb = "stateless-lb-frontend-attractor-a-6c9c8f-abcde"
	require.Equal(t, []registry.Target{
		{Stream: at("conduit-a", "stream-a"), IPs: []string{"172.16.0.10/24", "fd00:0:0:1::10/64"}, Context: number("7")},
		{Stream: at("conduit-a", "stream-a"), IPs: []string{"172.16.0.11/24", "fd00:0:0:1::11/64"}, Context: number("42")},
		{Stream: at("conduit-a", "stream-a"), IPs: []string{"172.16.0.12/24"}, Context: number("3"), Status: registry.Disabled},
		{Stream: at("conduit-a", "stream-b"), IPs: []string{"172.16.0.10/24", "fd00:0:0:1::10/64"}, Context: number("7")},
		{Stream: at("conduit-b", "stream-c"), IPs: []string{"172.16.64.9/24"}, Context: number("1")},
		{Type: registry.Frontend, Stream: stream.Key{Namespace: own}, IPs: []string{lb}, Context: number(lb)},
	}, c.Targets)
	require.Empty(t, c.Problems)
	require.Equal(t, []string{"trench-a"}, c.Trenches)
}

func TestReadThousand(t *testing.T) {
	c := mustRead(t, recorded(t, "thousand.db"))
	require.Len(t, c.Targets, 1000)
	require.Empty(t, c.Problems)
	for _, e := range entries(t, c.Targets) {
		require.Equal(t, registry.Enabled, e.Status, "nobody waits: %s", e.IPs)
	}
}

func TestReadScope(t *testing.T) {
	c, err := Read(t.Context(), ReadConfig{Path: recorded(t, "small.db"), Namespace: own, Scope: "trench-a"})
	require.NoError(t, err)
	for _, target := range c.Targets {
		k, err := registry.Check(target, own, registry.Limits{})
		require.NoError(t, err)
		require.Equal(t, "trench-a", k.Scope)
	}
}

const names = "INSERT INTO trenches VALUES ('t'); INSERT INTO conduits VALUES ('c', 't'); INSERT INTO streams VALUES ('s', 'c')"

// insert is a target of stream s as a 1.x NSP stores it.
func insert(ips, context string, status int) string {
	return fmt.Sprintf("INSERT INTO targets VALUES ('%s-0-s.c.t', '%s', '%s', %d, 0, 's')", ips, ips, context, status)
}

// What our registry would refuse is named and left out; the rest is taken. // P3
func TestReadOddRows(t *testing.T) {
	good := insert("10.0.0.1", `{"identifier":"1"}`, 0)
	for name, tt := range map[string]struct{ row, says string }{
		"no address":           {insert("", `{}`, 0), "is no address"},
		"no addresses":         {insert("10.0.0.2;", `{}`, 0), "is no address"},
		"a name":               {insert("web-0", `{}`, 0), "is no address"},
		"a zone":               {insert("fe80::1%eth0", `{}`, 0), "is no address"},
		"no stream":            {"INSERT INTO targets VALUES ('x', '10.0.0.2', '{}', 0, 0, '')", "name its stream"},
		"a stream that is not": {"INSERT INTO targets VALUES ('x', '10.0.0.2', '{}', 0, 0, 'gone')", "name its stream"},
		"a stream of nothing":  {"INSERT INTO streams VALUES ('lost', 'gone'); INSERT INTO targets VALUES ('x', '10.0.0.2', '{}', 0, 0, 'lost')", "name its stream"},
		"null":                 {"INSERT INTO targets VALUES ('x', NULL, NULL, 0, 0, NULL)", "context is unreadable"},
		"null status":          {"INSERT INTO targets VALUES ('x', '10.0.0.2', '{}', NULL, 0, 's')", "unreadable"},
		"status in words":      {"INSERT INTO targets VALUES ('x', '10.0.0.2', '{}', 'ENABLED', 0, 's')", "unreadable"},
		"status too great":     {insert("10.0.0.2", `{}`, 1<<40), "unreadable"},
		"half a context":       {insert("10.0.0.2", `{"identif`, 0), "context is unreadable"},
		"another context":      {insert("10.0.0.2", `{"identifier":7}`, 0), "context is unreadable"},
		"a great context":      {insert("10.0.0.2", `{"a":"`+strings.Repeat("x", 9000)+`"}`, 0), "bytes"},
		"not UTF-8":            {"INSERT INTO targets VALUES ('x', '10.0.0.2', CAST(x'7b2261223a22ff227d' AS TEXT), 0, 0, 's')", ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := mustRead(t, made(t, names, tt.row, good))
			if tt.says == "" { // JSON replaces what is no UTF-8, as a 1.x NSP does when it reads its file
				require.Empty(t, c.Problems)
				return
			}
			require.Len(t, c.Targets, 1)
			require.Equal(t, []string{"10.0.0.1"}, c.Targets[0].IPs)
			require.Len(t, c.Problems, 1)
			require.Contains(t, c.Problems[0].String(), tt.says)
		})
	}
}

// What a 1.x NSP took from its clients comes back as it was, also where it is odd.
func TestReadOddButGood(t *testing.T) {
	c := mustRead(t, made(t, names,
		insert("10.0.0.1", "null", 2), insert("10.0.0.2", `{"identifier":"abc"}`, 7),
		"INSERT INTO targets VALUES ('h-9-..', 'h', '{}', 1, 9, '')",
		"INSERT INTO targets VALUES ('-1-..', '', '{}', 0, 1, '')",
	))
	require.Empty(t, c.Problems)
	require.Equal(t, []registry.Status{registry.Any, 7, registry.Disabled, registry.Enabled},
		[]registry.Status{c.Targets[0].Status, c.Targets[1].Status, c.Targets[2].Status, c.Targets[3].Status})
	require.EqualValues(t, 9, c.Targets[2].Type)
	require.Equal(t, []string{""}, c.Targets[3].IPs)
}

// Entries that differ in the order or spelling of their addresses are one to us. D12
func TestReadMerges(t *testing.T) {
	const v4, v6, v6long = "172.16.0.1/24", "fd00::1/64", "fd00:0000::0001/64"
	for name, tt := range map[string]struct {
		first, second int // their statuses
		ips           string
		status        registry.Status
	}{
		"both enabled: the later":  {0, 0, v6long, registry.Enabled},
		"the first enabled":        {0, 1, v4, registry.Enabled},
		"the second enabled":       {1, 0, v6long, registry.Enabled},
		"none enabled: the later":  {1, 1, v6long, registry.Disabled},
		"odd statuses: the later":  {2, 7, v6long, 7},
		"enabled wins over others": {0, 7, v4, registry.Enabled},
	} {
		t.Run(name, func(t *testing.T) {
			c := mustRead(t, made(t, names,
				insert(v4+";"+v6, `{"identifier":"1"}`, tt.first), insert("10.0.0.9", "{}", 0), insert(v6long+";"+v4, `{"identifier":"2"}`, tt.second)))
			require.Len(t, c.Targets, 2)
			require.Equal(t, tt.ips, c.Targets[0].IPs[0], "it keeps its place")
			require.Equal(t, tt.status, c.Targets[0].Status)
			require.Len(t, c.Problems, 1)
			require.Contains(t, c.Problems[0].Reason, "same addresses")
			require.NotContains(t, c.Problems[0].ID, tt.ips+";", "the one that is left out is named")
		})
	}
}

func TestReadUnusable(t *testing.T) {
	small, err := os.ReadFile("testdata/small.db")
	require.NoError(t, err)
	thousand, err := os.ReadFile("testdata/thousand.db")
	require.NoError(t, err)
	spoil := func(data []byte, from int) []byte {
		data = append([]byte{}, data...)
		for i := from; i < len(data); i++ {
			data[i] ^= 0xa5
		}
		return data
	}
	for name, data := range map[string][]byte{
		"empty":   {},
		"text":    []byte("hello\n"),
		"header":  spoil(small, 0),
		"pages":   spoil(thousand, 8*4096),
		"schema":  spoil(small, 100),
		"cut off": thousand[:len(thousand)/2],
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "registry.db")
			require.NoError(t, os.WriteFile(path, data, 0o400))
			_, err := untouched(t, path)
			require.ErrorIs(t, err, ErrUnusable)
			require.ErrorContains(t, err, path)
		})
	}
	t.Run("missing", func(t *testing.T) {
		_, err := untouched(t, filepath.Join(t.TempDir(), "registry.db"))
		require.ErrorIs(t, err, fs.ErrNotExist)
		require.NotContains(t, err.Error(), "\n", "said once")
	})
	t.Run("ours", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "registry.db")
		s, err := sqlite.Open(t.Context(), sqlite.Config{Path: path})
		require.NoError(t, err)
		require.NoError(t, s.Close())
		_, err = untouched(t, path)
		require.ErrorIs(t, err, ErrUnusable)
		require.ErrorContains(t, err, "of this NSP already")
	})
	t.Run("other tables", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "registry.db")
		execute(t, path, "CREATE TABLE targets (id TEXT)")
		_, err := untouched(t, path)
		require.ErrorIs(t, err, ErrUnusable)
		require.ErrorContains(t, err, "of another program")
	})
	t.Run("other columns", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "registry.db")
		for _, table := range []string{"targets", "streams", "conduits", "trenches"} {
			execute(t, path, "CREATE TABLE "+table+" (name TEXT)")
		}
		_, err := untouched(t, path)
		require.ErrorIs(t, err, ErrUnusable)
		require.ErrorContains(t, err, "no such column")
	})
}

// killed leaves the files of a writer behind that was killed before it could tidy up: with what it committed in its log, or
// in the middle of a transaction that has written to the file and is to be undone.
func killed(t *testing.T, journal string) string {
	t.Helper()
	from := recorded(t, "thousand.db")
	db, err := sql.Open("sqlite", sqlite.DSN(from)+"?_pragma=journal_mode("+journal+")&_pragma=cache_size(5)")
	require.NoError(t, err)
	defer db.Close()
	conn, err := db.Conn(t.Context())
	require.NoError(t, err)
	defer conn.Close()
	do := func(s string) {
		_, err := conn.ExecContext(t.Context(), s)
		require.NoError(t, err)
	}
	do("DELETE FROM targets WHERE stream_name = 'stream-0'") // committed
	do("BEGIN")
	do("UPDATE targets SET status = 1, ips = ips || ';10.9.9.9'") // more than the cache has room for
	to := filepath.Join(t.TempDir(), "registry.db")
	for _, suffix := range []string{"", "-wal", "-shm", "-journal"} {
		data, err := os.ReadFile(from + suffix)
		if err == nil {
			require.NoError(t, os.WriteFile(to+suffix, data, 0o600))
		}
	}
	do("ROLLBACK")
	return to
}

func TestReadLeftovers(t *testing.T) { // P20
	for journal, suffix := range map[string]string{"WAL": "-wal", "DELETE": "-journal"} {
		t.Run(journal, func(t *testing.T) {
			path := killed(t, journal)
			info, err := os.Stat(path + suffix)
			require.NoError(t, err)
			require.NotZero(t, info.Size())
			c := mustRead(t, path)
			require.Empty(t, c.Problems)
			require.Len(t, c.Targets, 900)
			for _, target := range c.Targets {
				require.Equal(t, registry.Enabled, target.Status)
				require.Len(t, target.IPs, 2)
			}
		})
	}
}

// The digest is that of the entries, not of the bytes.
func TestDigest(t *testing.T) {
	path := recorded(t, "small.db")
	first := mustRead(t, path).Digest
	execute(t, path, "PRAGMA user_version = 3", "PRAGMA journal_mode = WAL", "CREATE TABLE more (x)")
	require.Equal(t, first, mustRead(t, path).Digest)
	for _, change := range []string{
		"UPDATE targets SET status = 1 WHERE rowid = 2", "UPDATE streams SET conduit_name = 'conduit-b' WHERE name = 'stream-a'",
		`UPDATE targets SET context = '{"identifier":"9"}' WHERE rowid = 1`, "DELETE FROM targets WHERE rowid = 6", "UPDATE targets SET status = 'x' WHERE rowid = 1",
	} {
		execute(t, path, change)
		next := mustRead(t, path).Digest
		require.NotEqual(t, first, next, change)
		first = next
	}
}

func TestReadEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Read(ctx, ReadConfig{Path: recorded(t, "small.db"), Namespace: own})
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, ErrUnusable)
}
