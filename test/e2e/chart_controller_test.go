package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nordix/meridio-nsp/test/chart"
	"github.com/nordix/meridio-nsp/test/cluster"
)

// streamCRD stands for Meridio's own.
var streamCRD = strings.NewReplacer("trenches", "streams", "TrenchList", "StreamList", "Trench", "Stream", "trench", "stream").Replace(trenchCRD)

const controlled = `
apiVersion: targetpool.meridio.nordix.org/v1alpha1
kind: TargetPool
metadata: {name: pool-a, namespace: %[1]s}
spec:
  stream: {trench: trench-a, conduit: conduit-a, stream: stream-a}
  selector: {app: %[2]s}
---
apiVersion: meridio.nordix.org/v1
kind: Stream
metadata:
  name: stream-b
  namespace: %[1]s
  labels: {trench: trench-a}
  annotations: {meridio.nordix.org/target-selector: app=%[2]s}
spec: {conduit: conduit-a}
---
apiVersion: targetpool.meridio.nordix.org/v1alpha1
kind: StreamPolicy
metadata: {name: policy-a, namespace: %[1]s}
spec:
  stream: {trench: trench-a, conduit: conduit-a, stream: stream-a}
  sources: [{cidr: 192.0.2.0/24}, {service: {name: pool-a}}]
`

// The controller's Role is what it asks for, but for finalizers, which are looked at where it names an owner, and for list, which
// client-go uses if a watch cannot begin with what is there; endpoints of Services that policies name are listed in any case.
func TestChartControllerPermissionsAreMinimal(t *testing.T) {
	cluster.SkipIfShort(t)
	c, err := cluster.Start(t.Context(), cluster.Config{Audit: true})
	require.NoError(t, err)
	t.Cleanup(c.Stop)
	if c.External() {
		t.Skip("an existing cluster has no audit log of ours")
	}
	require.NoError(t, c.Apply(t.Context(), []byte(streamCRD), false))
	_, err = c.Kubectl(t.Context(), "wait", "--for=condition=Established", "crd/streams.meridio.nordix.org")
	require.NoError(t, err)
	s := &scene{T: t, cluster: c, namespace: c.Namespace(t)}
	s.controller()

	s.apply(externalTarget, "vm-1", s.namespace, "192.0.2.1")
	s.apply(controlled, s.namespace, "web")
	s.awaitResolved("pool-a", "192.0.2.1")
	s.awaitResolved("stream-stream-b", "192.0.2.1")
	s.apply(externalTarget, "vm-1", s.namespace, "192.0.2.2")
	s.awaitResolved("pool-a", "192.0.2.2")
	s.apply(controlled, s.namespace, "other")
	s.awaitResolved("pool-a")
	annotate := func(object, annotation string) {
		_, err := c.Kubectl(t.Context(), "annotate", "--overwrite", "-n", s.namespace, object, annotation)
		require.NoError(t, err)
	}
	annotate("streams/stream-b", "meridio.nordix.org/target-selector=nonsense")
	for i := range 4 { // looked at again each time; of the same event, the second is a patch
		annotate("services/stream-stream-b", fmt.Sprintf("look=%d", i))
	}
	annotate("streams/stream-b", "meridio.nordix.org/target-selector-")

	role, err := c.Client().RbacV1().Roles(s.namespace).Get(t.Context(), chart.ControllerAccount, metav1.GetOptions{})
	require.NoError(t, err)
	may := slices.DeleteFunc(rights(role.Rules), func(right string) bool {
		return strings.Contains(right, "/finalizers.") || strings.HasPrefix(right, "list ") && !strings.HasPrefix(right, "list endpointslices.")
	})
	require.EventuallyWithT(t, func(t *assert.CollectT) {
		requests, err := c.Requests(s.namespace, chart.ControllerAccount)
		require.NoError(t, err)
		require.Equal(t, may, asked(requests, role.Rules))
	}, patience, 50*time.Millisecond)
}
