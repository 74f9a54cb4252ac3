package server

import (
	"context"
	"fmt"

	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/feed"
	"github.com/nordix/meridio-nsp/pkg/registry"
)

// Crowd is a registry and its lists, for a crowd: so many calls are served at a time, and of those who wait the latest is next.
//
// A TAPA opens a stream by four calls, one after the other, within a deadline for all of them. When ten thousand open at once and
// each call waits behind everybody's, all of them are at their second or third call when the deadline comes, all begin
// again, and nobody is ever through, though the server never rests. When the latest is next, it is the next call of somebody
// who was just answered: one TAPA after the other is through, and those who waited in vain come back as the latest.
type Crowd struct {
	registry Registry
	targets  Targets
	places   *semaphore
}

// crowdPlaces make a good batch for the registry, and are few enough to be answered soon.
const crowdPlaces = 256

// NewCrowd makes one. What it calls must not wait for anything but its turn.
func NewCrowd(t Targets, r Registry) *Crowd {
	return &Crowd{registry: r, targets: t, places: newSemaphore(crowdPlaces, newest)}
}

// Register implements Registry.
func (c *Crowd) Register(ctx context.Context, t registry.Target, by registry.Caller) error {
	if err := c.enter(ctx); err != nil {
		return err
	}
	defer c.places.give()
	return c.registry.Register(ctx, t, by)
}

// Unregister implements Registry.
func (c *Crowd) Unregister(ctx context.Context, t registry.Target, by registry.Caller) error {
	if err := c.enter(ctx); err != nil {
		return err
	}
	defer c.places.give()
	return c.registry.Unregister(ctx, t, by)
}

// List implements Targets.
func (c *Crowd) List(ctx context.Context, f engine.Filter) (*feed.Watcher[engine.Filter, *engine.List], error) {
	if err := c.enter(ctx); err != nil {
		return nil, err
	}
	defer c.places.give()
	return c.targets.List(ctx, f)
}

func (c *Crowd) enter(ctx context.Context) error {
	if !c.places.take(ctx.Done()) {
		return fmt.Errorf("waiting for a turn: %w", ctx.Err())
	}
	return nil
}
