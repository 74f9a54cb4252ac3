// Package serve opens the listeners of providers of resolver.v1.
package serve

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// Config says where to listen, and as whom.
type Config struct {
	// Listen is unix:///path, or host:port with the three files below.
	Listen string
	// Cert, Key and ClientCA are the files of mTLS, PEM.
	Cert, Key, ClientCA string
}

// GreetWithin is how long a connection may say nothing: the end of a server waits for it.
const GreetWithin = 10 * time.Second

// Listen opens the listener, without TLS only where the file system says who may connect.
func Listen(cfg Config) (net.Listener, credentials.TransportCredentials, error) {
	if path, ok := strings.CutPrefix(cfg.Listen, "unix://"); ok {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, nil, fmt.Errorf("removing the socket of an earlier run: %w", err)
		}
		listener, err := net.Listen("unix", path)
		return listener, insecure.NewCredentials(), err
	}
	creds, err := mutualTLS(cfg)
	if err != nil {
		return nil, nil, err
	}
	listener, err := net.Listen("tcp", cfg.Listen)
	return listener, creds, err
}

func mutualTLS(cfg Config) (credentials.TransportCredentials, error) {
	if cfg.Cert == "" || cfg.Key == "" || cfg.ClientCA == "" {
		return nil, errors.New("--listen is no unix socket: set --tls-cert-file, --tls-key-file and --tls-client-ca-file")
	}
	pair, err := tls.LoadX509KeyPair(cfg.Cert, cfg.Key)
	if err != nil {
		return nil, fmt.Errorf("reading the TLS files: %w", err)
	}
	ca, err := os.ReadFile(cfg.ClientCA)
	if err != nil {
		return nil, fmt.Errorf("reading the CA of clients: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("%s holds no certificate", cfg.ClientCA)
	}
	return credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair},
		ClientCAs: roots, ClientAuth: tls.RequireAndVerifyClientCert}), nil
}
