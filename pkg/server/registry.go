package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/feed"
	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// targetRegistry is the registry of Meridio 1.x.
type targetRegistry struct {
	nspv1.UnimplementedTargetRegistryServer
	server *Server
}

// Register implements nspv1.TargetRegistryServer.
func (t *targetRegistry) Register(ctx context.Context, req *nspv1.Target) (*emptypb.Empty, error) {
	target := t.target(req)
	err := t.server.registering(ctx, target, func(ctx context.Context) error {
		if err := t.server.identify(ctx); err != nil {
			return err
		}
		return t.server.cfg.Registry.Register(ctx, target, callerOf(ctx))
	})
	if err != nil {
		return nil, fmt.Errorf("registering: %w", err)
	}
	return &emptypb.Empty{}, nil
}

// Unregister implements nspv1.TargetRegistryServer.
func (t *targetRegistry) Unregister(ctx context.Context, req *nspv1.Target) (*emptypb.Empty, error) {
	target := t.target(req)
	err := t.server.registering(ctx, target, func(ctx context.Context) error {
		return t.server.cfg.Registry.Unregister(ctx, target, callerOf(ctx))
	})
	if err != nil {
		return nil, fmt.Errorf("unregistering: %w", err)
	}
	return &emptypb.Empty{}, nil
}

// registering does what the caller asks for of a target, if it may.
func (s *Server) registering(ctx context.Context, t registry.Target, do func(context.Context) error) error {
	if err := s.cfg.mayRegister(auth.From(ctx), t); err != nil {
		return err
	}
	ctx, done, err := s.speaking(ctx)
	if err != nil {
		return err
	}
	defer done()
	err = do(ctx)
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, auth.ErrDenied) {
		return cause
	}
	return err
}

// Watch implements nspv1.TargetRegistryServer. Addresses and context of the filter are ignored, as in Meridio 1.x.
func (t *targetRegistry) Watch(req *nspv1.Target, ss grpc.ServerStreamingServer[nspv1.TargetResponse]) error {
	f := engine.Filter{
		Type:    registry.Type(req.GetType()),
		Status:  registry.Status(req.GetStatus()),
		Trench:  req.GetStream().GetConduit().GetTrench().GetName(),
		Conduit: req.GetStream().GetConduit().GetName(),
		Stream:  req.GetStream().GetName(),
	}
	if max(len(f.Trench), len(f.Conduit), len(f.Stream)) > maxName {
		return fmt.Errorf("watching targets: %w", invalid("a name in the filter has more than %d characters: nothing is called that", maxName))
	}
	f.Owner = auth.From(ss.Context()).Target.UID // it sees its own
	if err := t.server.cfg.mayList(auth.From(ss.Context()), f); err != nil {
		return fmt.Errorf("watching targets: %w", err)
	}
	lists, err := t.server.cfg.Targets.List(ss.Context(), f)
	if err != nil {
		return fmt.Errorf("watching targets: %w", err)
	}
	defer lists.Close()
	if f.Active() && f.Type == registry.Default {
		who := t.server.listReceiver(f)
		who.caller = auth.From(ss.Context())
		defer t.server.audience.receives(who)()
	}
	w := &listWatch{lists: lists, send: ss.SendMsg}
	w.large = func(bytes int) {
		t.server.cfg.Log.WarnContext(ss.Context(),
			"a list is larger than a gRPC client takes unless told to; narrow the filter, raise the client's limit, or use TargetFeed",
			"peer", auth.From(ss.Context()).Addr, "filter", f, "bytes", bytes, "limit", clientLimit)
	}
	return t.server.watch(ss.Context(), w)
}

// clientLimit is what a gRPC client takes for a message by default, in bytes.
const clientLimit = 4 << 20

// listWatch is one watch of nsp.v1. That has no heartbeat: each message is a whole list. It cannot come in pieces, for each one
// replaces the one before; a client can only be told why it does not get on.
type listWatch struct {
	lists *feed.Watcher[engine.Filter, *engine.List]
	send  func(any) error
	// large is called once, when a list is larger than clientLimit.
	large func(bytes int)
}

func (w *listWatch) next() (bool, <-chan struct{}, error) {
	l, _, ok, more := w.lists.Next()
	if !ok {
		return false, more, nil
	}
	list := listFrame(l)
	if size := list.size(); size > clientLimit && w.large != nil {
		w.large(size)
		w.large = nil
	}
	return true, more, w.send(list)
}

func (w *listWatch) heartbeat() error { return nil }

func (t *targetRegistry) target(req *nspv1.Target) registry.Target {
	c := req.GetStream().GetConduit()
	k := stream.Key{
		Namespace: t.server.cfg.Namespace,
		Trench:    c.GetTrench().GetName(),
		Conduit:   c.GetName(),
		Name:      req.GetStream().GetName(),
	}
	return registry.Target{
		Scope:   k.Trench,
		Type:    registry.Type(req.GetType()),
		Status:  registry.Status(req.GetStatus()),
		Stream:  k,
		IPs:     req.GetIps(),
		Context: req.GetContext(),
	}
}

// identify tells the engine as what a proven pod runs, where a grant may ask for that: pods of the NSP's own namespace need none.
func (s *Server) identify(ctx context.Context) error {
	c := auth.From(ctx)
	if s.cfg.Engine == nil || c.Pod.UID == "" || c.Account.Namespace == s.cfg.Namespace {
		return nil
	}
	w := engine.Workload{Namespace: c.Pod.Namespace, Pod: c.Pod.Name, PodUID: c.Pod.UID}
	return s.cfg.Engine.Identify(ctx, w, c.Account.Namespace, c.Account.Name)
}

func callerOf(ctx context.Context) registry.Caller {
	c := auth.From(ctx)
	return registry.Caller{Peer: c.Addr, PodUID: cmp.Or(c.Pod.UID, c.Target.UID), Sole: c.Target.UID != ""}
}
