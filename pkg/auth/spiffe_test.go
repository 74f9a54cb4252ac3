package auth_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/test/spiffe"
)

// patience bounds what should take milliseconds.
const patience = time.Minute

const nspPath = "/ns/red/sa/nsp"

// world is an agent on a socket, and what the process under test logs.
type world struct {
	*testing.T
	ca    *spiffe.Authority
	agent *spiffe.Agent
	log   *log
}

func newWorld(t *testing.T) *world {
	w := &world{T: t, ca: authority(t, "example.org"), agent: spiffe.NewAgent(filepath.Join(t.TempDir(), "agent.sock")), log: &log{}}
	w.start()
	t.Cleanup(w.stop)
	return w
}

func (w *world) start() { require.NoError(w, w.agent.Start(w.Context())) }

func (w *world) stop() {
	if err := w.agent.Stop(); err != nil {
		w.Errorf("stopping the agent: %v", err)
	}
}

func authority(t *testing.T, domain string) *spiffe.Authority {
	a, err := spiffe.NewAuthority(domain)
	require.NoError(t, err)
	return a
}

func svid(t *testing.T, by *spiffe.Authority, path string, valid time.Duration) *x509svid.SVID {
	s, err := by.SVID(path, valid)
	require.NoError(t, err)
	return s
}

// issue rotates the SVID of the process, and returns the serial number of the new one.
func (w *world) issue(valid time.Duration, more ...*x509bundle.Bundle) (serial string) {
	s := svid(w.T, w.ca, nspPath, valid)
	require.NoError(w, w.agent.Issue(s, append(more, w.ca.Bundle())...))
	return s.Certificates[0].SerialNumber.String()
}

func (w *world) config() auth.SPIFFEConfig {
	return auth.SPIFFEConfig{Socket: w.agent.Socket(), Log: slog.New(slog.NewTextHandler(w.log, nil))}
}

func (w *world) open(cfg auth.SPIFFEConfig) *auth.SPIFFE {
	s, err := auth.OpenSPIFFE(w.Context(), cfg)
	require.NoError(w, err)
	w.Cleanup(s.Close)
	return s
}

// has waits until the process has the SVID.
func (w *world) has(s *auth.SPIFFE, serial string) {
	w.Helper()
	require.Eventually(w, func() bool {
		now, err := s.GetX509SVID()
		return err == nil && now.Certificates[0].SerialNumber.String() == serial
	}, patience, time.Millisecond)
}

// server serves health, and tells who called last.
type server struct {
	*testing.T
	addr   string
	health *health.Server
	caller atomic.Pointer[auth.Identity]
}

func serve(t *testing.T, creds credentials.TransportCredentials) *server {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &server{T: t, addr: l.Addr().String(), health: health.NewServer()}
	g := grpc.NewServer(grpc.Creds(creds), grpc.UnaryInterceptor(
		func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			p, _ := peer.FromContext(ctx)
			s.caller.Store(new(auth.IdentityOf(p.AuthInfo)))
			return next(ctx, req)
		}))
	grpc_health_v1.RegisterHealthServer(g, s.health)
	ended := make(chan error, 1)
	go func() { ended <- g.Serve(l) }()
	t.Cleanup(func() {
		g.Stop()
		if err := <-ended; err != nil {
			t.Errorf("serving: %v", err)
		}
	})
	return s
}

func (s *server) dial(creds credentials.TransportCredentials) grpc_health_v1.HealthClient {
	conn, err := grpc.NewClient(s.addr, grpc.WithTransportCredentials(creds))
	require.NoError(s, err)
	s.Cleanup(func() { _ = conn.Close() })
	return grpc_health_v1.NewHealthClient(conn)
}

// call asks over a new connection, and says which certificate the server showed.
func (s *server) call(creds credentials.TransportCredentials) (serial string, err error) {
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	var p peer.Peer
	if _, err := s.dial(creds).Check(ctx, &grpc_health_v1.HealthCheckRequest{}, grpc.Peer(&p)); err != nil {
		return "", err
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	require.True(s, ok)
	return info.State.PeerCertificates[0].SerialNumber.String(), nil
}

// as are the credentials of a 1.x client with the SVID.
func as(id *x509svid.SVID, trusts x509bundle.Source) credentials.TransportCredentials {
	return credentials.NewTLS(tlsconfig.MTLSClientConfig(id, trusts, tlsconfig.AuthorizeAny()))
}

// log is what is logged, by several goroutines.
type log struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *log) count(words string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), words)
}

// An SVID lives for an hour or so, a watch for weeks.
func TestOpenWatchesSurviveRotation(t *testing.T) {
	w := newWorld(t)
	first := w.issue(time.Hour)
	source := w.open(w.config())
	s := serve(t, source.Server(nil))
	client := as(svid(t, w.ca, "/ns/red/sa/tapa", time.Hour), w.ca.Bundle())
	shown, err := s.call(client)
	require.NoError(t, err)
	require.Equal(t, first, shown)
	watch, err := s.dial(client).Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	require.NoError(t, err)
	expect := func(want grpc_health_v1.HealthCheckResponse_ServingStatus) {
		t.Helper()
		got, err := watch.Recv()
		require.NoError(t, err)
		require.Equal(t, want, got.GetStatus())
	}
	expect(grpc_health_v1.HealthCheckResponse_SERVING)

	second := w.issue(time.Hour)
	w.has(source, second)
	s.health.SetServingStatus("", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	expect(grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	shown, err = s.call(client)
	require.NoError(t, err)
	require.Equal(t, second, shown, "new connections see the new SVID")

	// The authority rotates too: the watch goes on, its client cannot come back.
	old := w.ca
	w.ca = authority(t, "example.org")
	third := w.issue(time.Hour)
	w.has(source, third)
	s.health.SetServingStatus("", grpc_health_v1.HealthCheckResponse_SERVING)
	expect(grpc_health_v1.HealthCheckResponse_SERVING)
	_, err = s.call(as(svid(t, old, "/ns/red/sa/tapa", time.Hour), w.ca.Bundle()))
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	_, err = s.call(as(svid(t, w.ca, "/ns/red/sa/tapa", time.Hour), w.ca.Bundle()))
	require.NoError(t, err)
}

// The client of one process and the server of another follow the same rules.
func TestClientAndServer(t *testing.T) {
	w := newWorld(t)
	w.issue(time.Hour)
	source := w.open(w.config())
	s := serve(t, source.Server(nil))
	_, err := s.call(source.Client())
	require.NoError(t, err)
	foreign := authority(t, "example.net")
	stranger := credentials.NewTLS(tlsconfig.MTLSServerConfig(
		svid(t, foreign, nspPath, time.Hour), w.ca.Bundle(), tlsconfig.AuthorizeAny()))
	_, err = serve(t, stranger).call(source.Client())
	require.ErrorContains(t, err, "example.net is not trusted")
}

func TestWhoIsRefused(t *testing.T) {
	w := newWorld(t)
	friend, foreign, liar := authority(t, "example.com"), authority(t, "example.net"), authority(t, "example.org")
	w.issue(time.Hour, friend.Bundle())
	var refused atomic.Int64
	cfg := w.config()
	cfg.Refused = func() { refused.Add(1) }
	s := serve(t, w.open(cfg).Server(nil))
	trusts := w.ca.Bundle()
	for name, tt := range map[string]struct {
		creds credentials.TransportCredentials
		// says is in the log where the client is refused.
		says string
	}{
		"of the trust domain":                      {as(svid(t, w.ca, "/any", time.Hour), trusts), ""},
		"of a federated one":                       {as(svid(t, friend, "/any", time.Hour), trusts), ""},
		"of another one":                           {as(svid(t, foreign, "/any", time.Hour), trusts), "example.net is not trusted"},
		"by another authority of the same name":    {as(svid(t, liar, "/any", time.Hour), trusts), "unknown authority"},
		"expired":                                  {as(svid(t, w.ca, "/any", -time.Minute), trusts), "expired"},
		"without a certificate":                    {credentials.NewTLS(tlsconfig.TLSClientConfig(trusts, tlsconfig.AuthorizeAny())), "didn't provide a certificate"},
		"of an authority itself, not a workload's": {as(w.ca.Self(), trusts), "CA flag"},
		"plaintext":                                {insecure.NewCredentials(), "does not look like a TLS handshake"},
	} {
		t.Run(name, func(t *testing.T) {
			before, lines := refused.Load(), w.log.count(tt.says)
			_, err := s.call(tt.creds)
			if tt.says == "" {
				require.NoError(t, err)
				require.Equal(t, before, refused.Load())
				return
			}
			require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
			require.Eventually(t, func() bool { return refused.Load() > before }, patience, time.Millisecond, "it is counted")
			require.Eventually(t, func() bool { return w.log.count(tt.says) > lines }, patience, time.Millisecond, "it is logged")
		})
	}
}

// A port that is probed refuses nobody.
func TestAProbeIsNotRefused(t *testing.T) {
	w := newWorld(t)
	w.issue(time.Hour)
	var refused atomic.Int64
	cfg := w.config()
	cfg.Refused = func() { refused.Add(1) }
	source := w.open(cfg)
	s := serve(t, source.Server(nil))
	for range 3 {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", s.addr)
		require.NoError(t, err)
		require.NoError(t, conn.Close())
	}
	_, err := s.call(source.Client())
	require.NoError(t, err)
	require.Zero(t, refused.Load())
}

func TestIdentity(t *testing.T) {
	w := newWorld(t)
	friend := authority(t, "example.com")
	w.issue(time.Hour, friend.Bundle())
	s := serve(t, w.open(w.config()).Server(nil))
	for name, tt := range map[string]struct {
		by            *spiffe.Authority
		path, id, sac string
	}{
		"a ServiceAccount":                  {w.ca, "/ns/red/sa/tapa", "spiffe://example.org/ns/red/sa/tapa", "red/tapa"},
		"another workload":                  {w.ca, "/vm/seven", "spiffe://example.org/vm/seven", ""},
		"a longer path":                     {w.ca, "/ns/red/sa/tapa/x", "spiffe://example.org/ns/red/sa/tapa/x", ""},
		"other words":                       {w.ca, "/no/red/sa/tapa", "spiffe://example.org/no/red/sa/tapa", ""},
		"the same path, somebody else (D4)": {friend, "/ns/red/sa/tapa", "spiffe://example.com/ns/red/sa/tapa", ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.call(as(svid(t, tt.by, tt.path, time.Hour), w.ca.Bundle()))
			require.NoError(t, err)
			got := s.caller.Load()
			require.Equal(t, spiffeid.RequireFromString(tt.id), got.SPIFFEID)
			require.Equal(t, tt.sac, got.Account.String())
		})
	}
	require.Zero(t, auth.IdentityOf(credentials.TLSInfo{}), "another transport proves nothing here")
	require.Zero(t, auth.IdentityOf(nil))
}

// A resumed session is not verified again, so none is.
func TestSessionsAreNotResumed(t *testing.T) {
	w := newWorld(t)
	w.issue(time.Hour)
	s := serve(t, w.open(w.config()).Server(nil))
	cfg := tlsconfig.MTLSClientConfig(svid(t, w.ca, "/any", time.Hour), w.ca.Bundle(), tlsconfig.AuthorizeAny())
	cfg.ClientSessionCache, cfg.ServerName, cfg.NextProtos = tls.NewLRUClientSessionCache(1), "nsp", []string{"h2"}
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		cfg.MaxVersion = version
		for range 2 {
			conn, err := (&tls.Dialer{Config: cfg}).DialContext(t.Context(), "tcp", s.addr)
			require.NoError(t, err)
			_, err = conn.Read(make([]byte, 1)) // the server's settings come after any ticket
			require.NoError(t, err)
			require.False(t, conn.(*tls.Conn).ConnectionState().DidResume)
			require.NoError(t, conn.Close())
		}
	}
}
