package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/nordix/meridio-nsp/test/cluster"
	"github.com/nordix/meridio-nsp/test/play"
)

// sidecarManifest is the one of the documentation.
func sidecarManifest(t *testing.T) []byte {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "sidecar.md"))
	require.NoError(t, err)
	_, rest, ok := bytes.Cut(page, []byte("```yaml\n"))
	require.True(t, ok)
	manifest, _, ok := bytes.Cut(rest, []byte("```"))
	require.True(t, ok)
	return manifest
}

// The manifest of the documentation is accepted as it is, and the sidecar alone meets the strictest Pod Security Standard.
func TestSidecarManifest(t *testing.T) {
	c := cluster.Get(t)
	manifest := sidecarManifest(t)
	var deployment appsv1.Deployment
	require.NoError(t, yaml.UnmarshalStrict(manifest, &deployment))
	namespace := c.Namespace(t)
	deployment.Namespace = namespace
	placed, err := yaml.Marshal(deployment)
	require.NoError(t, err)
	require.NoError(t, c.Apply(t.Context(), placed, false))

	restricted := restrictedNamespace(t, c)
	require.NoError(t, c.ServiceAccount(t.Context(), restricted, "default"))
	create := func(spec corev1.PodSpec) error {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: restricted, Name: "web"}, Spec: spec}
		_, err := c.Client().CoreV1().Pods(restricted).Create(t.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	spec := deployment.Spec.Template.Spec
	require.ErrorContains(t, create(spec), `violates PodSecurity "restricted`)
	spec.Containers = slices.DeleteFunc(spec.Containers, func(c corev1.Container) bool { return c.Name == "tapa" })
	spec.Volumes = slices.DeleteFunc(spec.Volumes, func(v corev1.Volume) bool { return v.HostPath != nil })
	require.NoError(t, create(spec))
}

// Every variable and probe in the manifest is one that the program knows.
func TestSidecarManifestFitsTheProgram(t *testing.T) {
	var deployment appsv1.Deployment
	require.NoError(t, yaml.UnmarshalStrict(sidecarManifest(t), &deployment))
	sidecar := deployment.Spec.Template.Spec.InitContainers[0]
	_, err := play.Build(t.Context())
	require.NoError(t, err)
	binary := filepath.Join("..", "..", "bin", "tapa")
	out, err := exec.Command(binary, "--help").CombinedOutput()
	require.NoError(t, err)
	help := string(out)
	require.Equal(t, []string{"/bin/tapa"}, sidecar.Command)
	for _, v := range sidecar.Env {
		flag, ok := strings.CutPrefix(v.Name, "NSP_")
		require.True(t, ok, v.Name)
		require.Contains(t, help, " --"+strings.ToLower(strings.ReplaceAll(flag, "_", "-"))+" ")
	}
	for _, probe := range []*corev1.Probe{sidecar.StartupProbe, sidecar.ReadinessProbe, sidecar.LivenessProbe} {
		require.Equal(t, []string{"/bin/tapa", "probe"}, probe.Exec.Command[:2])
	}
}
