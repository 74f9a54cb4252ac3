package play

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
)

// Registrations says to a registry what a TAPA of Meridio 1.x says: the same calls in the same order. That it does is tested against
// recordings of the real one.
type Registrations struct {
	registry nspv1.TargetRegistryClient
	draw     func(free []uint32) uint32

	mu        sync.Mutex
	addresses []string
	open      map[string]uint32
}

// ErrFull says that all identifiers of a stream are taken.
var ErrFull = errors.New("the stream is full")

// budget is what all calls of one opening or refresh may take.
const budget = 15 * time.Second

// NewRegistrations makes registrations of one target; draw picks one of the free identifiers, nil at random.
func NewRegistrations(conn grpc.ClientConnInterface, addresses []string, draw func(free []uint32) uint32) *Registrations {
	if draw == nil {
		draw = func(free []uint32) uint32 { return free[rand.IntN(len(free))] }
	}
	return &Registrations{
		registry: nspv1.NewTargetRegistryClient(conn), addresses: addresses, draw: draw, open: make(map[string]uint32),
	}
}

// Open looks which identifiers are taken, registers DISABLED with a free one, looks again whether somebody was faster, and
// registers ENABLED. All it has watched stays open until it is through. Where nothing is free the error wraps ErrFull.
func (r *Registrations) Open(ctx context.Context, s *targetpoolv1.Stream, maxTargets int) error {
	ctx, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	return r.enter(ctx, s, maxTargets, 0)
}

// Refresh renews the lease of an open stream. Where the registration is found DISABLED or gone it had expired, and is opened again with the
// identifier that it had.
func (r *Registrations) Refresh(ctx context.Context, s *targetpoolv1.Stream, maxTargets int) error {
	ctx, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	id := r.Identifier(name(s))
	if err := r.register(ctx, s, id, nspv1.Target_ENABLED); err != nil {
		return err
	}
	_, enabled, err := r.look(ctx, s)
	if err != nil || enabled {
		return err
	}
	return r.enter(ctx, s, maxTargets, id)
}

// Close unregisters a stream, if it is open.
func (r *Registrations) Close(ctx context.Context, s *targetpoolv1.Stream) error {
	id := r.Identifier(name(s))
	if id == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	if err := r.unregister(ctx, s, id, nspv1.Target_ENABLED); err != nil {
		return err
	}
	r.set(name(s), 0)
	return nil
}

func (r *Registrations) enter(ctx context.Context, s *targetpoolv1.Stream, maxTargets int, prefer uint32) error {
	taken, _, err := r.look(ctx, s)
	for err == nil {
		id, ok := r.pick(taken, maxTargets, prefer)
		if !ok {
			return fmt.Errorf("opening %s: %w", name(s), ErrFull)
		}
		if err = r.register(ctx, s, id, nspv1.Target_DISABLED); err != nil {
			break
		}
		if taken, _, err = r.look(ctx, s); err != nil {
			break
		}
		if taken[id] {
			prefer = 0
			err = r.unregister(ctx, s, id, nspv1.Target_DISABLED)
			continue
		}
		if err = r.register(ctx, s, id, nspv1.Target_ENABLED); err == nil {
			r.set(name(s), id)
			return nil
		}
	}
	return err
}

// look tells the identifiers of the other targets of a stream, and whether this one is ENABLED. The watch stays open as long as ctx.
func (r *Registrations) look(ctx context.Context, s *targetpoolv1.Stream) (taken map[uint32]bool, enabled bool, err error) {
	var list *nspv1.TargetResponse
	watch, err := r.registry.Watch(ctx, &nspv1.Target{
		Status: nspv1.Target_ANY, Type: nspv1.Target_DEFAULT, Stream: legacyStream(s),
	})
	if err == nil {
		list, err = watch.Recv()
	}
	if err != nil {
		return nil, false, fmt.Errorf("reading the targets of %s: %w", name(s), err)
	}
	taken = make(map[uint32]bool)
	own := false
	for _, target := range list.GetTargets() {
		if sameAddresses(target.GetIps(), r.current()) {
			if !own {
				own, enabled = true, target.GetStatus() == nspv1.Target_ENABLED
			}
			continue
		}
		id, _ := strconv.ParseUint(target.GetContext()["identifier"], 10, 32)
		taken[uint32(id)] = true
	}
	return taken, enabled, nil
}

// sameAddresses compares sets, as Meridio does.
func sameAddresses(a, b []string) bool {
	set := func(list []string) map[string]bool {
		out := make(map[string]bool)
		for _, s := range list {
			if p, err := netip.ParsePrefix(s); err == nil {
				s = p.String()
			}
			out[s] = true
		}
		return out
	}
	return maps.Equal(set(a), set(b))
}

// pick is an identifier that is not taken.
func (r *Registrations) pick(taken map[uint32]bool, maxTargets int, prefer uint32) (uint32, bool) {
	if prefer != 0 && !taken[prefer] {
		return prefer, true
	}
	var free []uint32
	for id := uint32(1); id <= uint32(cmp.Or(maxTargets, 100)); id++ {
		if !taken[id] {
			free = append(free, id)
		}
	}
	if len(free) == 0 {
		return 0, false
	}
	return r.draw(free), true
}

func (r *Registrations) register(ctx context.Context, s *targetpoolv1.Stream, id uint32, st nspv1.Target_Status) error {
	if _, err := r.registry.Register(ctx, r.target(s, id, st)); err != nil {
		return fmt.Errorf("registering at %s: %w", name(s), err)
	}
	return nil
}

func (r *Registrations) unregister(ctx context.Context, s *targetpoolv1.Stream, id uint32, st nspv1.Target_Status) error {
	if _, err := r.registry.Unregister(ctx, r.target(s, id, st)); err != nil {
		return fmt.Errorf("unregistering at %s: %w", name(s), err)
	}
	return nil
}

func (r *Registrations) target(s *targetpoolv1.Stream, id uint32, st nspv1.Target_Status) *nspv1.Target {
	return &nspv1.Target{
		Ips: r.current(), Context: map[string]string{"identifier": strconv.FormatUint(uint64(id), 10)}, Status: st,
		Type: nspv1.Target_DEFAULT, Stream: legacyStream(s),
	}
}

// Streams are those that are open, as trench/conduit/stream, sorted.
func (r *Registrations) Streams() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.open))
}

// Identifier is that of an open stream, 0 of others.
func (r *Registrations) Identifier(s string) uint32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.open[s]
}

func (r *Registrations) set(s string, id uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if id == 0 {
		delete(r.open, s)
	} else {
		r.open[s] = id
	}
}

// current are the addresses, in the order in which they are registered next.
func (r *Registrations) current() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.addresses
}

func (r *Registrations) reorder(addresses []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.addresses = addresses
}
