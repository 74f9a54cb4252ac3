package nsp

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"net/url"
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
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/test/spiffe"
)

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

var serial int64

func template(name string) *x509.Certificate {
	serial++
	return &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
}

func newAuthority(t *testing.T, name string) *authority {
	x := template(name)
	x.IsCA, x.BasicConstraintsValid, x.KeyUsage = true, true, x509.KeyUsageCertSign
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.CreateCertificate(rand.Reader, x, x, key.Public(), key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return &authority{cert: cert, key: key, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

// sign makes a certificate and its key, PEM.
func (a *authority) sign(t *testing.T, name string) (certPEM, keyPEM []byte) {
	x := template(name)
	x.DNSNames = []string{name}
	x.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.CreateCertificate(rand.Reader, x, a.cert, key.Public(), a.key)
	require.NoError(t, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
}

func (a *authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

// files are those of a server.
type files struct{ cert, key, ca string }

func newFiles(t *testing.T, ca []byte) files {
	dir := t.TempDir()
	f := files{filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"), ""}
	if ca != nil {
		f.ca = filepath.Join(dir, "ca.crt")
		require.NoError(t, os.WriteFile(f.ca, ca, 0o600))
	}
	return f
}

// write writes a new certificate of the authority.
func (f files) write(t *testing.T, by *authority) {
	certPEM, keyPEM := by.sign(t, "nsp")
	// Both may be read in between: the old pair counts until they fit again.
	require.NoError(t, os.WriteFile(f.key, keyPEM, 0o600))
	require.NoError(t, os.WriteFile(f.cert, certPEM, 0o600))
}

// serveTLS is a server with nothing but health.
func serveTLS(t *testing.T, f files, machines *auth.Targets) (addr string) {
	creds, stop, err := serverTLS(f.cert, f.key, f.ca, machines, 10*time.Millisecond)
	require.NoError(t, err)
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := grpc.NewServer(grpc.Creds(creds))
	grpc_health_v1.RegisterHealthServer(s, health.NewServer())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		require.NoError(t, <-ended)
		stop()
	})
	return l.Addr().String()
}

// call asks over a new connection, and says whose certificate the server showed.
func call(ctx context.Context, addr string, cfg *tls.Config) (shown string, err error) {
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(credentials.NewTLS(cfg)))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	var p peer.Peer
	if _, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{}, grpc.Peer(&p)); err != nil {
		return "", err
	}
	return p.AuthInfo.(credentials.TLSInfo).State.PeerCertificates[0].SerialNumber.String(), nil
}

// Certificates that are replaced on disk count for new connections, without a restart.
func TestCertificatesAreReloaded(t *testing.T) {
	ca := newAuthority(t, "ca")
	f := newFiles(t, nil)
	f.write(t, ca)
	addr := serveTLS(t, f, nil)
	cfg := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: ca.pool(), ServerName: "nsp"}
	first, err := call(t.Context(), addr, cfg)
	require.NoError(t, err)

	f.write(t, ca)
	require.Eventually(t, func() bool {
		now, err := call(t.Context(), addr, cfg)
		return err == nil && now != first
	}, time.Minute, 10*time.Millisecond)

	// Damaged ones are not taken: the last good pair goes on.
	require.NoError(t, os.WriteFile(f.cert, []byte("damaged"), 0o600))
	for range 5 {
		_, err = call(t.Context(), addr, cfg)
		require.NoError(t, err)
	}
}

func TestClientsNeedACertificateWhereACAIsSet(t *testing.T) {
	ca, foreign := newAuthority(t, "ca"), newAuthority(t, "foreign")
	f := newFiles(t, ca.pem)
	f.write(t, ca)
	addr := serveTLS(t, f, nil)
	with := func(by *authority) *tls.Config {
		cfg := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: ca.pool(), ServerName: "nsp"}
		if by != nil {
			pair, err := tls.X509KeyPair(by.sign(t, "client"))
			require.NoError(t, err)
			cfg.Certificates = []tls.Certificate{pair}
		}
		return cfg
	}
	_, err := call(t.Context(), addr, with(ca))
	require.NoError(t, err)
	for _, by := range []*authority{nil, foreign} {
		_, err = call(t.Context(), addr, with(by))
		require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	}
	old := with(ca)
	old.MaxVersion = tls.VersionTLS12
	_, err = call(t.Context(), addr, old)
	require.Error(t, err, "TLS 1.3 or nothing")
}

func TestBadTLSFilesAreNamed(t *testing.T) {
	ca := newAuthority(t, "ca")
	f := newFiles(t, nil)
	_, _, err := serverTLS(f.cert, f.key, "", nil, time.Second)
	require.ErrorContains(t, err, f.cert)
	f.write(t, ca)
	_, _, err = serverTLS(f.cert, f.key, "/nowhere/ca.crt", nil, time.Second)
	require.ErrorContains(t, err, "/nowhere/ca.crt")
}

// With authorisation by certificates a machine of an ExternalTarget's authority is let in beside those of the CA.
func TestMachinesAreLetInOverTLS(t *testing.T) {
	ca := newAuthority(t, "ca")
	machines, err := spiffe.NewAuthority("example.org")
	require.NoError(t, err)
	targets := auth.NewTargets(auth.TargetsConfig{Log: slog.New(slog.DiscardHandler)})
	targets.Replace("apps", map[auth.Target]auth.TargetIdentity{
		{Namespace: "apps", Name: "vm-1", UID: "u"}: {Subject: "vm-1", ConfigMap: "c", Key: "ca.crt"},
	})
	targets.SetAuthority(auth.ConfigMap{Namespace: "apps", Name: "c"}, map[string]string{"ca.crt": string(machines.PEM())})
	f := newFiles(t, ca.pem)
	f.write(t, ca)
	addr := serveTLS(t, f, targets)
	shows := func(c tls.Certificate, err error) error {
		require.NoError(t, err)
		_, err = call(t.Context(), addr, &tls.Config{
			MinVersion: tls.VersionTLS13, RootCAs: ca.pool(), ServerName: "nsp", Certificates: []tls.Certificate{c},
		})
		return err
	}
	require.NoError(t, shows(machines.Plain("vm-1", nil, nil)))
	require.NoError(t, shows(tls.X509KeyPair(ca.sign(t, "client"))))
	require.Error(t, shows(machines.Plain("vm-2", nil, nil)))
	require.Error(t, shows(machines.Plain("vm-1", nil, func(x *x509.Certificate) {
		x.URIs = []*url.URL{{Scheme: "spiffe", Host: "example.org", Path: "/ns/red/sa/nsp"}}
	})))
	require.Error(t, shows(tls.X509KeyPair(newAuthority(t, "foreign").sign(t, "client"))))
	require.Error(t, shows(tls.Certificate{}, nil))
}
