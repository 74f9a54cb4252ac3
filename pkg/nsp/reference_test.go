package nsp

import (
	"context"
	"io"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/test/reference"
	"github.com/nordix/meridio-nsp/test/spiffe"
)

// The metrics are those that the processes register while they are put together, with everything that they may have.
func TestReference(t *testing.T) {
	ca, err := spiffe.NewAuthority("example.org")
	require.NoError(t, err)
	agent := startAgent(t, ca)
	common := func() ProcessConfig {
		c := good().ProcessConfig
		c.Transport, c.SPIFFESocket, c.Kubeconfig = SPIFFE, agent.Socket(), cluster(t)
		c.Datasource = filepath.Join(t.TempDir(), "registry.db")
		return c
	}
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	registries := map[string]*prometheus.Registry{}
	put := func(name string, p *process, steps ...func(context.Context) error) {
		defer p.close()
		require.NoError(t, p.take(t.Context(), steps...), name)
		p.metrics.Called("method", "OK", 0)
		registries[name] = p.metrics.registry
	}

	cfg := NamespaceConfig{ProcessConfig: common(), Assignment: "membership"}
	n := &namespace{process: newProcess(cfg.ProcessConfig, log), cfg: cfg}
	put("namespace", n.process, n.connect, n.openTransport, n.openRegistry, n.assemble)
	alone := goodTrench()
	alone.ProcessConfig = common()
	tr := newTrench(alone, log)
	put("trench", tr.process, tr.connect, tr.openTransport, tr.openOwn, tr.assemble)
	relaying := goodTrench()
	relaying.ProcessConfig, relaying.NamespaceNSP = common(), "127.0.0.1:1"
	r := newTrench(relaying, log)
	put("relay", r.process, r.connect, r.openTransport, r.openRelay, r.assemble)

	all := reference.Metrics(t, registries)
	reference.Section(t, "metrics.md", "nsp", reference.MetricsTable(all))
	require.Positive(t, reference.Monitoring(t, "nsp_", all))
}
