package server

import (
	"context"
	"errors"
	"fmt"

	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/pkg/registry"
)

// Reserver is what the server needs of the registry to give identifiers away.
type Reserver interface {
	// Reserve gives the target an identifier; with wait it waits for one until ctx ends.
	Reserve(ctx context.Context, t registry.Target, c registry.Caller, wait bool) (uint32, error)
}

// reservation gives identifiers away.
type reservation struct {
	targetpoolv1.UnimplementedReservationServer
	server *Server
}

// Reserve implements targetpoolv1.ReservationServer.
func (r *reservation) Reserve(ctx context.Context, req *targetpoolv1.ReserveRequest) (*targetpoolv1.ReserveResponse, error) {
	t := registry.Target{
		Type: registry.Default, Status: registry.Disabled, Stream: streamKey(req.GetStream(), r.server.cfg.Namespace),
		IPs: req.GetIps(), Context: req.GetContext(),
	}
	var id uint32
	err := r.server.registering(ctx, t, func(ctx context.Context) (err error) {
		id, err = r.reserve(ctx, t, req.GetWait())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reserving an identifier: %w", err)
	}
	return &targetpoolv1.ReserveResponse{Identifier: id}, nil
}

func (r *reservation) reserve(ctx context.Context, t registry.Target, wait bool) (uint32, error) {
	if err := r.server.identify(ctx); err != nil {
		return 0, err
	}
	if wait { // like a watch
		done, err := r.server.beginWatch(auth.From(ctx))
		if err != nil {
			return 0, err
		}
		defer done()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() { // a call that waits must not hold up the end of the server
		select {
		case <-r.server.stopping:
			cancel(errStopping)
		case <-ctx.Done():
		}
	}()
	id, err := r.server.cfg.Reservations.Reserve(ctx, t, callerOf(ctx), wait)
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, errStopping) {
		err = cause
	}
	return id, err
}
