package sidecar

import (
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/nordix/meridio-nsp/test/reference"
)

func TestReference(t *testing.T) {
	state, err := OpenState(filepath.Join(t.TempDir(), "state"), slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	defer state.Close()
	s, err := New(Config{
		PodNamespace: "red", PodName: "web-1", NSPAddress: "127.0.0.1:1", Credentials: insecure.NewCredentials(),
	}, state, nil, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	s.metrics.Operated("open", 0, nil)
	all := reference.Metrics(t, map[string]*prometheus.Registry{"tapa": s.metrics.registry})
	reference.Section(t, "metrics.md", "tapa", reference.MetricsTable(all))
	require.Positive(t, reference.Monitoring(t, "tapa_", all))
}
