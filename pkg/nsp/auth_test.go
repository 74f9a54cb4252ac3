package nsp

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/pkg/server"
)

// The mode that fits the transport is the default.
func TestDefaultModes(t *testing.T) {
	for name, tt := range map[string]struct {
		transport         TransportConfig
		namespace, trench auth.Mode
	}{
		"plaintext": {TransportConfig{}, auth.PeerAddress, auth.PeerAddress},
		"TLS":       {TransportConfig{Transport: TLS, TLSCertFile: "c", TLSKeyFile: "k"}, auth.ByToken, auth.PeerAddress},
		"TLS with a CA for clients": {
			TransportConfig{Transport: TLS, TLSCertFile: "c", TLSKeyFile: "k", TLSClientCA: "a"}, auth.ByToken, auth.Legacy,
		},
		"SPIFFE": {TransportConfig{SPIFFESocket: "unix:///a"}, auth.ByMTLS, auth.Legacy},
	} {
		t.Run(name, func(t *testing.T) {
			c := good()
			c.TransportConfig = tt.transport
			require.Equal(t, tt.namespace, c.namespaceMode())
			require.Equal(t, tt.trench, c.trenchMode())
			require.NoError(t, c.Validate(), "a default needs no more than it has")
			require.NoError(t, c.validateAuth(c.trenchMode()))
			c.Authorisation = "none"
			require.Equal(t, auth.None, c.namespaceMode())
			require.Equal(t, auth.None, c.trenchMode())
		})
	}
}

// What proves nothing over a transport is refused.
func TestModesThatMakeNoSense(t *testing.T) {
	withTLS := func(c *NamespaceConfig) { c.Transport, c.TLSCertFile, c.TLSKeyFile = TLS, "c", "k" }
	for name, tt := range map[string]struct {
		edit func(*NamespaceConfig)
		says string // empty where it is fine
	}{
		"tokens over plaintext":            {func(c *NamespaceConfig) { c.Authorisation = "token" }, "--tokens-over-plaintext"},
		"tokens over plaintext, as wished": {func(c *NamespaceConfig) { c.Authorisation, c.TokensOverPlaintext = "token", true }, ""},
		"mtls over plaintext":              {func(c *NamespaceConfig) { c.Authorisation = "mtls" }, "needs client certificates"},
		"legacy over plaintext":            {func(c *NamespaceConfig) { c.Authorisation = "legacy" }, "needs client certificates"},
		"mtls without a CA for clients":    {func(c *NamespaceConfig) { withTLS(c); c.Authorisation = "mtls" }, "--tls-client-ca-file"},
		"mtls without a trust domain":      {func(c *NamespaceConfig) { withTLS(c); c.TLSClientCA, c.Authorisation = "a", "mtls" }, "--trust-domain"},
		"mtls by files": {func(c *NamespaceConfig) {
			withTLS(c)
			c.TLSClientCA, c.Authorisation, c.TrustDomain = "a", "mtls", "example.org"
		}, ""},
		"no trust domain":     {func(c *NamespaceConfig) { c.TrustDomain = "Example Org" }, "--trust-domain"},
		"verification":        {func(c *NamespaceConfig) { c.TokenVerification = "guess" }, "--token-verification"},
		"legacy registration": {func(c *NamespaceConfig) { c.LegacyRegistration = "maybe" }, "--legacy-registration"},
		"a negative limit":    {func(c *NamespaceConfig) { c.Limits.Watches = -1 }, "below 0"},
		"an account":          {func(c *NamespaceConfig) { c.InspectorAccounts = []string{"a/b/c"} }, "--inspector-accounts"},
		"a load balancer":     {func(c *NamespaceConfig) { c.LoadBalancerAccounts = []string{"a/b=t/"} }, "--load-balancer-accounts"},
	} {
		t.Run(name, func(t *testing.T) {
			c := good()
			tt.edit(&c)
			err := c.Validate()
			if tt.says == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tt.says)
		})
	}
}

func TestLoadBalancerAccounts(t *testing.T) {
	got, err := parseLoadBalancers([]string{"lb", "blue/lb=t", "lb=t/c"}, "red")
	require.NoError(t, err)
	red := auth.ServiceAccount{Namespace: "red", Name: "lb"}
	require.Equal(t, []server.LoadBalancer{
		{Account: red}, {Account: auth.ServiceAccount{Namespace: "blue", Name: "lb"}, Trench: "t"}, {Account: red, Trench: "t", Conduit: "c"},
	}, got)
	for _, bad := range []string{"", "lb=", "lb=/c", "lb=t/", "lb=t/c/d", "a/b/c", "/lb"} {
		_, err := parseLoadBalancers([]string{bad}, "red")
		require.ErrorContains(t, err, "--load-balancer-accounts", bad)
	}
}
