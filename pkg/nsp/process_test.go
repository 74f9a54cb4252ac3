package nsp

import (
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// cluster is the kubeconfig of an API server that does not answer.
func cluster(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(path, []byte(`{"apiVersion": "v1", "kind": "Config", "current-context": "c",
"clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
"contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
"users": [{"name": "u", "user": {"token": "t"}}]}`), 0o600))
	return path
}

// A process that cannot start says why, and leaves nothing running.
func TestStartFails(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", ":0")
	require.NoError(t, err)
	defer l.Close()
	taken := l.Addr().(*net.TCPAddr).Port
	for name, tt := range map[string]struct {
		edit func(*NamespaceConfig)
		says string
	}{
		"port in use":    {func(c *NamespaceConfig) { c.Port = taken }, "address already in use"},
		"metrics in use": {func(c *NamespaceConfig) { c.Port, c.MetricsAddress = 0, ":"+strconv.Itoa(taken) }, "address already in use"},
		"health is a file": {func(c *NamespaceConfig) {
			c.Port, c.MetricsAddress, c.HealthSocket = unused(t), "", filepath.Join(t.TempDir(), "precious")
			require.NoError(t, os.WriteFile(c.HealthSocket, []byte("data"), 0o600))
		}, "is no socket"},
		"no cluster":    {func(c *NamespaceConfig) { c.Kubeconfig = "" }, "--kubeconfig"},
		"no kubeconfig": {func(c *NamespaceConfig) { c.Kubeconfig = "/nowhere/config" }, "/nowhere/config"},
		"no certificate": {func(c *NamespaceConfig) {
			c.Transport, c.TLSCertFile, c.TLSKeyFile = TLS, "/nowhere/crt", "/nowhere/key"
		}, "/nowhere/crt"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("KUBERNETES_SERVICE_HOST", "")
			c := good()
			c.Port, c.MetricsAddress, c.HealthSocket, c.Kubeconfig = 0, "", "", cluster(t)
			c.Datasource = filepath.Join(t.TempDir(), "registry.db")
			tt.edit(&c)
			require.ErrorContains(t, RunNamespace(t.Context(), c, slog.New(slog.NewTextHandler(io.Discard, nil))), tt.says)
		})
	}
}
