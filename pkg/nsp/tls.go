package nsp

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/tls/certprovider"
	"google.golang.org/grpc/credentials/tls/certprovider/pemfile"

	"github.com/nordix/meridio-nsp/pkg/auth"
)

// reloadEvery is how soon new TLS files count for new connections.
const reloadEvery = 10 * time.Second

// serverTLS makes credentials from files, which are read again every so often. With a CA for clients, clients must show a
// certificate of it, or be one of the targets.
func serverTLS(
	certFile, keyFile, clientCA string, targets *auth.Targets, every time.Duration,
) (credentials.TransportCredentials, func(), error) {
	if _, err := tls.LoadX509KeyPair(certFile, keyFile); err != nil {
		return nil, nil, fmt.Errorf("reading the TLS files %s and %s: %w", certFile, keyFile, err)
	}
	if clientCA != "" {
		if _, err := os.Stat(clientCA); err != nil {
			return nil, nil, fmt.Errorf("reading the CA of clients: %w", err)
		}
	}
	files, err := pemfile.NewProvider(pemfile.Options{
		CertFile: certFile, KeyFile: keyFile, RootFile: clientCA, RefreshDuration: every,
	})
	if err != nil {
		return nil, nil, fmt.Errorf("watching the TLS files: %w", err)
	}
	base := &tls.Config{MinVersion: tls.VersionTLS13}
	base.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		material, err := files.KeyMaterial(hello.Context())
		if err != nil {
			return nil, fmt.Errorf("reading the TLS files: %w", err)
		}
		return withMaterial(material, targets), nil
	}
	return credentials.NewTLS(base), files.Close, nil
}

func withMaterial(m *certprovider.KeyMaterial, targets *auth.Targets) *tls.Config {
	c := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: m.Certs, NextProtos: []string{"h2"}}
	switch {
	case m.Roots == nil:
	case targets == nil:
		c.ClientCAs, c.ClientAuth = m.Roots, tls.RequireAndVerifyClientCert
	default:
		// Clients are not told the CA, for theirs may be another one; and none is spared the verification by a ticket.
		c.ClientAuth, c.SessionTicketsDisabled = tls.RequireAnyClientCert, true
		byCA := verifiedBy(m.Roots)
		ours := auth.AcceptTargets(targets, byCA)
		c.VerifyPeerCertificate = func(raw [][]byte, verified [][]*x509.Certificate) error {
			if byCA(raw, verified) == nil {
				return nil
			}
			return ours(raw, verified)
		}
	}
	return c
}

// verifiedBy verifies a client's certificate as crypto/tls does.
func verifiedBy(roots *x509.CertPool) func([][]byte, [][]*x509.Certificate) error {
	return func(raw [][]byte, _ [][]*x509.Certificate) error {
		chain, err := x509.ParseCertificates(slices.Concat(raw...))
		if err != nil || len(chain) == 0 {
			return errors.Join(errors.New("reading the client's certificates"), err)
		}
		others := x509.NewCertPool()
		for _, c := range chain[1:] {
			others.AddCert(c)
		}
		_, err = chain[0].Verify(x509.VerifyOptions{
			Roots: roots, Intermediates: others, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		})
		return err
	}
}
