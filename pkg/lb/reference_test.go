package lb

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/nordix/meridio-nsp/test/reference"
)

func TestReference(t *testing.T) {
	b, err := New(Config{Trench: "trench-a", Conduit: "conduit-a", NSP: "127.0.0.1:1", Credentials: insecure.NewCredentials()})
	require.NoError(t, err)
	all := reference.Metrics(t, map[string]*prometheus.Registry{"stateless-lb": b.metrics.registry})
	reference.Section(t, "metrics.md", "stateless-lb", reference.MetricsTable(all))
	require.Positive(t, reference.Monitoring(t, "stateless_lb_", all))
}
