package cluster

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAssetsAreUsedWhereComplete(t *testing.T) {
	dir := t.TempDir()
	for _, name := range programs {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o755))
	}
	t.Setenv("KUBEBUILDER_ASSETS", dir)
	found, err := Binary(t.Context(), t.Output())
	require.NoError(t, err)
	require.Equal(t, dir, found)
}

func TestIncompleteAssetsAreNamed(t *testing.T) {
	t.Setenv("KUBEBUILDER_ASSETS", t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // no build
	var log bytes.Buffer
	_, _ = Binary(ctx, &log)
	require.Contains(t, log.String(), "lacks etcd, kube-apiserver, kube-controller-manager, kubectl")
}

func TestCacheFollowsTheSources(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	source := t.TempDir()
	name := func(file, content string) string {
		require.NoError(t, os.WriteFile(filepath.Join(source, file), []byte(content), 0o644))
		dir, err := cacheDir(source)
		require.NoError(t, err)
		return dir
	}
	first := name("main.go", "1")
	require.NotEqual(t, first, name("main.go", "2"))
	require.Equal(t, first, name("main.go", "1"))
	require.Equal(t, first, name("notes.txt", "ignored"))
	require.NotEqual(t, first, name("go.sum", "1"))
}

func TestLockExcludes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := lockFile(t.Context(), path, t.Output())
	require.NoError(t, err)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = lockFile(ctx, path, t.Output())
	require.ErrorIs(t, err, context.Canceled)

	unlock()
	unlock, err = lockFile(t.Context(), path, t.Output())
	require.NoError(t, err)
	unlock()
}

func TestProgressCountsPackages(t *testing.T) {
	var log bytes.Buffer
	p := startProgress(&log)
	complaints := p.follow(strings.NewReader("k8s.io/api/core/v1\nfmt\n# k8s.io/broken\na.go:1:2: syntax error\n"))
	p.stop()
	require.Equal(t, "# k8s.io/broken\na.go:1:2: syntax error", complaints)
	require.Contains(t, log.String(), "2 packages compiled")
}

func TestFailedBuildSaysWhy(t *testing.T) {
	source := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(source, "go.mod"), []byte("module broken\n"), 0o644))
	err := build(t.Context(), source, filepath.Join(source, "binary"), t.Output())
	require.ErrorContains(t, err, "k8s.io/kubernetes")
}

func TestAddresses(t *testing.T) {
	require.Equal(t, []string{"10.244.0.1", "fd00::1"}, addresses("10.244.0.0", "fd00::", 1))
	require.Equal(t, []string{"10.244.1.44", "fd00::12c"}, addresses("10.244.0.0", "fd00::", 300))
	require.Equal(t, "10.245.0.0", nth("10.244.255.255", 1))
}

func TestAbandonedWorkDirsAreRemoved(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	used, err := newWorkDir()
	require.NoError(t, err)
	defer used.remove()
	abandoned, err := newWorkDir()
	require.NoError(t, err)
	for _, dir := range []*workDir{used, abandoned} {
		require.NoError(t, os.WriteFile(filepath.Join(dir.path, "tokens.csv"), nil, 0o600))
	}
	abandoned.lock.Close() // as the kernel does for a killed process
	removeAbandoned()
	require.DirExists(t, used.path)
	require.NoDirExists(t, abandoned.path)
}
