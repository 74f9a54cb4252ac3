package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/nordix/meridio-nsp/test/chart"
	"github.com/nordix/meridio-nsp/test/cluster"
)

// monitored switches on everything that is for Prometheus and Grafana.
var monitored = chart.Values{
	"replicas": 2,
	"metrics": object{
		"serviceMonitor": object{"enabled": true, "interval": "5s", "labels": object{"release": "prometheus"}},
		"rules":          object{"enabled": true, "labels": object{"release": "prometheus"}},
		"dashboards":     object{"enabled": true},
	},
}

// chartWithFiles is a copy of the chart with files that are known here, so that the test needs none of the product's.
func chartWithFiles(t *testing.T) string {
	t.Helper()
	source, err := chart.Dir(t.Context())
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS(source)))
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "files", "rules")))
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "files", "dashboards")))
	require.NoError(t, os.CopyFS(dir, os.DirFS(filepath.Join("testdata", "monitoring"))))
	return dir
}

// Rules and dashboards arrive as they are in the files, braces and all, and the API server takes what is made of them, as the
// Prometheus operator defines it.
func TestChartMonitoring(t *testing.T) {
	c := cluster.Get(t)
	crds, err := exec.CommandContext(t.Context(), "go", "-C", filepath.Join("..", "crds"), "run", ".").Output()
	require.NoError(t, err)
	require.NoError(t, c.Apply(t.Context(), crds, false))
	for _, name := range []string{"servicemonitors", "prometheusrules"} {
		_, err := c.Kubectl(t.Context(), "wait", "--for=condition=Established", "crd/"+name+".monitoring.coreos.com")
		require.NoError(t, err)
	}
	namespace := c.Namespace(t)
	manifests, err := chart.RenderCopy(t.Context(), chartWithFiles(t), namespace, monitored)
	require.NoError(t, err)
	require.NoError(t, c.Apply(t.Context(), manifests, true))

	objects := parseManifests(t, manifests)
	rule := objects["PrometheusRule/meridio-nsp-example"]
	require.Equal(t, "prometheus", rule.GetLabels()["release"])
	require.Equal(t, testFile(t, "rules/example.yaml"), rule.Object["spec"])
	monitor := objects["ServiceMonitor/meridio-nsp"]
	require.Equal(t, "prometheus", monitor.GetLabels()["release"])
	require.NotNil(t, objects["PodDisruptionBudget/nsp"], "with more than one replica")

	dashboard := objects["ConfigMap/meridio-nsp-dashboard-example"]
	require.Equal(t, "1", dashboard.GetLabels()["grafana_dashboard"])
	text, _, err := unstructured.NestedString(dashboard.Object, "data", "example.json")
	require.NoError(t, err)
	require.JSONEq(t, string(mustJSON(t, testFile(t, "dashboards/example.json"))), text)
}

// The ServiceMonitor finds the Services of all processes, and the port.
func TestChartMonitorSelectsServices(t *testing.T) {
	skipChartIfShort(t)
	values := trenches("trench-a")
	values["metrics"], values["transport"] = monitored["metrics"], "spiffe"
	manifests, err := chart.Render(t.Context(), "meridio", values)
	require.NoError(t, err)
	objects := parseManifests(t, manifests)
	monitor := objects["ServiceMonitor/meridio-nsp"]
	selected, _, err := unstructured.NestedStringMap(monitor.Object, "spec", "selector", "matchLabels")
	require.NoError(t, err)
	for _, name := range []string{"nsp-service", "nsp-service-trench-a"} {
		service := objects["Service/"+name]
		for k, v := range selected {
			require.Equal(t, v, service.GetLabels()[k], name)
		}
		var typed corev1.Service
		require.NoError(t, yaml.Unmarshal(mustJSON(t, service.Object), &typed))
		require.Equal(t, "metrics", typed.Spec.Ports[1].Name)
	}
	require.Nil(t, objects["PodDisruptionBudget/nsp"], "one replica: it would only be in the way of a drain")
}

// parseManifests are the objects by kind and name.
func parseManifests(t *testing.T, manifests []byte) map[string]*unstructured.Unstructured {
	t.Helper()
	objects := map[string]*unstructured.Unstructured{}
	for _, document := range bytes.Split(manifests, []byte("\n---\n")) {
		u := &unstructured.Unstructured{}
		require.NoError(t, yaml.Unmarshal(document, &u.Object), string(document))
		if len(u.Object) > 0 {
			objects[u.GetKind()+"/"+u.GetName()] = u
		}
	}
	return objects
}

func testFile(t *testing.T, path string) (content object) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "monitoring", "files", path))
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(data, &content))
	return content
}

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	require.NoError(t, err)
	return data
}
