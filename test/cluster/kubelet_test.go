package cluster_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nordix/meridio-nsp/test/cluster"
)

const audience = "nsp.meridio.nordix.org"

var (
	marker   = map[string]string{"service.kubernetes.io/service-proxy-name": "meridio-target-pool-service"}
	selector = map[string]string{"app": "a"}
)

// endpoints returns what the slices of the Service list, of one family.
func endpoints(t testing.TB, c *cluster.Cluster, namespace, service string, family discoveryv1.AddressType) []discoveryv1.Endpoint {
	t.Helper()
	options := metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service}
	slices, err := c.Client().DiscoveryV1().EndpointSlices(namespace).List(t.Context(), options)
	require.NoError(t, err)
	var all []discoveryv1.Endpoint
	for _, slice := range slices.Items {
		if slice.AddressType == family {
			require.Subset(t, slice.Labels, marker, "the controller copies the labels")
			all = append(all, slice.Endpoints...)
		}
	}
	return all
}

// requireConditions waits until the Service has one endpoint with these conditions.
func requireConditions(t *testing.T, c *cluster.Cluster, namespace string, ready, serving, terminating bool) {
	t.Helper()
	want := discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating}
	require.EventuallyWithT(t, func(check *assert.CollectT) {
		for _, family := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
			found := endpoints(t, c, namespace, "s", family)
			require.Len(check, found, 1)
			require.Equal(check, want, found[0].Conditions)
		}
	}, patience, interval)
}

func TestEndpointFollowsItsPod(t *testing.T) {
	c := cluster.Get(t)
	ctx, namespace := t.Context(), c.Namespace(t)
	_, err := c.Service(ctx, cluster.ServiceConfig{Namespace: namespace, Name: "s", Labels: marker, Selector: selector})
	require.NoError(t, err)
	pod, err := c.Pod(ctx, cluster.PodConfig{
		Namespace: namespace, Name: "a", Labels: selector, IPs: []string{"10.1.2.3", "fd00::3"}, Ready: true,
	})
	require.NoError(t, err)
	require.Equal(t, corev1.PodRunning, pod.Status.Phase)
	requireConditions(t, c, namespace, true, true, false)
	found := endpoints(t, c, namespace, "s", discoveryv1.AddressTypeIPv6)[0]
	require.Equal(t, []string{"fd00::3"}, found.Addresses)
	require.Equal(t, pod.UID, found.TargetRef.UID)
	require.Equal(t, cluster.DefaultNode, *found.NodeName)

	sent, err := c.SetReady(ctx, namespace, "a", false)
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), sent, patience)
	requireConditions(t, c, namespace, false, false, false)
	_, err = c.SetReady(ctx, namespace, "a", true)
	require.NoError(t, err)
	requireConditions(t, c, namespace, true, true, false)

	require.NoError(t, c.Terminate(ctx, namespace, "a", time.Minute))
	requireConditions(t, c, namespace, false, true, true)
	_, err = c.SetReady(ctx, namespace, "a", false)
	require.NoError(t, err)
	requireConditions(t, c, namespace, false, false, true)

	require.NoError(t, c.Finish(ctx, namespace, "a"))
	require.Eventually(t, func() bool {
		return len(endpoints(t, c, namespace, "s", discoveryv1.AddressTypeIPv4)) == 0
	}, patience, interval)
}

func TestEndpointFollowsItsService(t *testing.T) {
	c := cluster.Get(t)
	ctx, namespace := t.Context(), c.Namespace(t)
	cfg := cluster.ServiceConfig{Namespace: namespace, Name: "s", Labels: marker, Selector: selector}
	_, err := c.Service(ctx, cfg)
	require.NoError(t, err)
	pod, err := c.Pod(ctx, cluster.PodConfig{Namespace: namespace, Name: "a", Labels: selector, HostNetwork: true, Ready: true})
	require.NoError(t, err)
	require.Equal(t, pod.Status.HostIP, pod.Status.PodIP)
	requireConditions(t, c, namespace, true, true, false)

	cfg.Selector = map[string]string{"app": "b"}
	_, err = c.Service(ctx, cfg)
	require.NoError(t, err)
	none := func() bool { return len(endpoints(t, c, namespace, "s", discoveryv1.AddressTypeIPv4)) == 0 }
	require.Eventually(t, none, patience, interval)

	require.NoError(t, c.DeleteService(ctx, namespace, "s"))
	require.Eventually(t, func() bool {
		slices, err := c.Client().DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{})
		return err == nil && len(slices.Items) == 0
	}, patience, interval, "the garbage collector removes the slices")
}

func TestHandMadeEndpointsAreMirrored(t *testing.T) {
	c := cluster.Get(t)
	namespace := c.Namespace(t)
	_, err := c.Service(t.Context(), cluster.ServiceConfig{Namespace: namespace, Name: "s", Labels: marker})
	require.NoError(t, err)
	manifest := fmt.Sprintf(`
apiVersion: v1
kind: Endpoints
metadata:
  name: s
  namespace: %s
  labels: {service.kubernetes.io/service-proxy-name: meridio-target-pool-service}
subsets: [{addresses: [{ip: 192.0.2.7}], ports: [{name: http, port: 80}]}]`, namespace)
	require.NoError(t, c.Apply(t.Context(), []byte(manifest), false))
	require.Eventually(t, func() bool {
		found := endpoints(t, c, namespace, "s", discoveryv1.AddressTypeIPv4)
		return len(found) == 1 && found[0].Addresses[0] == "192.0.2.7"
	}, patience, interval)
}

func TestPodTokenEndsWithItsPod(t *testing.T) {
	c := cluster.Get(t)
	ctx, namespace := t.Context(), c.Namespace(t)
	pod, err := c.Pod(ctx, cluster.PodConfig{Namespace: namespace, Name: "a", ServiceAccount: "tapa", Ready: true})
	require.NoError(t, err)
	token, err := c.PodToken(ctx, pod, "tapa", audience)
	require.NoError(t, err)
	review := func() authenticationv1.TokenReviewStatus {
		request := &authenticationv1.TokenReview{
			Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{audience}},
		}
		answer, err := c.Client().AuthenticationV1().TokenReviews().Create(ctx, request, metav1.CreateOptions{})
		require.NoError(t, err)
		return answer.Status
	}
	status := review()
	require.True(t, status.Authenticated, status.Error)
	require.Equal(t, "system:serviceaccount:"+namespace+":tapa", status.User.Username)
	require.Equal(t, authenticationv1.ExtraValue{"a"}, status.User.Extra["authentication.kubernetes.io/pod-name"])
	require.Equal(t, authenticationv1.ExtraValue{string(pod.UID)}, status.User.Extra["authentication.kubernetes.io/pod-uid"])

	require.NoError(t, c.Finish(ctx, namespace, "a"))
	require.Eventually(t, func() bool { return !review().Authenticated }, patience, 200*time.Millisecond)
}

// BenchmarkPod measures how fast pods that run and are ready can be made.
func BenchmarkPod(b *testing.B) {
	c := cluster.Get(b)
	namespace := c.Namespace(b)
	_, err := c.Service(b.Context(), cluster.ServiceConfig{Namespace: namespace, Name: "s", Labels: marker, Selector: selector})
	require.NoError(b, err)
	group, ctx := errgroup.WithContext(context.Background())
	group.SetLimit(16)
	n := 0
	for b.Loop() {
		n++
		name := fmt.Sprintf("p-%d", n)
		group.Go(func() error {
			_, err := c.Pod(ctx, cluster.PodConfig{Namespace: namespace, Name: name, Labels: selector, Ready: true})
			return err
		})
	}
	require.NoError(b, group.Wait())
	require.Eventually(b, func() bool {
		return len(endpoints(b, c, namespace, "s", discoveryv1.AddressTypeIPv4)) == n
	}, time.Minute, interval)
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "pods/s")
}
