package e2e

import (
	"context"
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
	for _, page := range []struct{ name, namespace string }{
		{"install", "red"},
	} {
		t.Run(page.name, func(t *testing.T) {
			c := cluster.Get(t)
			ownNamespace(t, c, page.namespace)
			w := workload.Config{Cluster: c, Namespace: page.namespace, Dir: t.TempDir()}
			followPage(t, c, page.name, runWorkload(t, w))
		})
	}
}

// runWorkload plays the kubelet of a namespace until the test ends; the image is this tree's.
func runWorkload(t *testing.T, cfg workload.Config) *workload.Workload {
	t.Helper()
	nsp, err := play.Build(t.Context())
	require.NoError(t, err)
	cfg.Images = map[string]string{"meridio-nsp": nsp}
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
	_, err := c.Client().CoreV1().Namespaces().Get(t.Context(), name, metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "there is a namespace %s already: %v", name, err)
	t.Cleanup(func() {
		if err := c.DeleteNamespace(context.WithoutCancel(t.Context()), name); err != nil {
			t.Logf("cleanup: %v", err)
		}
	})
}

// followPage does what a page says, with an administrator's access.
func followPage(t *testing.T, c *cluster.Cluster, name string, w *workload.Workload) {
	t.Helper()
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	helm, err := chart.Helm(t.Context())
	require.NoError(t, err)
	kubectl, err := c.KubectlPath(t.Context())
	require.NoError(t, err)
	nsp, err := play.Build(t.Context())
	require.NoError(t, err)
	page, err := os.ReadFile(filepath.Join(root, "docs", name+".md"))
	require.NoError(t, err)
	err = console.Run(t.Context(), console.Config{
		Root: root, Dir: t.TempDir(), Timeout: 2 * time.Minute,
		Programs: map[string]string{"helm": helm, "kubectl": kubectl, "nsp": nsp},
		Env:      []string{"KUBECONFIG=" + c.Kubeconfig()},
	}, string(page))
	require.NoError(t, err, "docs/%s.md, while the process said:\n%s", name, w.Log("nsp"))
}
