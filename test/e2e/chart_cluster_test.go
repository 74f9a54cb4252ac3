package e2e

import (
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
	"github.com/nordix/meridio-nsp/test/play"
	"github.com/nordix/meridio-nsp/test/workload"
)

// The program takes the command line of every process of every variant: it gets as far as the cluster, which is not there.
func TestChartCommandLineFitsProgram(t *testing.T) {
	c := cluster.Get(t)
	nsp, err := play.Build(t.Context())
	require.NoError(t, err)
	for _, variant := range chartVariants {
		t.Run(variant.name, func(t *testing.T) {
			namespace := c.Namespace(t)
			installVariant(t, c, namespace, variant)
			for _, set := range chartStatefulSets(t, c, namespace) {
				container := workload.PodOf(&set).Spec.Containers[0]
				require.Equal(t, "metadata.namespace", container.Env[0].ValueFrom.FieldRef.FieldPath)
				dir := t.TempDir()
				elsewhere := []string{"--datasource=" + filepath.Join(dir, "registry.db"), "--kubeconfig=" + filepath.Join(dir, "none")}
				cmd := exec.CommandContext(t.Context(), nsp, append(container.Args, elsewhere...)...)
				cmd.Env = append(os.Environ(), container.Env[0].Name+"="+namespace)
				out, err := cmd.CombinedOutput()
				require.Error(t, err)
				require.Contains(t, string(out), "reading --kubeconfig", set.Name)
			}
			for _, deployment := range chartDeployments(t, c, namespace) {
				container := deployment.Spec.Template.Spec.Containers[0]
				require.Equal(t, "metadata.namespace", container.Env[0].ValueFrom.FieldRef.FieldPath)
				cmd := exec.CommandContext(t.Context(), nsp, append(container.Args, "--kubeconfig="+filepath.Join(t.TempDir(), "none"))...)
				cmd.Env = append(os.Environ(), container.Env[0].Name+"="+namespace)
				out, err := cmd.CombinedOutput()
				require.Error(t, err)
				require.Contains(t, string(out), "reading --kubeconfig", deployment.Name)
			}
		})
	}
}

// The API server checks names, types and values of every object, and by PodSecurity the pods.
func TestChartIsAcceptedByServer(t *testing.T) {
	c := cluster.Get(t)
	for _, variant := range chartVariants {
		t.Run(variant.name, func(t *testing.T) {
			namespace := restrictedNamespace(t, c)
			targetNamespaces(t, c)
			manifests, err := chart.Render(t.Context(), namespace, variant.values)
			require.NoError(t, err)
			require.NoError(t, c.Apply(t.Context(), manifests, true))

			installVariant(t, c, namespace, variant)
			pods := []*corev1.Pod{}
			for _, set := range chartStatefulSets(t, c, namespace) {
				pods = append(pods, workload.PodOf(&set))
			}
			for _, deployment := range chartDeployments(t, c, namespace) {
				template := deployment.Spec.Template
				template.Name = deployment.Name
				pods = append(pods, &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec})
			}
			for _, pod := range pods {
				require.False(t, *pod.Spec.EnableServiceLinks)
				dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
				_, err = c.Client().CoreV1().Pods(namespace).Create(t.Context(), pod, dry)
				if variant.hostPath && pod.Name != chart.ControllerDeployment {
					require.True(t, apierrors.IsForbidden(err), "%v", err)
					require.NotContains(t, err.Error(), "securityContext", "the volume is all that is wrong with it")
					continue
				}
				require.NoError(t, err)
				pod.Spec.Containers[0].SecurityContext.AllowPrivilegeEscalation = nil
				_, err = c.Client().CoreV1().Pods(namespace).Create(t.Context(), pod, dry)
				require.True(t, apierrors.IsForbidden(err), "the namespace does not enforce anything: %v", err)
			}
		})
	}
}

// installVariant installs it, and removes in the end what is not in the namespace.
func installVariant(t *testing.T, c *cluster.Cluster, namespace string, variant chartVariant) {
	t.Helper()
	targetNamespaces(t, c)
	require.NoError(t, chart.Install(t.Context(), c, namespace, variant.values))
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		for _, name := range []string{"meridio-nsp:" + namespace, "meridio-nsp:" + namespace + ":tokens", "meridio-nsp:" + namespace + ":controller"} {
			_ = c.Client().RbacV1().ClusterRoles().Delete(ctx, name, metav1.DeleteOptions{})
			_ = c.Client().RbacV1().ClusterRoleBindings().Delete(ctx, name, metav1.DeleteOptions{})
		}
	})
}

// targetNamespaces are those that the variants name.
func targetNamespaces(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	for _, namespace := range []string{"nsp-test-blue", "nsp-test-green"} {
		require.NoError(t, c.EnsureNamespace(t.Context(), namespace))
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
		"image":        object{"tag": "next"},
		"transport":    "tls",
		"tls":          object{"secretName": "nsp-tls"},
		"port":         7779,
		"entryTimeout": "2m",
		"podLabels":    object{"a": "b"},
		"persistence":  object{"whenDeleted": "Retain"},
	}))
	require.Greater(t, chartStatefulSet(t, c, namespace).Generation, before.Generation)
}

// Selectors and named ports fit: the pod of the StatefulSet is behind the Service on both ports.
func TestChartServiceReachesPod(t *testing.T) {
	c := cluster.Get(t)
	namespace := restrictedNamespace(t, c)
	ctx := t.Context()
	require.NoError(t, chart.Install(ctx, c, namespace, nil))

	pod := workload.PodOf(chartStatefulSet(t, c, namespace))
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

// The namespace process may do what it needs, in its namespace, and nothing else.
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
		"patch services/status":                              true,
		"watch endpointslices.discovery.k8s.io":              true,
		"list externaltargets.targetpool.meridio.nordix.org": true, "watch externaltargets.targetpool.meridio.nordix.org": true,
		"watch configmaps": true,
		"list targetgrants.targetpool.meridio.nordix.org": true, "watch targetgrants.targetpool.meridio.nordix.org": true,
		"list streampolicies.targetpool.meridio.nordix.org": true, "watch streampolicies.targetpool.meridio.nordix.org": true,
		"list trenches.meridio.nordix.org": true, "watch trenches.meridio.nordix.org": true,
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

func chartStatefulSets(t *testing.T, c *cluster.Cluster, namespace string) []appsv1.StatefulSet {
	t.Helper()
	sets, err := c.Client().AppsV1().StatefulSets(namespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.NotEmpty(t, sets.Items)
	return sets.Items
}

func chartDeployments(t *testing.T, c *cluster.Cluster, namespace string) []appsv1.Deployment {
	t.Helper()
	deployments, err := c.Client().AppsV1().Deployments(namespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	return deployments.Items
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
