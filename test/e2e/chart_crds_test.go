package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/test/chart"
	"github.com/nordix/meridio-nsp/test/cluster"
)

// The CRDs are those that were generated; they outlive the release, and are left out where they are not wanted.
func TestChartInstallsCRDs(t *testing.T) {
	c := cluster.Get(t)
	dir, err := chart.Dir(t.Context())
	require.NoError(t, err)
	files, err := filepath.Glob(filepath.Join(dir, "files", "crds", "*.yaml"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	namespace := c.Namespace(t)
	manifests, err := chart.Render(t.Context(), namespace, nil)
	require.NoError(t, err)
	objects := parseManifests(t, manifests)
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		for key, want := range parseManifests(t, data) {
			have := objects[key]
			require.NotNil(t, have, key)
			require.Equal(t, "keep", have.GetAnnotations()["helm.sh/resource-policy"])
			require.Equal(t, want.Object["spec"], have.Object["spec"], key)
		}
	}
	require.NoError(t, c.Apply(t.Context(), manifests, true))
	for _, off := range []chart.Values{
		{"crds": object{"install": false}}, {"serviceFication": object{"enabled": false}},
	} {
		manifests, err := chart.Render(t.Context(), namespace, off)
		require.NoError(t, err)
		require.NotContains(t, string(manifests), "CustomResourceDefinition")
	}
}

// A second installation in a cluster leaves the CRDs to the first, and an upgrade or removal of it does not take them away.
func TestChartInstalledTwice(t *testing.T) {
	c := cluster.Get(t)
	helm := helmOn(t, c)
	first, second := c.Namespace(t), c.Namespace(t)
	dir, err := chart.Dir(t.Context())
	require.NoError(t, err)
	for _, namespace := range []string{first, second} {
		helm("install", chart.Release, dir, "--namespace="+namespace)
	}
	helm("upgrade", chart.Release, dir, "--namespace="+first, "--set=logLevel=debug")
	helm("uninstall", chart.Release, "--namespace="+first)
	out, err := c.Kubectl(t.Context(), "get", "crd", "targetgrants.targetpool.meridio.nordix.org")
	require.NoError(t, err, string(out))
	helm("upgrade", chart.Release, dir, "--namespace="+second, "--set=logLevel=debug")
	require.NotEmpty(t, chartStatefulSets(t, c, second))
}

// helmOn runs helm against the cluster.
func helmOn(t *testing.T, c *cluster.Cluster) func(args ...string) {
	t.Helper()
	helm, err := chart.Helm(t.Context())
	require.NoError(t, err)
	home := t.TempDir()
	return func(args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), helm, append(args, "--kubeconfig="+c.Kubeconfig())...)
		cmd.Env = append(os.Environ(), "HOME="+home)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "helm %s: %s", strings.Join(args, " "), out)
	}
}
