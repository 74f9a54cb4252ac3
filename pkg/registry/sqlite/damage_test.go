package sqlite

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// TestDamagedFile // P20: whatever happened to the file, the store opens, and what was there is kept aside.
func TestDamagedFile(t *testing.T) {
	for name, spoil := range map[string]func(data []byte) []byte{
		"header":    func(data []byte) []byte { copy(data, "garbage garbage "); return data },
		"cut off":   func(data []byte) []byte { return data[:len(data)/2+100] },
		"few bytes": func(data []byte) []byte { return data[:50] },
		"pages":     func(data []byte) []byte { spoilPages(data, 4096); return data },
		"schema":    func(data []byte) []byte { spoilPages(data, 100); return data },
		"text":      func([]byte) []byte { return []byte("hello\n") },
		"newer":     func(data []byte) []byte { data[63] = 99; return data },
		"foreign":   func(data []byte) []byte { copy(data[68:72], "abcd"); return data },
	} {
		t.Run(name, func(t *testing.T) {
			path := filled(t, 500)
			data, err := os.ReadFile(path)
			require.NoError(t, err)
			data = spoil(data)
			require.NoError(t, os.WriteFile(path, data, 0o600))

			s := mustOpen(t, path)
			defer s.Close()
			saved, err := s.Load(t.Context())
			require.NoError(t, err)
			require.Zero(t, len(saved.Entries))
			require.True(t, saved.Lost)
			require.NoError(t, s.Write(t.Context(), batch(1)))
			aside := glob(t, path+".damaged-*Z")
			require.Len(t, aside, 1)
			kept, err := os.ReadFile(aside[0])
			require.NoError(t, err)
			require.True(t, bytes.Equal(data, kept))
		})
	}
}

// TestDamagedWhileOpen // P20: the writer learns that all is to be written again, and can.
func TestDamagedWhileOpen(t *testing.T) {
	path := filled(t, 500)
	s := mustOpen(t, path)
	defer s.Close()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	spoilPages(data, 4096)
	require.NoError(t, os.WriteFile(path, data, 0o600))
	_, err = s.db.conn.ExecContext(t.Context(), "PRAGMA shrink_memory") // so that it reads the file again
	require.NoError(t, err)

	require.ErrorIs(t, s.Write(t.Context(), batch(3)), registry.ErrLost)
	require.NoError(t, s.Write(t.Context(), batch(3)))
	saved, err := s.Load(t.Context())
	require.NoError(t, err)
	require.Len(t, saved.Entries, 3)
	require.Len(t, glob(t, path+".damaged-*Z"), 1)
}

// TestDamagedRow // P20: one row that makes no sense costs that row only.
func TestDamagedRow(t *testing.T) {
	path := filled(t, 3)
	db, err := sql.Open("sqlite", DSN(path))
	require.NoError(t, err)
	_, err = db.Exec(`UPDATE entries SET context = '{"identif' WHERE id = 2`)
	require.NoError(t, err)
	require.NoError(t, db.Close())
	s := mustOpen(t, path)
	defer s.Close()
	for range 2 {
		saved, err := s.Load(t.Context())
		require.NoError(t, err)
		require.Len(t, saved.Entries, 2)
		require.EqualValues(t, 4, saved.NextID)
	}
}

// TestMeridio1 // a 1.x registry is left as it is, to the byte
func TestMeridio1(t *testing.T) {
	path := filepath.Join(t.TempDir(), "registry.db")
	db, err := sql.Open("sqlite", DSN(path))
	require.NoError(t, err)
	for _, table := range []string{"trenches", "conduits", "streams", "targets"} {
		_, err = db.Exec(fmt.Sprintf("CREATE TABLE %s (name text, PRIMARY KEY (name))", table))
		require.NoError(t, err)
	}
	require.NoError(t, db.Close())
	before, err := os.ReadFile(path)
	require.NoError(t, err)

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Open(ended, Config{Path: path})
	require.ErrorIs(t, err, context.Canceled, "not having looked is no reason to move it")
	_, err = Open(t.Context(), Config{Path: path})
	require.ErrorIs(t, err, ErrForeign)
	require.ErrorContains(t, err, "choose another path")
	after, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, before, after)
	require.Equal(t, []string{path}, glob(t, path+"*"))
}

// TestFullDisk: a write that does not fit fails as a whole and is no damage; later ones succeed.
func TestFullDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "registry.db")
	s := mustOpen(t, path)
	defer s.Close()
	limit := func(pages int) {
		_, err := s.db.conn.ExecContext(t.Context(), fmt.Sprintf("PRAGMA max_page_count = %d", pages))
		require.NoError(t, err)
	}
	limit(20)
	require.NoError(t, s.Write(t.Context(), batch(1)))
	err := s.Write(t.Context(), batch(5000))
	require.ErrorContains(t, err, "full")
	require.NotErrorIs(t, err, registry.ErrLost)
	saved, err := s.Load(t.Context())
	require.NoError(t, err)
	require.Len(t, saved.Entries, 1)
	limit(1 << 20)
	require.NoError(t, s.Write(t.Context(), batch(5000)))
	require.Empty(t, glob(t, path+".damaged-*"))
}

func TestFilePermissions(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new dir?#%41", "registry.db")
	s := mustOpen(t, path)
	defer s.Close()
	require.NoError(t, s.Write(t.Context(), batch(1)))
	dir, err := os.Stat(filepath.Dir(path))
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o750), dir.Mode().Perm())
	names := glob(t, filepath.Join(filepath.Dir(filepath.Dir(path)), "*", "*"))
	require.Len(t, names, 4, "the file, its log, shared memory and lock")
	for _, name := range names {
		info, err := os.Stat(name)
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o600), info.Mode().Perm(), name)
	}
}

func TestUnusablePath(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err := Open(t.Context(), Config{Path: filepath.Join(file, "registry.db")})
	require.ErrorContains(t, err, "not a directory")
}

func TestClosed(t *testing.T) {
	s := mustOpen(t, filepath.Join(t.TempDir(), "registry.db"))
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	require.ErrorIs(t, s.Write(t.Context(), batch(1)), errClosed)
}

// filled is the path of a closed store with n entries.
func filled(t *testing.T, n int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "registry.db")
	s := mustOpen(t, path)
	require.NoError(t, s.Write(t.Context(), batch(n)))
	require.NoError(t, s.Close())
	return path
}

func batch(n int) registry.Batch {
	var b registry.Batch
	for i := 1; i <= n; i++ {
		k := registry.Key{Scope: "t", Stream: stream.Key{Trench: "t", Conduit: "c", Name: "s"}, Addrs: fmt.Sprintf("10.0.%d.%d/32", i/256, i%256)}
		b.Put = append(b.Put, &registry.Entry{Key: k, ID: uint64(i), IPs: []string{k.Addrs}})
	}
	return b
}

func spoilPages(data []byte, from int) {
	for i := from; i < len(data); i++ {
		data[i] ^= 0xa5
	}
}
