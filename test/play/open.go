package play

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
)

// reconcile closes what is no longer wanted, opens what is missing and refreshes the rest.
func (t *TAPA) reconcile(ctx context.Context, wanted []*targetpoolv1.Stream, refresh bool) error {
	keep := make(map[string]bool)
	for _, s := range wanted {
		keep[name(s)] = true
	}
	var errs []error
	for _, s := range t.Open() {
		if !keep[s] {
			errs = append(errs, t.closeStream(ctx, s))
		}
	}
	for _, s := range wanted {
		id := t.identifier(name(s))
		switch {
		case id == 0:
			errs = append(errs, t.openStream(ctx, s, 0))
		case refresh:
			errs = append(errs, t.refresh(ctx, s, id))
		}
	}
	return errors.Join(errs...)
}

// openStream is the sequence that Meridio's TAPA plays: look which identifiers are taken, register DISABLED with a free one, look
// again whether somebody was faster, register ENABLED. prefer is the identifier that it had before, or 0.
func (t *TAPA) openStream(ctx context.Context, s *targetpoolv1.Stream, prefer uint32) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	for {
		taken, _, err := t.look(ctx, s)
		if err != nil {
			return err
		}
		id, ok := t.free(taken, prefer)
		if !ok {
			return fmt.Errorf("stream %s is full", name(s))
		}
		if err := t.register(ctx, s, id, nspv1.Target_DISABLED); err != nil {
			return err
		}
		taken, _, err = t.look(ctx, s)
		if err != nil {
			return err
		}
		if taken[id] {
			continue
		}
		if err := t.register(ctx, s, id, nspv1.Target_ENABLED); err != nil {
			return err
		}
		t.set(name(s), id)
		t.say(time.Now(), Opened, name(s))
		return nil
	}
}

// refresh renews the lease, and opens the stream again where the registration had expired: then it is DISABLED now.
func (t *TAPA) refresh(ctx context.Context, s *targetpoolv1.Stream, id uint32) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	if err := t.register(ctx, s, id, nspv1.Target_ENABLED); err != nil {
		return err
	}
	_, enabled, err := t.look(ctx, s)
	if err != nil || enabled {
		return err
	}
	return t.openStream(ctx, s, id)
}

// look tells the identifiers of the other targets of a stream, and whether this one is ENABLED.
func (t *TAPA) look(ctx context.Context, s *targetpoolv1.Stream) (taken map[uint32]bool, enabled bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var list *nspv1.TargetResponse
	watch, err := t.registry.Watch(ctx, &nspv1.Target{Status: nspv1.Target_ANY, Stream: legacyStream(s)})
	if err == nil {
		list, err = watch.Recv()
	}
	if err != nil {
		return nil, false, fmt.Errorf("reading the targets of %s: %w", name(s), err)
	}
	taken = make(map[uint32]bool)
	for _, target := range list.GetTargets() {
		if slices.Equal(target.GetIps(), t.cfg.Addresses) {
			enabled = target.GetStatus() == nspv1.Target_ENABLED
			continue
		}
		id, _ := strconv.ParseUint(target.GetContext()["identifier"], 10, 32)
		taken[uint32(id)] = true
	}
	return taken, enabled, nil
}

// free draws an identifier that is not taken.
func (t *TAPA) free(taken map[uint32]bool, prefer uint32) (uint32, bool) {
	if prefer != 0 && !taken[prefer] {
		return prefer, true
	}
	for _, i := range rand.Perm(t.cfg.MaxTargets) {
		if id := uint32(i + 1); !taken[id] {
			return id, true
		}
	}
	return 0, false
}

func (t *TAPA) register(ctx context.Context, s *targetpoolv1.Stream, id uint32, st nspv1.Target_Status) error {
	_, err := t.registry.Register(ctx, t.target(legacyStream(s), id, st))
	if err != nil {
		return fmt.Errorf("registering at %s: %w", name(s), err)
	}
	return nil
}

// Close unregisters what is open, as a TAPA does that is told to close. Run must have returned.
func (t *TAPA) Close(ctx context.Context) error { return t.reconcile(ctx, nil, false) }

func (t *TAPA) closeStream(ctx context.Context, s string) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	_, err := t.registry.Unregister(ctx, t.target(legacyStream(split(s)), t.identifier(s), nspv1.Target_ENABLED))
	if err != nil {
		return fmt.Errorf("unregistering at %s: %w", s, err)
	}
	t.set(s, 0)
	t.say(time.Now(), Closed, s)
	return nil
}

func (t *TAPA) target(s *nspv1.Stream, id uint32, st nspv1.Target_Status) *nspv1.Target {
	return &nspv1.Target{
		Ips: t.cfg.Addresses, Context: map[string]string{"identifier": strconv.FormatUint(uint64(id), 10)}, Status: st, Stream: s,
	}
}

// name is trench/conduit/stream.
func name(s *targetpoolv1.Stream) string {
	return s.GetTrench() + "/" + s.GetConduit() + "/" + s.GetName()
}

func split(s string) *targetpoolv1.Stream {
	parts := strings.SplitN(s, "/", 3)
	return &targetpoolv1.Stream{Trench: parts[0], Conduit: parts[1], Name: parts[2]}
}

func legacyStream(s *targetpoolv1.Stream) *nspv1.Stream {
	return &nspv1.Stream{
		Name:    s.GetName(),
		Conduit: &nspv1.Conduit{Name: s.GetConduit(), Trench: &nspv1.Trench{Name: s.GetTrench()}},
	}
}
