package registry_test

import (
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/registry/sqlite"
)

// BenchmarkRegisterDurable stores new targets, synced to disk, by a number of callers at once.
func BenchmarkRegisterDurable(b *testing.B) {
	for _, callers := range []int{1, 8, 64, 512} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			r := onDisk(b)
			var n atomic.Uint64
			inParallel(b, callers, func() error {
				i := n.Add(1)
				return r.Register(b.Context(), target("s", i, fmt.Sprintf("fd00::%x:%x/64", i>>16, i&0xffff)), registry.Caller{})
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "regs/s")
		})
	}
}

// BenchmarkRefresh repeats what is known, which needs no disk.
func BenchmarkRefresh(b *testing.B) {
	const known = 10_000
	for _, callers := range []int{8, 64} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			r := onDisk(b)
			targets := make([]registry.Target, known)
			var n atomic.Uint64
			for i := range targets {
				targets[i] = target("s", uint64(i+1), fmt.Sprintf("172.16.%d.%d/16", i>>8, i&0xff), fmt.Sprintf("fd00::%x/64", i+1))
			}
			everyone(b, targets, func(t registry.Target) error { return r.Register(b.Context(), t, registry.Caller{}) })
			everyone(b, targets, func(t registry.Target) error { return r.Register(b.Context(), t, registry.Caller{}) })
			b.ResetTimer()
			inParallel(b, callers, func() error {
				return r.Register(b.Context(), targets[n.Add(1)%known], registry.Caller{})
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "refreshes/s")
		})
	}
}

// BenchmarkRestart opens, checks and reads a file of 10,000 registrations.
func BenchmarkRestart(b *testing.B) {
	path := filepath.Join(b.TempDir(), "registry.db")
	s, err := sqlite.Open(b.Context(), sqlite.Config{Path: path})
	require.NoError(b, err)
	r, stop := start(b, registry.Config{Store: s})
	everyone(b, numbered(10_000), func(t registry.Target) error { return r.Register(b.Context(), t, registry.Caller{}) })
	stop()
	for b.Loop() {
		s, err := sqlite.Open(b.Context(), sqlite.Config{Path: path})
		require.NoError(b, err)
		saved, err := registry.New(registry.Config{Store: s, Namespace: own}).Load(b.Context())
		require.NoError(b, err)
		require.Len(b, saved.Entries, 10_000)
		require.NoError(b, s.Close())
	}
}

func onDisk(b *testing.B) *registry.Registry {
	s, err := sqlite.Open(b.Context(), sqlite.Config{Path: filepath.Join(b.TempDir(), "registry.db")})
	require.NoError(b, err)
	return run(b, registry.Config{Store: s})
}

// inParallel has the callers do b.N operations between them.
func inParallel(b *testing.B, callers int, f func() error) {
	var left atomic.Int64
	left.Store(int64(b.N))
	everyone(b, make([]struct{}, callers), func(struct{}) error {
		for left.Add(-1) >= 0 {
			if err := f(); err != nil {
				return err
			}
		}
		return nil
	})
}
