package e2e

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/nordix/meridio-nsp/test/chart"
	"github.com/nordix/meridio-nsp/test/cluster"
)

// chartVariants are kept as golden files.
var chartVariants = []struct {
	name   string
	values chart.Values
}{
	{"default", nil},
	{"tls", chart.Values{
		"transport":  "tls",
		"tls":        map[string]any{"secretName": "nsp-tls", "verifyClients": true},
		"assignment": "ready",
		"port":       7000,
		"metrics":    map[string]any{"port": 9100},
		"persistence": map[string]any{
			"size":             "2Gi",
			"storageClassName": "fast",
			"whenDeleted":      "Retain",
		},
		"resources": map[string]any{"requests": map[string]any{"cpu": 2}},
	}},
	{"ephemeral", chart.Values{
		"image":             map[string]any{"repository": "registry.example/meridio-nsp", "tag": "v9.8.7", "pullPolicy": "Always"},
		"imagePullSecrets":  []any{map[string]any{"name": "registry-login"}},
		"persistence":       map[string]any{"enabled": false, "size": "64Mi"},
		"authorisation":     "none",
		"logLevel":          "debug",
		"entryTimeout":      "1m30s",
		"podLabels":         map[string]any{"team": "network", "app.kubernetes.io/component": "ignored"},
		"podAnnotations":    map[string]any{"prometheus.io/scrape": "true"},
		"nodeSelector":      map[string]any{"kubernetes.io/os": "linux"},
		"priorityClassName": "system-cluster-critical",
		"tolerations":       []any{map[string]any{"key": "edge", "operator": "Exists"}},
		"affinity": map[string]any{"nodeAffinity": map[string]any{"requiredDuringSchedulingIgnoredDuringExecution": map[string]any{
			"nodeSelectorTerms": []any{map[string]any{"matchExpressions": []any{
				map[string]any{"key": "edge", "operator": "Exists"},
			}}},
		}}},
	}},
}

// skipChartIfShort skips tests that may have to build helm.
func skipChartIfShort(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs helm, which -short leaves out")
	}
}

func TestChartRendersAsReviewed(t *testing.T) {
	skipChartIfShort(t)
	for _, variant := range chartVariants {
		t.Run(variant.name, func(t *testing.T) {
			got, err := chart.Render(t.Context(), "meridio", variant.values)
			require.NoError(t, err)
			golden := filepath.Join("testdata", "chart", variant.name+".yaml")
			if *update {
				require.NoError(t, os.MkdirAll(filepath.Dir(golden), 0o755))
				require.NoError(t, os.WriteFile(golden, got, 0o644))
			}
			want, err := os.ReadFile(golden)
			require.NoError(t, err)
			require.Equal(t, string(want), string(got), "if this is meant: go test ./test/e2e -run TestChartRendersAsReviewed -update")
		})
	}
}

func TestChartOffInstallsNothing(t *testing.T) {
	skipChartIfShort(t)
	off := chart.Values{"serviceFication": map[string]any{"enabled": false}}
	manifests, err := chart.Render(t.Context(), "meridio", off)
	require.NoError(t, err)
	require.Empty(t, bytes.TrimSpace(manifests))
	notes, err := chart.Notes(t.Context(), "meridio", off)
	require.NoError(t, err)
	require.Contains(t, notes, "nothing was installed")
}

func TestChartNotesSayWhatToDoNext(t *testing.T) {
	skipChartIfShort(t)
	notes, err := chart.Notes(t.Context(), "meridio", nil)
	require.NoError(t, err)
	require.Contains(t, notes, "kubectl --namespace meridio rollout status statefulset/nsp")
	require.Contains(t, notes, "service.kubernetes.io/service-proxy-name: meridio-target-pool-service")
	require.Contains(t, notes, "nsp-service.meridio:7778")
	require.Contains(t, notes, "not encrypted")
	require.NotContains(t, notes, "any client may act for any pod")

	notes, err = chart.Notes(t.Context(), "meridio", chart.Values{
		"transport": "tls", "tls": map[string]any{"secretName": "s"}, "authorisation": "none",
	})
	require.NoError(t, err)
	require.NotContains(t, notes, "not encrypted")
	require.Contains(t, notes, "any client may act for any pod")
}

// Every refusal names the value.
func TestChartRefusesBadValues(t *testing.T) {
	skipChartIfShort(t)
	for _, test := range []struct {
		name, says string
		values     chart.Values
	}{
		{"unknown value", "servicefication", chart.Values{"servicefication": map[string]any{"enabled": true}}},
		{"unknown value below", "enable", chart.Values{"serviceFication": map[string]any{"enable": true}}},
		{"word for a switch", "/serviceFication/enabled", chart.Values{"serviceFication": map[string]any{"enabled": "yes"}}},
		{"transport", "/transport", chart.Values{"transport": "mtls"}},
		{"tls without Secret", "/tls/secretName", chart.Values{"transport": "tls"}},
		{"Secret without tls", "/tls/secretName", chart.Values{"tls": map[string]any{"secretName": "s"}}},
		{"client certificates without tls", "/tls/verifyClients", chart.Values{"tls": map[string]any{"verifyClients": true}}},
		{"authorisation", "/authorisation", chart.Values{"authorisation": "off"}},
		{"assignment", "/assignment", chart.Values{"assignment": "always"}},
		{"log level", "/logLevel", chart.Values{"logLevel": "trace"}},
		{"timeout without unit", "/entryTimeout", chart.Values{"entryTimeout": "60"}},
		{"timeout of zero", "/entryTimeout", chart.Values{"entryTimeout": "0m0.0s"}},
		{"negative timeout", "/entryTimeout", chart.Values{"entryTimeout": "-60s"}},
		{"privileged port", "/port", chart.Values{"port": 80}},
		{"same port twice", "metrics.port", chart.Values{"port": 9090}},
		{"negative size", "/persistence/size", chart.Values{"persistence": map[string]any{"size": "-1Gi"}}},
		{"no image", "/image/repository", chart.Values{"image": map[string]any{"repository": ""}}},
		{"tag with a space", "/image/tag", chart.Values{"image": map[string]any{"tag": "a b"}}},
		{"annotation that is no string", "/podAnnotations/a", chart.Values{"podAnnotations": map[string]any{"a": 1}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := chart.Render(t.Context(), "meridio", test.values)
			require.ErrorContains(t, err, test.says)
		})
	}
}

// The program takes the command line of every variant: it gets as far as the cluster, which is not there.
func TestChartCommandLineFitsProgram(t *testing.T) {
	c := cluster.Get(t)
	nsp := filepath.Join(t.TempDir(), "nsp")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", nsp, "github.com/nordix/meridio-nsp/cmd/nsp").CombinedOutput()
	require.NoError(t, err, string(out))
	for _, variant := range chartVariants {
		t.Run(variant.name, func(t *testing.T) {
			namespace := c.Namespace(t)
			require.NoError(t, chart.Install(t.Context(), c, namespace, variant.values))
			container := chartPod(t, c, namespace).Spec.Containers[0]
			require.Equal(t, "metadata.namespace", container.Env[0].ValueFrom.FieldRef.FieldPath)

			dir := t.TempDir()
			elsewhere := []string{"--datasource=" + filepath.Join(dir, "registry.db"), "--kubeconfig=" + filepath.Join(dir, "none")}
			cmd := exec.CommandContext(t.Context(), nsp, append(container.Args, elsewhere...)...)
			cmd.Env = append(os.Environ(), container.Env[0].Name+"="+namespace)
			out, err := cmd.CombinedOutput()
			require.Error(t, err)
			require.Contains(t, string(out), "reading --kubeconfig")
		})
	}
}

// The API server checks names, types and values of every object, and by PodSecurity the pod.
func TestChartIsAcceptedByServer(t *testing.T) {
	c := cluster.Get(t)
	for _, variant := range chartVariants {
		t.Run(variant.name, func(t *testing.T) {
			namespace := restrictedNamespace(t, c)
			manifests, err := chart.Render(t.Context(), namespace, variant.values)
			require.NoError(t, err)
			require.NoError(t, c.Apply(t.Context(), manifests, true))

			require.NoError(t, chart.Install(t.Context(), c, namespace, variant.values))
			pod := chartPod(t, c, namespace)
			dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
			_, err = c.Client().CoreV1().Pods(namespace).Create(t.Context(), pod, dry)
			require.NoError(t, err)

			pod.Spec.Containers[0].SecurityContext.AllowPrivilegeEscalation = nil
			_, err = c.Client().CoreV1().Pods(namespace).Create(t.Context(), pod, dry)
			require.True(t, apierrors.IsForbidden(err), "the namespace does not enforce anything: %v", err)
		})
	}
}

// What a user may change later is no change of an immutable field.
func TestChartUpgrades(t *testing.T) {
	c := cluster.Get(t)
	namespace := c.Namespace(t)
	require.NoError(t, chart.Install(t.Context(), c, namespace, nil))
	before := chartStatefulSet(t, c, namespace)
	require.NoError(t, chart.Install(t.Context(), c, namespace, nil))
	require.Equal(t, before.Generation, chartStatefulSet(t, c, namespace).Generation, "installed again, nothing changes")

	require.NoError(t, chart.Install(t.Context(), c, namespace, chart.Values{
		"image":        map[string]any{"tag": "next"},
		"transport":    "tls",
		"tls":          map[string]any{"secretName": "nsp-tls"},
		"port":         7779,
		"entryTimeout": "2m",
		"podLabels":    map[string]any{"a": "b"},
		"persistence":  map[string]any{"whenDeleted": "Retain"},
	}))
	require.Greater(t, chartStatefulSet(t, c, namespace).Generation, before.Generation)
}

// Selectors and named ports fit: the pod of the StatefulSet is behind the Service on both ports.
func TestChartServiceReachesPod(t *testing.T) {
	c := cluster.Get(t)
	namespace := restrictedNamespace(t, c)
	ctx := t.Context()
	require.NoError(t, chart.Install(ctx, c, namespace, nil))

	pod := chartPod(t, c, namespace)
	pod.Spec.NodeName = cluster.DefaultNode
	pods := c.Client().CoreV1().Pods(namespace)
	pod, err := pods.Create(ctx, pod, metav1.CreateOptions{})
	require.NoError(t, err)
	pod.Status.Phase = corev1.PodRunning
	pod.Status.PodIP, pod.Status.PodIPs = "10.244.99.1", []corev1.PodIP{{IP: "10.244.99.1"}}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
	_, err = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.EventuallyWithT(t, func(t *assert.CollectT) {
		ports, err := chartServicePorts(ctx, c, namespace)
		require.NoError(t, err)
		require.Equal(t, map[string]int32{"grpc": 7778, "metrics": 9090}, ports)
	}, 30*time.Second, 20*time.Millisecond)
}

// The namespace process may do what it needs, in its namespace, and nothing else (M9).
func TestChartPermissions(t *testing.T) {
	c := cluster.Get(t)
	namespace, other := c.Namespace(t), c.Namespace(t)
	require.NoError(t, chart.Install(t.Context(), c, namespace, nil))
	require.NoError(t, chart.Install(t.Context(), c, other, nil))

	config, err := c.ServiceAccountConfig(t.Context(), namespace, chart.ServiceAccount)
	require.NoError(t, err)
	connections, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	t.Cleanup(connections.CloseIdleConnections)
	client, err := kubernetes.NewForConfigAndClient(config, connections)
	require.NoError(t, err)
	rules := &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: namespace}}
	rules, err = client.AuthorizationV1().SelfSubjectRulesReviews().Create(t.Context(), rules, metav1.CreateOptions{})
	require.NoError(t, err)
	require.Equal(t, map[string]bool{
		"get services": true, "list services": true, "watch services": true,
		"patch services/status":                true,
		"list endpointslices.discovery.k8s.io": true, "watch endpointslices.discovery.k8s.io": true,
		"watch configmaps":            true,
		"create events.events.k8s.io": true, "patch events.events.k8s.io": true,
	}, granted(rules.Status.ResourceRules))

	_, err = client.CoreV1().Services(namespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	_, err = client.CoreV1().Services(other).List(t.Context(), metav1.ListOptions{})
	require.True(t, apierrors.IsForbidden(err), "the other installation's namespace is readable: %v", err)
	_, err = client.CoreV1().Services(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
	require.True(t, apierrors.IsForbidden(err), "the whole cluster is readable: %v", err)
}

// granted lists "verb resource.group" without what Kubernetes lets everybody ask about himself.
func granted(rules []authorizationv1.ResourceRule) map[string]bool {
	all := map[string]bool{}
	for _, rule := range rules {
		for _, group := range rule.APIGroups {
			if group == authorizationv1.GroupName || group == "authentication.k8s.io" {
				continue
			}
			for _, resource := range rule.Resources {
				if group != "" {
					resource += "." + group
				}
				for _, verb := range rule.Verbs {
					all[verb+" "+resource] = true
				}
			}
		}
	}
	return all
}

// restrictedNamespace makes a namespace that takes only pods of the strictest Pod Security Standard.
func restrictedNamespace(t *testing.T, c *cluster.Cluster) string {
	t.Helper()
	namespace := c.Namespace(t)
	patch := []byte(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"restricted"}}}`)
	namespaces := c.Client().CoreV1().Namespaces()
	_, err := namespaces.Patch(t.Context(), namespace, types.MergePatchType, patch, metav1.PatchOptions{})
	require.NoError(t, err)
	return namespace
}

func chartStatefulSet(t *testing.T, c *cluster.Cluster, namespace string) *appsv1.StatefulSet {
	t.Helper()
	set, err := c.Client().AppsV1().StatefulSets(namespace).Get(t.Context(), chart.StatefulSet, metav1.GetOptions{})
	require.NoError(t, err)
	return set
}

// chartPod is the pod that the StatefulSet controller would make.
func chartPod(t *testing.T, c *cluster.Cluster, namespace string) *corev1.Pod {
	t.Helper()
	set := chartStatefulSet(t, c, namespace)
	template := set.Spec.Template.DeepCopy()
	pod := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	pod.Name = set.Name + "-0"
	for _, claim := range set.Spec.VolumeClaimTemplates {
		source := &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name + "-" + pod.Name}
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{
			Name:         claim.Name,
			VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: source},
		})
	}
	return pod
}

// chartServicePorts returns the ports, by name, at which the Service has a ready pod.
func chartServicePorts(ctx context.Context, c *cluster.Cluster, namespace string) (map[string]int32, error) {
	options := metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + chart.Service}
	slices, err := c.Client().DiscoveryV1().EndpointSlices(namespace).List(ctx, options)
	if err != nil {
		return nil, err
	}
	ports := map[string]int32{}
	for _, slice := range slices.Items {
		for _, endpoint := range slice.Endpoints {
			if endpoint.Conditions.Ready == nil || !*endpoint.Conditions.Ready {
				continue
			}
			for _, port := range slice.Ports {
				ports[*port.Name] = *port.Port
			}
		}
	}
	return ports, nil
}
