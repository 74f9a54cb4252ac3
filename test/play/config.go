package play

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

const flow = `- name: flow-of-%s
  stream: %s
  vips: [vip-a]
  protocols: [tcp]
  source-subnets: [0.0.0.0/0]
  source-port-ranges: [1024-65535]
  destination-port-ranges: ["%d"]
  priority: 1
`

// Configure writes the configuration of a trench with one conduit and its streams, each with its max-targets, as Meridio's
// operator does. Each stream has a flow to one VIP, 20.0.0.1, TCP port 4000 and up.
func Configure(
	ctx context.Context, c kubernetes.Interface, namespace, trench, conduit string, streams map[string]int,
) error {
	var list, flows strings.Builder
	list.WriteString("items:\n")
	flows.WriteString("items:\n")
	for i, s := range slices.Sorted(maps.Keys(streams)) {
		fmt.Fprintf(&flows, flow, s, s, 4000+i)
		fmt.Fprintf(&list, "- name: %s\n  conduit: %s\n  max-targets: %d\n", s, conduit, streams[s])
	}
	cm := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "meridio-configuration-" + trench},
		Data: map[string]string{
			"trench":   "name: " + trench + "\n",
			"conduits": fmt.Sprintf("items:\n- name: %s\n  trench: %s\n", conduit, trench),
			"streams":  list.String(),
			"flows":    flows.String(),
			"vips":     "items:\n- name: vip-a\n  address: 20.0.0.1/32\n  trench: " + trench + "\n",
		},
	}
	maps := c.CoreV1().ConfigMaps(namespace)
	_, err := maps.Create(ctx, cm, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = maps.Update(ctx, cm, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("configuring trench %s: %w", trench, err)
	}
	return nil
}

// PoolLabels mark a Service as the pool of a stream.
func PoolLabels(trench, conduit, stream string) map[string]string {
	return map[string]string{
		"service.kubernetes.io/service-proxy-name": "meridio-target-pool-service",
		"meridio.nordix.org/trench":                trench,
		"meridio.nordix.org/conduit":               conduit,
		"meridio.nordix.org/stream":                stream,
	}
}
