package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	resolverv1 "github.com/nordix/meridio-nsp/api/resolver/v1"
	"github.com/nordix/meridio-nsp/pkg/external/serve"
	"github.com/nordix/meridio-nsp/pkg/listener"
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
	l, creds, err := serve.Listen(ctx, serve.Config{Listen: cfg.listen, Cert: cfg.cert, Key: cfg.key, ClientCA: cfg.clientCA})
	if err != nil {
		return err
	}
	log.Info("serving", "resources", len(all), "address", l.Addr().String())
	server, r := grpc.NewServer(grpc.Creds(creds), grpc.ConnectionTimeout(serve.GreetWithin)), newResolver(all)
	resolverv1.RegisterResolverServer(server, r)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { follow(ctx, cfg.file, text, cfg.every, r.set, log); return nil })
	group.Go(func() error { return listener.ServeGRPC(ctx, server, l) })
	return group.Wait()
}
