package nsp

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/test/spiffe"
)

func TestLinkConfigurations(t *testing.T) {
	for name, tt := range map[string]struct {
		edit func(*TrenchConfig)
		says string // empty: all is well
	}{
		"none":               {func(c *TrenchConfig) { c.NamespaceNSP = "" }, ""},
		"plaintext":          {func(*TrenchConfig) {}, ""},
		"plaintext, a token": {func(c *TrenchConfig) { c.LinkToken = "t" }, ""},
		"TLS":                {func(c *TrenchConfig) { c.Transport, c.TLSCertFile, c.TLSKeyFile, c.LinkCA = TLS, "c", "k", "a" }, ""},
		"an account":         {func(c *TrenchConfig) { c.Transport, c.SPIFFESocket, c.LinkID = SPIFFE, "/a", "red/nsp" }, ""},
		"an ID":              {func(c *TrenchConfig) { c.Transport, c.SPIFFESocket, c.LinkID = SPIFFE, "/a", "spiffe://x.org/nsp" }, ""},
		"no trench":          {func(c *TrenchConfig) { c.ConfigMapName = "other" }, "name the ConfigMap meridio-configuration-<trench>"},
		"nowhere":            {func(c *TrenchConfig) { c.NamespaceNSP, c.LinkToken = "", "t" }, "set that to the address"},
		"files without TLS":  {func(c *TrenchConfig) { c.LinkCA = "a" }, "choose --transport=tls"},
		"half a pair":        {func(c *TrenchConfig) { c.Transport, c.TLSCertFile, c.TLSKeyFile, c.LinkKey = TLS, "c", "k", "k" }, "set both or none"},
		"an ID elsewhere":    {func(c *TrenchConfig) { c.LinkID = "red/nsp" }, "choose --transport=spiffe"},
		"a name only":        {func(c *TrenchConfig) { c.Transport, c.SPIFFESocket, c.LinkID = SPIFFE, "/a", "nsp" }, "as namespace/name"},
		"no ID":              {func(c *TrenchConfig) { c.Transport, c.SPIFFESocket, c.LinkID = SPIFFE, "/a", "spiffe://X.org/ nsp" }, "no SPIFFE ID"},
	} {
		t.Run(name, func(t *testing.T) {
			c := goodTrench()
			c.NamespaceNSP = "nsp-service.red:7778"
			tt.edit(&c)
			err := c.Validate()
			if tt.says == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, "--namespace-nsp")
			require.ErrorContains(t, err, tt.says)
			require.NotContains(t, err.Error(), "\n", "one fault, one sentence")
		})
	}
}

// over calls a server at an address over a new connection.
func over(t *testing.T, creds credentials.TransportCredentials, addr string) error {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(creds), grpc.WithAuthority("nsp"))
	require.NoError(t, err)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err = grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	return err
}

// With TLS each side has a certificate of its CA, and both are replaced on disk without a restart.
func TestLinkOverTLS(t *testing.T) {
	ca, next := newAuthority(t, "ca"), newAuthority(t, "next")
	served, shown := newFiles(t, ca.pem), newFiles(t, ca.pem)
	served.write(t, ca)
	shown.write(t, ca)
	addr := serveTLS(t, served, nil)
	link := LinkConfig{LinkCA: shown.ca, LinkCert: shown.cert, LinkKey: shown.key}
	creds, err := link.credentials(transport{}, TLS)
	require.NoError(t, err)
	require.NoError(t, over(t, creds, addr))
	anonymous, err := (&LinkConfig{LinkCA: shown.ca}).credentials(transport{}, TLS)
	require.NoError(t, err)
	require.Equal(t, codes.Unavailable, status.Code(over(t, anonymous, addr)), "the namespace process asks for a certificate")

	require.NoError(t, os.WriteFile(served.ca, next.pem, 0o600))
	served.write(t, next)
	require.Eventually(t, func() bool { return over(t, creds, addr) != nil }, patience, 10*time.Millisecond, "another CA")
	require.NoError(t, os.WriteFile(shown.ca, next.pem, 0o600))
	shown.write(t, next)
	require.Eventually(t, func() bool { return over(t, creds, addr) == nil }, patience, 10*time.Millisecond)

	_, err = (&LinkConfig{LinkCA: filepath.Join(t.TempDir(), "none")}).credentials(transport{}, TLS)
	require.ErrorContains(t, err, "link to the namespace process")
}

func openSource(t *testing.T, agent *spiffe.Agent) *auth.SPIFFE {
	s, err := auth.OpenSPIFFE(t.Context(), auth.SPIFFEConfig{Socket: agent.Socket(), Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

// Whoever has an SVID could stand at the address of the namespace process: where its ID is given, nobody else is believed.
func TestLinkPinsTheNamespaceProcess(t *testing.T) {
	ca, err := spiffe.NewAuthority("example.org")
	require.NoError(t, err)
	source := openSource(t, startAgent(t, ca))
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := grpc.NewServer(grpc.Creds(source.Server(nil)))
	grpc_health_v1.RegisterHealthServer(s, health.NewServer())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); require.NoError(t, <-ended) })
	for id, ok := range map[string]bool{
		"": true, "spiffe://example.org/ns/red/sa/nsp": true, "red/nsp": true,
		"red/other": false, "spiffe://other.org/ns/red/sa/nsp": false,
	} {
		creds, err := (&LinkConfig{LinkID: id}).credentials(transport{spiffe: source}, SPIFFE)
		require.NoError(t, err)
		if err = over(t, creds, l.Addr().String()); ok {
			require.NoError(t, err, id)
		} else {
			require.ErrorContains(t, err, "--namespace-nsp-id", id)
		}
	}
}
