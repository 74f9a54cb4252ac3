package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	resolverv1 "github.com/nordix/meridio-nsp/api/resolver/v1"
)

// resolver serves resolver.v1.
type resolver struct {
	resolverv1.UnimplementedResolverServer

	mu      sync.Mutex
	all     resources
	changed chan struct{} // closed at the next change
}

func newResolver(all resources) *resolver {
	return &resolver{all: all, changed: make(chan struct{})}
}

func (r *resolver) set(all resources) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = all
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *resolver) get(locator string) (*resolverv1.WatchResponse, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all[locator], r.changed
}

// Watch implements resolver.v1.Resolver.
func (r *resolver) Watch(request *resolverv1.WatchRequest, stream grpc.ServerStreamingServer[resolverv1.WatchResponse]) error {
	var sent *resolverv1.WatchResponse
	for {
		answer, changed := r.get(request.GetLocator())
		if answer == nil {
			return status.Errorf(codes.NotFound, "the file has no resource %q", request.GetLocator())
		}
		if !proto.Equal(answer, sent) {
			if err := stream.Send(answer); err != nil {
				return err
			}
			sent = answer
		}
		select {
		case <-stream.Context().Done():
			return nil
		case <-changed:
		}
	}
}

func run(ctx context.Context, cfg config, log *slog.Logger) error {
	text, err := os.ReadFile(cfg.file)
	if err != nil {
		return fmt.Errorf("reading --file: %w", err)
	}
	all, err := parse(text)
	if err != nil {
		return fmt.Errorf("reading %s: %w", cfg.file, err)
	}
	listener, creds, err := listen(cfg)
	if err != nil {
		return err
	}
	server, r := grpc.NewServer(grpc.Creds(creds)), newResolver(all)
	resolverv1.RegisterResolverServer(server, r)
	var running sync.WaitGroup
	running.Go(func() { follow(ctx, cfg.file, text, cfg.every, r.set, log) })
	running.Go(func() { <-ctx.Done(); server.Stop() })
	defer running.Wait()
	log.Info("serving", "resources", len(all), "address", listener.Addr().String())
	return server.Serve(listener)
}

// listen opens the listener, without TLS only where the file system says who may connect.
func listen(cfg config) (net.Listener, credentials.TransportCredentials, error) {
	if path, ok := strings.CutPrefix(cfg.listen, "unix://"); ok {
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
	listener, err := net.Listen("tcp", cfg.listen)
	return listener, creds, err
}

func mutualTLS(cfg config) (credentials.TransportCredentials, error) {
	if cfg.cert == "" || cfg.key == "" || cfg.clientCA == "" {
		return nil, errors.New("--listen is no unix socket: set --tls-cert-file, --tls-key-file and --tls-client-ca-file")
	}
	pair, err := tls.LoadX509KeyPair(cfg.cert, cfg.key)
	if err != nil {
		return nil, fmt.Errorf("reading the TLS files: %w", err)
	}
	ca, err := os.ReadFile(cfg.clientCA)
	if err != nil {
		return nil, fmt.Errorf("reading the CA of clients: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("%s holds no certificate", cfg.clientCA)
	}
	return credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair},
		ClientCAs: roots, ClientAuth: tls.RequireAndVerifyClientCert}), nil
}
