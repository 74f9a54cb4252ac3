package v1alpha1

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/nordix/meridio-nsp/test/cluster"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(cluster.Shared(m)) }

const crds = "../../deployments/helm/meridio-nsp/files/crds"

// Every kind, with the plural that names its resource.
var kinds = map[string]string{
	"TargetGrant": "targetgrants", "ExternalTarget": "externaltargets", "TargetPool": "targetpools", "StreamPolicy": "streampolicies",
}

func TestScheme(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, AddToScheme(scheme))
	for kind := range kinds {
		for _, name := range []string{kind, kind + "List"} {
			require.True(t, scheme.Recognizes(GroupVersion.WithKind(name)), name)
		}
	}
}

// install puts the CRDs into the cluster and waits until they are served.
func install(t *testing.T) *cluster.Cluster {
	t.Helper()
	c := cluster.Get(t)
	files, err := filepath.Glob(filepath.Join(crds, "*.yaml"))
	require.NoError(t, err)
	require.Len(t, files, len(kinds))
	var all bytes.Buffer
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		all.Write(text)
	}
	require.NoError(t, c.Apply(t.Context(), all.Bytes(), false))
	for _, plural := range kinds {
		_, err := c.Kubectl(t.Context(), "wait", "--for=condition=Established", "--timeout=60s", "crd/"+plural+"."+Group)
		require.NoError(t, err)
	}
	return c
}

// object reads one written as YAML, without the lines that all have in common.
func object(t *testing.T, kind, name, spec string) *unstructured.Unstructured {
	t.Helper()
	text := fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata: {name: %s}\nspec:\n  %s", GroupVersion, kind, name,
		strings.ReplaceAll(strings.TrimSpace(spec), "\n", "\n  "))
	var u unstructured.Unstructured
	require.NoError(t, yaml.UnmarshalStrict([]byte(text), &u.Object), text)
	return &u
}

func TestAPIServer(t *testing.T) {
	c := install(t)
	namespace := c.Namespace(t)
	client, err := dynamic.NewForConfig(c.Config())
	require.NoError(t, err)
	try := func(t *testing.T, kind, spec string) error {
		resource := client.Resource(Resource(kinds[kind])).Namespace(namespace)
		options := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: "Strict"}
		var err error
		require.Eventually(t, func() bool { // a new resource may be announced before every part of the server knows it
			_, err = resource.Create(t.Context(), object(t, kind, "x", spec), options)
			return err == nil || !strings.Contains(err.Error(), "could not find the requested resource")
		}, time.Minute, 50*time.Millisecond)
		return err
	}
	for kind, specs := range accepted {
		for i, spec := range specs {
			t.Run(fmt.Sprintf("accepted/%s/%d", kind, i), func(t *testing.T) { require.NoError(t, try(t, kind, spec), spec) })
		}
	}
	for kind, tests := range refused {
		for name, test := range tests {
			t.Run("refused/"+kind+"/"+name, func(t *testing.T) { require.ErrorContains(t, try(t, kind, test.spec), test.says) })
		}
	}
}

func TestNameOfATargetPool(t *testing.T) {
	c := install(t)
	client, err := dynamic.NewForConfig(c.Config())
	require.NoError(t, err)
	pools := client.Resource(Resource("targetpools")).Namespace(c.Namespace(t))
	for name, ok := range map[string]bool{"pool-1": true, "1-pool": false, "pool.a": false, strings.Repeat("a", 64): false} {
		o := object(t, "TargetPool", name, accepted["TargetPool"][0])
		_, err := pools.Create(t.Context(), o, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		require.Equal(t, ok, err == nil, "%s: %v", name, err)
	}
}

func TestDefaults(t *testing.T) {
	c := install(t)
	client, err := dynamic.NewForConfig(c.Config())
	require.NoError(t, err)
	resource := client.Resource(Resource("externaltargets")).Namespace(c.Namespace(t))
	get := func(name, spec string) *ExternalTarget {
		u, err := resource.Create(t.Context(), object(t, "ExternalTarget", name, spec), metav1.CreateOptions{})
		require.NoError(t, err)
		var target ExternalTarget
		require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &target))
		return &target
	}
	dns := get("dns", "source: {dns: {name: db.example.com}}").Spec.Source.DNS
	require.Equal(t, []Family{IPv4, IPv6}, dns.Families)
	require.Equal(t, 5*time.Second, dns.MinTTL.Duration)
	require.Equal(t, 5*time.Minute, dns.MaxTTL.Duration)
	require.Equal(t, 10*time.Minute, dns.MaxStale.Duration)
	health := get("health", "source: {addresses: {ips: [192.0.2.1], health: {http: {port: 80}}}}").Spec.Source.Addresses.Health
	require.Equal(t, time.Second, health.Timeout.Duration)
	require.Equal(t, 5*time.Second, health.Interval.Duration)
	require.EqualValues(t, 1, health.UpAfter)
	require.EqualValues(t, 3, health.DownAfter)
	require.Equal(t, "/", health.HTTP.Path)
}

// TestExplain finds no field without a description: kubectl explain is where users look first.
func TestExplain(t *testing.T) {
	c := install(t)
	for _, plural := range kinds {
		text, err := c.Kubectl(t.Context(), "explain", plural, "--recursive=false")
		require.NoError(t, err)
		require.NotContains(t, string(text), "<no description>", plural)
		require.NotContains(t, string(text), "<empty>", plural)
	}
	files, _ := filepath.Glob(filepath.Join(crds, "*.yaml"))
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		var crd map[string]any
		require.NoError(t, yaml.Unmarshal(text, &crd))
		for _, version := range crd["spec"].(map[string]any)["versions"].([]any) {
			schema := version.(map[string]any)["schema"].(map[string]any)["openAPIV3Schema"].(map[string]any)
			requireDescribed(t, filepath.Base(file), schema)
		}
	}
}

func requireDescribed(t *testing.T, path string, schema map[string]any) {
	t.Helper()
	properties, _ := schema["properties"].(map[string]any)
	for name, property := range properties {
		property := property.(map[string]any)
		if name != "metadata" {
			require.NotEmpty(t, property["description"], "%s.%s", path, name)
		}
		requireDescribed(t, path+"."+name, property)
	}
	if items, ok := schema["items"].(map[string]any); ok {
		requireDescribed(t, path+"[]", items)
	}
}
