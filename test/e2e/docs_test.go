package e2e

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nordix/meridio-nsp/test/chart"
	"github.com/nordix/meridio-nsp/test/cluster"
	"github.com/nordix/meridio-nsp/test/console"
	"github.com/nordix/meridio-nsp/test/play"
	"github.com/nordix/meridio-nsp/test/workload"
)

// Everything that these pages have the reader do is done, on a namespace of theirs.
func TestDocs(t *testing.T) {
	t.Run("install", func(t *testing.T) {
		c := cluster.Get(t)
		ownNamespace(t, c, "red")
		w := runWorkload(t, workload.Config{Cluster: c, Namespace: "red", Dir: t.TempDir()})
		page, err := os.ReadFile(filepath.Join("..", "..", "docs", "install.md"))
		require.NoError(t, err)
		follow(t, c, t.TempDir(), string(page), w)
	})
	t.Run("first-service", followFirstService)
	t.Run("upgrade", followUpgrade)
}

// runWorkload plays the kubelet of a namespace until the test ends; the image is this tree's.
func runWorkload(t *testing.T, cfg workload.Config) *workload.Workload {
	t.Helper()
	nsp, err := play.Build(t.Context())
	require.NoError(t, err)
	images := map[string]string{"meridio-nsp": nsp}
	maps.Copy(images, cfg.Images)
	cfg.Images = images
	w := workload.New(cfg)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() {
		if err := w.Run(ctx); err != nil {
			t.Errorf("%v", err)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
	return w
}

// ownNamespace sees to it that a page's namespace is nobody's else, before and after. The page makes it.
func ownNamespace(t *testing.T, c *cluster.Cluster, name string) {
	t.Helper()
	require.True(t, eventually(func() bool {
		_, err := c.Client().CoreV1().Namespaces().Get(t.Context(), name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}), "there is a namespace %s already, and it does not go", name)
	t.Cleanup(func() {
		if err := c.DeleteNamespace(context.WithoutCancel(t.Context()), name); err != nil {
			t.Logf("cleanup: %v", err)
		}
	})
}

// follow does what a page says, with an administrator's access; files that it has written are in dir.
func follow(t *testing.T, c *cluster.Cluster, dir, page string, w *workload.Workload) {
	t.Helper()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	require.NoError(t, err)
	helm, err := chart.Helm(t.Context())
	require.NoError(t, err)
	kubectl, err := c.KubectlPath(t.Context())
	require.NoError(t, err)
	nsp, err := play.Build(t.Context())
	require.NoError(t, err)
	err = console.Run(t.Context(), console.Config{
		Root: root, Dir: dir, Timeout: 2 * time.Minute,
		Programs: map[string]string{"helm": helm, "kubectl": kubectl, "nsp": nsp},
		Env:      []string{"KUBECONFIG=" + c.Kubeconfig()},
	}, page)
	require.NoError(t, err, "meanwhile the process said:\n%s", w.Log("nsp"))
}
