package nsp

import (
	"crypto/tls"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/tls/certprovider"
	"google.golang.org/grpc/credentials/tls/certprovider/pemfile"
)

// reloadEvery is how soon new TLS files count for new connections.
const reloadEvery = 10 * time.Second

// serverTLS makes credentials from files, which are read again every so often. With a CA for clients, clients must show a
// certificate of it.
func serverTLS(certFile, keyFile, clientCA string, every time.Duration) (credentials.TransportCredentials, func(), error) {
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
		return withMaterial(material), nil
	}
	return credentials.NewTLS(base), files.Close, nil
}

func withMaterial(m *certprovider.KeyMaterial) *tls.Config {
	c := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: m.Certs, NextProtos: []string{"h2"}}
	if m.Roots != nil {
		c.ClientCAs, c.ClientAuth = m.Roots, tls.RequireAndVerifyClientCert
	}
	return c
}
