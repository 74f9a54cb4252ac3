package nsp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/registry/sqlite"
)

// volume is a file system of its own, of 4 MiB. Without root the test is skipped.
func volume(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting a file system needs root")
	}
	dir := t.TempDir()
	require.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4m"))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

// fill leaves no room on a volume.
func fill(t *testing.T, dir string) (restore func()) {
	t.Helper()
	filler := filepath.Join(dir, "filler")
	f, err := os.Create(filler)
	require.NoError(t, err)
	_, err = io.Copy(f, zeros{})
	require.ErrorIs(t, err, unix.ENOSPC)
	require.NoError(t, f.Close())
	return func() { require.NoError(t, os.Remove(filler)) }
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

func readOnly(t *testing.T, dir string) (restore func()) {
	t.Helper()
	require.NoError(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	return func() { require.NoError(t, unix.Mount("", dir, "", unix.MS_REMOUNT, "")) }
}

// A process whose disk is full or read-only when it starts serves what the file has, confirms what is as it was, refuses the rest
// with the reason, and stores again as soon as that is possible.
func TestStartOnAnUnusableDisk(t *testing.T) {
	for name, tt := range map[string]struct {
		spoil func(*testing.T, string) func()
		says  string
	}{
		"full":      {fill, "is full: free space on it"},
		"read-only": {readOnly, "cannot be written to: make it and its directory writable"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := volume(t)
			path := filepath.Join(dir, "registry.db")
			s := newSite(t)
			configured(t, path)
			stop := s.serve(path)
			s.open("172.16.0.1/24", "1")
			stop()

			restore := tt.spoil(t, dir)
			s.unstorable = true
			stop = s.serve(path)
			require.Equal(t, []string{"172.16.0.1/24"}, s.active())
			registry := nspv1.NewTargetRegistryClient(s.conn)
			_, err := registry.Register(within(t, patience), target("172.16.0.1/24", "1"))
			require.NoError(t, err, "a refresh needs no disk")
			_, err = registry.Register(within(t, patience), target("172.16.0.2/24", "2"))
			require.Equal(t, codes.Unavailable, status.Code(err))
			require.ErrorContains(t, err, path)
			require.ErrorContains(t, err, tt.says)
			require.Equal(t, []string{"172.16.0.1/24"}, s.active())
			stop()

			stop = s.serve(path) // a restart is no worse
			require.Equal(t, []string{"172.16.0.1/24"}, s.active())
			restore()
			s.unstorable = false
			require.Eventually(t, func() bool {
				_, err := registry.Register(within(t, patience), target("172.16.0.2/24", "2"))
				return err == nil
			}, patience, 10*time.Millisecond)
			s.open("172.16.0.2/24", "2")
			_, err = registry.Unregister(within(t, patience), target("172.16.0.1/24", "1"))
			require.NoError(t, err)
			stop()
			s.serve(path)
			require.Equal(t, []string{"172.16.0.2/24"}, s.active())
		})
	}
}

// active are the targets of stream-a that a load balancer is told first.
func (s *site) active() (ips []string) {
	s.Helper()
	w, err := nspv1.NewTargetRegistryClient(s.conn).Watch(within(s.T, patience), &nspv1.Target{
		Status: nspv1.Target_ENABLED, Stream: target("", "").GetStream(),
	})
	require.NoError(s, err)
	list, err := w.Recv()
	require.NoError(s, err)
	for _, one := range list.GetTargets() {
		ips = append(ips, one.GetIps()...)
	}
	return ips
}

// After an upgrade on a full disk, what Meridio 1.x has stored is served, and stored as soon as there is room.
func TestTakeoverOnAFullDisk(t *testing.T) {
	dir := volume(t)
	data, err := os.ReadFile(upgraded(t, "small.db"))
	require.NoError(t, err)
	path := filepath.Join(dir, "registry.db")
	require.NoError(t, os.WriteFile(path, data, 0o400))
	before := fingerprint(t, path)
	restore := fill(t, dir)
	full := begin(t, path)
	require.Len(t, full.Entries, 6)
	require.False(t, full.rebuilding)
	require.Contains(t, full.log, "the registry cannot be stored")
	restore()
	require.Len(t, begin(t, path).Entries, 6)
	require.Equal(t, before, fingerprint(t, path))
}

// A damaged file that cannot be moved aside stops nobody. // P20
func TestDamagedFileOnAReadOnlyDisk(t *testing.T) {
	dir := volume(t)
	path := filepath.Join(dir, "registry.db")
	configured(t, path)
	require.NoError(t, os.WriteFile(path, []byte("hello"), 0o600))
	readOnly(t, dir)
	begun := begin(t, path)
	require.True(t, begun.rebuilding, "load balancers are not told that all has gone")
	require.Contains(t, begun.log, "read-only file system")
}

// What could not be read at the start is replaced by what was learned since; nobody has to register for that.
func TestDatasourceComesBack(t *testing.T) {
	parent := filepath.Join(t.TempDir(), "data")
	path := filepath.Join(parent, "registry.db")
	write := func(ips ...string) (b registry.Batch) {
		for _, ip := range ips {
			e := entry(ip + "/32")
			e.ID = uint64(len(b.Put) + 1)
			b.Put = append(b.Put, e)
		}
		return b
	}
	change(t, path, write("10.0.0.1", "10.0.0.2"))
	require.NoError(t, os.Rename(parent, parent+".away"))
	require.NoError(t, os.WriteFile(parent, nil, 0o600))

	var log bytes.Buffer
	var works atomic.Bool
	works.Store(true)
	d := &datasource{path: path, namespace: "red", log: slog.New(slog.NewTextHandler(&log, nil)), working: works.Store}
	require.NoError(t, d.open(t.Context()))
	require.False(t, works.Load())
	saved, err := d.Load(t.Context())
	require.NoError(t, err)
	require.True(t, saved.Lost)
	require.Contains(t, log.String(), "the registry cannot be stored")
	d.tried = time.Time{}
	err = d.Write(t.Context(), write("10.0.0.2"))
	require.ErrorContains(t, err, path)
	require.NotErrorIs(t, err, registry.ErrLost)

	require.NoError(t, os.Remove(parent))
	require.NoError(t, os.Rename(parent+".away", parent))
	require.ErrorContains(t, d.Write(t.Context(), write("10.0.0.2")), "not a directory", "it is not tried all the time")
	d.tried = time.Time{}
	require.ErrorIs(t, d.Write(t.Context(), write("10.0.0.2")), registry.ErrLost)
	require.False(t, d.isOpen())
	require.NoError(t, d.Write(t.Context(), write("10.0.0.2", "10.0.0.3")))
	require.True(t, d.isOpen() && works.Load())
	require.NoError(t, d.Close())
	saved, err = sqlite.Read(t.Context(), path, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	var have []string
	for _, e := range saved.Entries {
		have = append(have, e.Addrs)
	}
	require.Equal(t, []string{"10.0.0.2/32", "10.0.0.3/32"}, have)
}

// A registry that could not be read is rebuilt when it can be written to, and not before.
func TestRebuildWaitsForTheDisk(t *testing.T) {
	p := newProcess(good().ProcessConfig, slog.New(slog.DiscardHandler))
	parent := filepath.Join(t.TempDir(), "data")
	require.NoError(t, os.WriteFile(parent, nil, 0o600))
	p.common.Datasource = filepath.Join(parent, "registry.db")
	require.NoError(t, p.openRegistry(t.Context()))
	defer p.close()
	require.True(t, p.rebuilding())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- p.registry.Run(ctx) }()
	go func() { ended <- p.rebuild(ctx) }()
	require.NoError(t, os.Remove(parent))
	select {
	case <-p.store.opened: // it is tried again by itself
	case <-time.After(patience):
		require.Fail(t, "the registry is not stored")
	}
	cancel()
	require.NoError(t, errors.Join(<-ended, <-ended))
}
