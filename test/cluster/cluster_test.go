package cluster_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/nordix/meridio-nsp/test/cluster"
)

const (
	patience = 30 * time.Second
	interval = 20 * time.Millisecond
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(cluster.Shared(m)) }

// alive says whether a process runs; one that only waits for its parent to take notice does not.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return state[0] != 'Z'
}

func requireGone(t *testing.T, pids []int) {
	t.Helper()
	require.Eventually(t, func() bool {
		for _, pid := range pids {
			if alive(pid) {
				return false
			}
		}
		return true
	}, patience, interval, "processes %v go on", pids)
}

// startOwn starts a cluster that this test may stop and break.
func startOwn(t *testing.T) *cluster.Cluster {
	t.Helper()
	cluster.SkipIfShort(t)
	if os.Getenv(cluster.EnvKubeconfig) != "" {
		t.Skip("needs a cluster of its own")
	}
	c, err := cluster.Start(t.Context(), cluster.Config{Log: t.Output()})
	require.NoError(t, err)
	t.Cleanup(c.Stop)
	return c
}

func TestClustersSideBySide(t *testing.T) {
	first, second := startOwn(t), startOwn(t)
	require.NotEqual(t, first.Config().Host, second.Config().Host)
	require.NoError(t, first.EnsureNamespace(t.Context(), "only-in-the-first"))
	_, err := second.Client().CoreV1().Namespaces().Get(t.Context(), "only-in-the-first", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)

	pids := append(first.PIDs(), second.PIDs()...)
	require.Len(t, pids, 6)
	for _, c := range []*cluster.Cluster{first, second} {
		c.Stop()
		c.Stop() // harmless
		require.NoDirExists(t, c.Dir())
	}
	requireGone(t, pids)
}

func TestAPIServerGoesAndComesBack(t *testing.T) {
	c := startOwn(t)
	require.NoError(t, c.EnsureNamespace(t.Context(), "kept"))
	namespaces := c.Client().CoreV1().Namespaces()
	before, err := namespaces.List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	host := c.Config().Host

	require.NoError(t, c.StopAPIServer())
	_, err = namespaces.Get(t.Context(), "kept", metav1.GetOptions{})
	require.Error(t, err)
	require.NoError(t, c.StartAPIServer(t.Context()))
	require.Equal(t, host, c.Config().Host)
	_, err = namespaces.Get(t.Context(), "kept", metav1.GetOptions{})
	require.NoError(t, err)

	require.NoError(t, c.PauseAPIServer())
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	_, err = namespaces.Get(ctx, "kept", metav1.GetOptions{})
	cancel()
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, c.ResumeAPIServer())
	require.NoError(t, c.WaitReady(t.Context()))

	requireHistoryGone(t, c, before.ResourceVersion)

	require.Len(t, c.PIDs(), 3, "the controllers must outlive an outage")
	_, err = c.Service(t.Context(), cluster.ServiceConfig{Namespace: "kept", Name: "s", Labels: marker, Selector: selector})
	require.NoError(t, err)
	_, err = c.Pod(t.Context(), cluster.PodConfig{Namespace: "kept", Name: "a", Labels: selector, Ready: true})
	require.NoError(t, err)
	requireConditions(t, c, "kept", true, true, false)

	c.Stop()
	require.Error(t, c.StartAPIServer(t.Context()))
}

// requireHistoryGone makes the server forget its history, which the version is part of.
func requireHistoryGone(t *testing.T, c *cluster.Cluster, version string) {
	t.Helper()
	require.NoError(t, c.EnsureNamespace(t.Context(), "later"))
	require.NoError(t, c.Compact(t.Context()))
	require.NoError(t, c.StopAPIServer())
	require.NoError(t, c.StartAPIServer(t.Context()))

	namespaces := c.Client().CoreV1().Namespaces()
	exact := metav1.ListOptions{ResourceVersion: version, ResourceVersionMatch: metav1.ResourceVersionMatchExact}
	_, err := namespaces.List(t.Context(), exact)
	require.True(t, apierrors.IsResourceExpired(err), "%v", err)
	watch, err := namespaces.Watch(t.Context(), metav1.ListOptions{ResourceVersion: version})
	require.NoError(t, err)
	defer watch.Stop()
	event := <-watch.ResultChan()
	require.True(t, apierrors.IsResourceExpired(apierrors.FromObject(event.Object)), "%v", event)
}

func TestExistingClusterIsUsedAndLeftAlone(t *testing.T) {
	existing := cluster.Get(t)
	t.Setenv(cluster.EnvKubeconfig, existing.Kubeconfig())
	c, err := cluster.Start(t.Context(), cluster.Config{})
	require.NoError(t, err)
	require.True(t, c.External())
	require.ErrorIs(t, c.StopAPIServer(), cluster.ErrExternal)
	_, err = c.Pod(t.Context(), cluster.PodConfig{Namespace: c.Namespace(t), Name: "a"})
	require.NoError(t, err)
	c.Stop()
	require.NoError(t, existing.WaitReady(t.Context()))
}

func TestKubectlReachesTheServer(t *testing.T) {
	out, err := cluster.Get(t).Kubectl(t.Context(), "version")
	require.NoError(t, err)
	require.Contains(t, string(out), "Server Version: v1.36")
	_, err = cluster.Get(t).Kubectl(t.Context(), "get", "nonsense")
	require.ErrorContains(t, err, `doesn't have a resource type "nonsense"`)
}

const readerRole = `
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader, namespace: NAMESPACE}
rules: [{apiGroups: [""], resources: [services], verbs: [list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader, namespace: NAMESPACE}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects: [{kind: ServiceAccount, name: reader, namespace: NAMESPACE}]
`

func TestServiceAccountMayDoWhatItsRoleSays(t *testing.T) {
	c := cluster.Get(t)
	namespace := c.Namespace(t)
	config, err := c.ServiceAccountConfig(t.Context(), namespace, "reader")
	require.NoError(t, err)
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	list := func() error {
		_, err := client.CoreV1().Services(namespace).List(t.Context(), metav1.ListOptions{})
		return err
	}
	manifest := []byte(strings.ReplaceAll(readerRole, "NAMESPACE", namespace))

	require.NoError(t, c.Apply(t.Context(), manifest, true))
	require.True(t, apierrors.IsForbidden(list()), "a dry run must change nothing")
	require.NoError(t, c.Apply(t.Context(), manifest, false))
	require.Eventually(t, func() bool { return list() == nil }, patience, interval)
	require.Error(t, c.Apply(t.Context(), []byte("kind: Nonsense"), true))

	path, err := c.ServiceAccountKubeconfig(t.Context(), namespace, "reader")
	require.NoError(t, err)
	out, err := c.Kubectl(t.Context(), "--kubeconfig="+path, "auth", "whoami", "-o=jsonpath={.status.userInfo.username}")
	require.NoError(t, err)
	require.Equal(t, "system:serviceaccount:"+namespace+":reader", string(out))
}

func TestNamespaceIsRemovedWithItsPods(t *testing.T) {
	c := cluster.Get(t)
	var name string
	t.Run("use", func(t *testing.T) {
		name = c.Namespace(t)
		_, err := c.Pod(t.Context(), cluster.PodConfig{Namespace: name, Name: "a"})
		require.NoError(t, err)
	})
	require.Eventually(t, func() bool {
		_, err := c.Client().CoreV1().Namespaces().Get(t.Context(), name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}, patience, interval)
}

func TestDualStackService(t *testing.T) {
	c := cluster.Get(t)
	service, err := c.Service(t.Context(), cluster.ServiceConfig{Namespace: c.Namespace(t), Name: "s", ClusterIP: true})
	require.NoError(t, err)
	require.Equal(t, []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}, service.Spec.IPFamilies)
	require.Len(t, service.Spec.ClusterIPs, 2)
}

func BenchmarkStart(b *testing.B) {
	for b.Loop() {
		c, err := cluster.Start(b.Context(), cluster.Config{})
		require.NoError(b, err)
		b.StopTimer()
		c.Stop()
		b.StartTimer()
	}
}
