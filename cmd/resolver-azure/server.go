package main

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	resolverv1 "github.com/nordix/meridio-nsp/api/resolver/v1"
	"github.com/nordix/meridio-nsp/pkg/external/serve"
)

// resolver serves resolver.v1.
type resolver struct {
	resolverv1.UnimplementedResolverServer

	polls  *polls
	scopes []string
}

// Watch implements resolver.v1.Resolver.
func (r *resolver) Watch(request *resolverv1.WatchRequest, stream grpc.ServerStreamingServer[resolverv1.WatchResponse]) error {
	set, err := parseLocator(request.GetLocator())
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	if !set.within(r.scopes) {
		return status.Errorf(codes.PermissionDenied, "scale set %s of resource group %s is below no --scope of this provider", set.name, set.group)
	}
	one, err := r.polls.join(set)
	if err != nil {
		return status.Errorf(codes.Internal, "making the clients of Azure: %v", err)
	}
	defer r.polls.leave(one)
	var sent *resolverv1.WatchResponse
	for {
		now, changed := r.polls.look(one)
		if now.err != nil {
			return now.err
		}
		if now.answer != nil && (sent == nil || !proto.Equal(now.answer, sent)) {
			if err := stream.Send(now.answer); err != nil {
				return err
			}
			sent = now.answer
		}
		select {
		case <-stream.Context().Done():
			return nil
		case <-changed:
		}
	}
}

func run(ctx context.Context, cfg config, a azure, log *slog.Logger) error {
	if cfg.interval < time.Second {
		return errors.New("--interval is shorter than 1s: Azure would throttle it")
	}
	if err := checkScopes(cfg.scopes); err != nil {
		return err
	}
	listener, creds, err := serve.Listen(ctx, cfg.listen)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	polls := newPolls(ctx, a, cfg.interval, log)
	// Polls are started by handlers, so all of these have to have returned before one waits for those.
	server := grpc.NewServer(grpc.Creds(creds), grpc.WaitForHandlers(true), grpc.ConnectionTimeout(serve.GreetWithin))
	resolverv1.RegisterResolverServer(server, &resolver{polls: polls, scopes: cfg.scopes})
	var stopping sync.WaitGroup
	stopping.Go(func() { <-ctx.Done(); server.Stop() })
	log.Info("serving", "address", listener.Addr().String())
	err = server.Serve(listener)
	cancel()
	stopping.Wait()
	polls.running.Wait()
	return err
}
