package play

import (
	"context"
	"errors"
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
			errs = append(errs, t.closeStream(ctx, split(s)))
		}
	}
	for _, s := range wanted {
		switch {
		case t.registrations.Identifier(name(s)) == 0:
			errs = append(errs, t.openStream(ctx, s))
		case refresh:
			errs = append(errs, t.registrations.Refresh(ctx, s, t.cfg.MaxTargets))
		}
	}
	return errors.Join(errs...)
}

func (t *TAPA) openStream(ctx context.Context, s *targetpoolv1.Stream) error {
	if err := t.registrations.Open(ctx, s, t.cfg.MaxTargets); err != nil {
		return err
	}
	t.report()
	t.say(time.Now(), Opened, name(s))
	return nil
}

// Close unregisters what is open, as a TAPA does that is told to close. Run must have returned.
func (t *TAPA) Close(ctx context.Context) error { return t.reconcile(ctx, nil, false) }

func (t *TAPA) closeStream(ctx context.Context, s *targetpoolv1.Stream) error {
	if err := t.registrations.Close(ctx, s); err != nil {
		return err
	}
	t.report()
	t.say(time.Now(), Closed, name(s))
	return nil
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
