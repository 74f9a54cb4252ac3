package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"

	"google.golang.org/grpc/credentials"
)

// TLSFiles names the files that TLS is made of, all PEM. They are read again at each handshake, so that what was rotated
// counts for the next connection; where they do not fit each other at that moment, what was read last does.
type TLSFiles struct {
	// CA verifies the server; empty means the system's.
	CA string
	// Cert and Key are shown to the server; both empty shows none.
	Cert, Key string
	// ServerName is what the server's certificate must name, where it is not the host of the address.
	ServerName string
}

// Credentials reads the files, so that an error shows at the start.
func (f TLSFiles) Credentials() (credentials.TransportCredentials, error) {
	if (f.Cert == "") != (f.Key == "") {
		return nil, errors.New("certificate and key belong together: name both files or none")
	}
	first, err := f.read()
	if err != nil {
		return nil, err
	}
	c := &reloading{TransportCredentials: credentials.NewTLS(first), files: f, last: &atomic.Pointer[tls.Config]{}}
	c.last.Store(first)
	return c, nil
}

func (f TLSFiles) read() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: f.ServerName}
	if f.CA != "" {
		pem, err := os.ReadFile(f.CA)
		if err != nil {
			return nil, fmt.Errorf("reading the CA of the server: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("the file %s holds no certificate in PEM form", f.CA)
		}
	}
	if f.Cert != "" {
		pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			return nil, fmt.Errorf("reading the certificate of this client: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// reloading reads the files anew for each handshake. Everything else is answered as by the first.
type reloading struct {
	credentials.TransportCredentials
	files TLSFiles
	last  *atomic.Pointer[tls.Config]
}

// Clone implements credentials.TransportCredentials.
func (r *reloading) Clone() credentials.TransportCredentials {
	return &reloading{TransportCredentials: r.TransportCredentials.Clone(), files: r.files, last: r.last}
}

// ClientHandshake implements credentials.TransportCredentials.
func (r *reloading) ClientHandshake(
	ctx context.Context, authority string, raw net.Conn,
) (net.Conn, credentials.AuthInfo, error) {
	cfg, err := r.files.read()
	if err != nil {
		cfg = r.last.Load() // amid a rotation
	}
	r.last.Store(cfg)
	return credentials.NewTLS(cfg).ClientHandshake(ctx, authority, raw)
}
