// Package serve opens the listeners of providers of resolver.v1.
package serve

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/nordix/meridio-nsp/pkg/listener"
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
func Listen(ctx context.Context, cfg Config) (net.Listener, credentials.TransportCredentials, error) {
	if path, ok := strings.CutPrefix(cfg.Listen, "unix://"); ok {
		l, err := listener.Unix(ctx, path)
		if err != nil {
			return nil, nil, fmt.Errorf("--listen: %w", err)
		}
		return l, insecure.NewCredentials(), nil
	}
	creds, err := mutualTLS(cfg)
	if err != nil {
		return nil, nil, err
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		return nil, nil, fmt.Errorf("--listen: %w", err)
	}
	return l, creds, nil
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
