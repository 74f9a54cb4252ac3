package nsp

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func good() NamespaceConfig {
	return NamespaceConfig{
		ProcessConfig: ProcessConfig{
			Namespace: "red", Port: 7778, MetricsAddress: ":9090", HealthSocket: "/tmp/health.sock", Datasource: "/tmp/r.db",
			EntryTimeout: time.Minute, TransportConfig: TransportConfig{Transport: Plaintext}, ShutdownTimeout: time.Second,
		},
		Assignment: "membership",
	}
}

func TestGoodConfigurations(t *testing.T) {
	for name, edit := range map[string]func(*NamespaceConfig){
		"plain":                       func(*NamespaceConfig) {},
		"no metrics, no health":       func(c *NamespaceConfig) { c.MetricsAddress, c.HealthSocket = "", "" },
		"metrics on IPv6":             func(c *NamespaceConfig) { c.MetricsAddress = "[::1]:9090" },
		"TLS":                         func(c *NamespaceConfig) { c.Transport, c.TLSCertFile, c.TLSKeyFile = TLS, "c", "k" },
		"TLS with a CA for clients":   func(c *NamespaceConfig) { c.Transport, c.TLSCertFile, c.TLSKeyFile, c.TLSClientCA = TLS, "c", "k", "a" },
		"no transport":                func(c *NamespaceConfig) { c.Transport = "" },
		"SPIFFE by itself":            func(c *NamespaceConfig) { c.Transport, c.SPIFFESocket = "", "unix:///run/agent.sock" },
		"SPIFFE by a bare path":       func(c *NamespaceConfig) { c.Transport, c.SPIFFESocket = SPIFFE, "/run/agent.sock" },
		"SPIFFE is there, not wanted": func(c *NamespaceConfig) { c.SPIFFESocket = "unix:///run/agent.sock" },
		"a cluster's name":            func(c *NamespaceConfig) { c.ClusterName = "west-1.example" },
		"no authorisation, readiness": func(c *NamespaceConfig) { c.Authorisation, c.Assignment = "none", "ready" },
	} {
		t.Run(name, func(t *testing.T) {
			c := good()
			edit(&c)
			require.NoError(t, c.Validate())
		})
	}
}

// Each sentence names the flag and says what to do.
func TestBadConfigurations(t *testing.T) {
	for name, tt := range map[string]struct {
		edit func(*NamespaceConfig)
		flag string
		hint string
	}{
		"no namespace":       {func(c *NamespaceConfig) { c.Namespace = "" }, "--namespace", "NSP_NAMESPACE"},
		"port 0":             {func(c *NamespaceConfig) { c.Port = 0 }, "--port", "1 to 65535"},
		"port too great":     {func(c *NamespaceConfig) { c.Port = 65536 }, "--port", "1 to 65535"},
		"no datasource":      {func(c *NamespaceConfig) { c.Datasource = "" }, "--datasource", "set it to the path"},
		"metrics by port":    {func(c *NamespaceConfig) { c.MetricsAddress = "9090" }, "--metrics-address", "host:port or :port"},
		"relative socket":    {func(c *NamespaceConfig) { c.HealthSocket = "health.sock" }, "--health-socket", "absolute path"},
		"authorisation":      {func(c *NamespaceConfig) { c.Authorisation = "trust" }, "--authorisation", "peer-address"},
		"assignment":         {func(c *NamespaceConfig) { c.Assignment = "always" }, "--assignment", "membership or ready"},
		"cluster's name":     {func(c *NamespaceConfig) { c.ClusterName = "West/1" }, "--cluster-name", "RFC 1123"},
		"transport":          {func(c *NamespaceConfig) { c.Transport = "spiff" }, "--transport", "plaintext, tls"},
		"TLS without files":  {func(c *NamespaceConfig) { c.Transport = TLS }, "--tls-cert-file", "set both"},
		"TLS without key":    {func(c *NamespaceConfig) { c.Transport, c.TLSCertFile = TLS, "c" }, "--tls-key-file", "set both"},
		"files without TLS":  {func(c *NamespaceConfig) { c.TLSClientCA = "a" }, "--transport", "--transport=tls"},
		"SPIFFE nowhere":     {func(c *NamespaceConfig) { c.Transport = SPIFFE }, "--spiffe-endpoint-socket", "SPIFFE_ENDPOINT_SOCKET"},
		"SPIFFE by name":     {func(c *NamespaceConfig) { c.Transport, c.SPIFFESocket = "", "agent" }, "--spiffe-endpoint-socket", "unix:///path"},
		"SPIFFE with files":  {func(c *NamespaceConfig) { c.Transport, c.SPIFFESocket, c.TLSClientCA = "", "/a", "a" }, "--transport", "--transport=tls"},
		"entry timeout 0":    {func(c *NamespaceConfig) { c.EntryTimeout = 0 }, "--entry-timeout", "above 0"},
		"negative shutdown":  {func(c *NamespaceConfig) { c.ShutdownTimeout = -time.Second }, "--shutdown-timeout", "above 0"},
		"unknown upper case": {func(c *NamespaceConfig) { c.Transport = "TLS" }, "--transport", "choose one of"},
	} {
		t.Run(name, func(t *testing.T) {
			c := good()
			tt.edit(&c)
			err := c.Validate()
			require.ErrorContains(t, err, tt.flag)
			require.ErrorContains(t, err, tt.hint)
			require.Equal(t, 1, strings.Count(err.Error(), "\n")+1, "one fault, one sentence: %v", err)
		})
	}
}

func TestAllFaultsAreNamedAtOnce(t *testing.T) {
	err := (&NamespaceConfig{}).Validate()
	for _, flag := range []string{
		"--namespace", "--port", "--datasource", "--assignment", "--entry-timeout", "--shutdown-timeout",
	} {
		require.ErrorContains(t, err, flag)
	}
}
