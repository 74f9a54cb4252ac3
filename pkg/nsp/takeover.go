package nsp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/registry/meridio1x"
	"github.com/nordix/meridio-nsp/pkg/registry/sqlite"
	"github.com/nordix/meridio-nsp/pkg/relay"
)

// beside is appended to the datasource where the file there is not ours. That keeps its name, so that the way back is to
// start Meridio 1.x again.
const beside = ".v2"

// place is where a registry is.
type place struct {
	// Path of the registry file.
	Path string
	// Kind is that of the file at the datasource, and Why the reason where it is foreign.
	Kind sqlite.Kind
	Why  string
}

// findRegistry says where the registry of a datasource is: there, unless a file that is not ours is or was there.
func findRegistry(ctx context.Context, datasource string) (place, error) {
	path, err := filepath.Abs(datasource)
	if err != nil {
		return place{}, fmt.Errorf("finding the registry file: %w", err)
	}
	kind, why, err := sqlite.Inspect(ctx, path)
	if err != nil {
		return place{}, err
	}
	p := place{Path: path, Kind: kind, Why: why}
	switch kind {
	case sqlite.Own:
	case sqlite.Free: // the 1.x file may have been removed when nobody wanted to go back any more
		if other, _, err := sqlite.Inspect(ctx, path+beside); err == nil && other == sqlite.Own {
			p.Path += beside
		}
	default:
		p.Path += beside
	}
	return p, nil
}

// takeover is what a store takes from a 1.x file.
type takeover struct {
	from             string
	namespace, scope string
}

// taken is kept in the store, so that a file is taken over once.
type taken struct {
	Digest string    `json:"digest"`
	At     time.Time `json:"at"`
}

// TakeoverReport says what was taken over.
type TakeoverReport struct {
	// Content is what the 1.x file has.
	meridio1x.Content
	registry.Adopted
	// Before is when the file was last taken over, zero for never; Known says that it has not changed since, so that there
	// was nothing to do.
	Before time.Time
	Known  bool
}

// run takes the file over, unless it was before and is as it was then. Where it was and has changed, Meridio 1.x has been at
// work again since, so that what its file says of its trenches replaces what the store has of them.
func (o takeover) run(ctx context.Context, store registry.Store) (TakeoverReport, error) {
	var r TakeoverReport
	var err error
	r.Content, err = meridio1x.Read(ctx, meridio1x.ReadConfig{Path: o.from, Namespace: o.namespace, Scope: o.scope})
	if err != nil {
		return r, err
	}
	saved, err := store.Load(ctx)
	if err != nil {
		return r, fmt.Errorf("loading the registry: %w", err)
	}
	document := "meridio1x:" + o.from
	adoption := registry.Adoption{Targets: r.Targets}
	if data, ok := saved.Documents[document]; ok {
		var last taken
		if err := json.Unmarshal(data, &last); err != nil {
			return r, fmt.Errorf("reading what was taken over before: %w", err)
		}
		r.Before, r.Known = last.At, last.Digest == r.Digest
		adoption.Replace = append([]string{}, r.Trenches...)
		if o.scope != "" {
			adoption.Replace = append(adoption.Replace, o.scope)
		}
	}
	if r.Known {
		return r, nil
	}
	data, err := json.Marshal(taken{r.Digest, time.Now().UTC()})
	if err != nil {
		return r, err
	}
	// What comes from Meridio 1.x is the trench's own, and not the mirror of a namespace process.
	adoption.Documents = map[string][]byte{document: data, relay.Document: nil}
	r.Adopted, err = registry.Adopt(ctx, store, o.namespace, adoption)
	return r, err
}

// absolute is the path of a file that findRegistry has found.
func absolute(path string) string {
	abs, _ := filepath.Abs(path) // findRegistry has done so
	return abs
}

// openStore opens the registry file of a process; missed says that it begins without what a file at the datasource may have
// held. What Meridio 1.x left there is taken over, once. That it cannot be stops nobody: the registrations come back with
// their refreshes.
func openStore(ctx context.Context, datasource, namespace string, log *slog.Logger) (store *sqlite.Store, missed bool, err error) {
	at, err := findRegistry(ctx, datasource)
	if err != nil {
		return nil, true, err
	}
	kind, _, err := sqlite.Inspect(ctx, at.Path)
	if err != nil {
		return nil, true, err
	}
	first := kind == sqlite.Free
	store, err = sqlite.Open(ctx, sqlite.Config{Path: at.Path, Log: log})
	if err != nil {
		// A file that was there can have been moved aside.
		now, _, lookErr := sqlite.Inspect(ctx, at.Path)
		return nil, first && at.Kind == sqlite.Foreign || !first && (lookErr != nil || now == sqlite.Free), err
	}
	log = log.With("datasource", datasource, "registry", at.Path)
	switch at.Kind {
	case sqlite.Foreign:
		missed = first
		log.ErrorContext(ctx, "the file at the datasource is no registry that is known here; it is left alone, and another one is used",
			"reason", at.Why)
	case sqlite.Meridio1:
		report, err := takeover{from: absolute(datasource), namespace: namespace}.run(ctx, store)
		if ctx.Err() != nil {
			return nil, false, errors.Join(ctx.Err(), store.Close())
		}
		missed = first && err != nil
		report.log(ctx, log, err)
	}
	return store, missed, nil
}

func (r TakeoverReport) log(ctx context.Context, log *slog.Logger, err error) {
	switch {
	case errors.Is(err, meridio1x.ErrUnusable):
		log.ErrorContext(ctx, "the Meridio 1.x registry at the datasource is unusable; it is left alone, and registrations come back with their refreshes",
			"error", err)
		return
	case err != nil:
		log.ErrorContext(ctx, "the Meridio 1.x registry at the datasource could not be taken over; the next start tries again", "error", err)
		return
	case r.Known:
		log.InfoContext(ctx, "the Meridio 1.x registry at the datasource was taken over before", "at", r.Before)
		return
	}
	log.InfoContext(ctx, "the Meridio 1.x registry at the datasource has been taken over", "registrations", len(r.Targets),
		"added", r.Added, "changed", r.Changed, "removed", r.Removed, "waiting_for_identifier", r.Blocked, "problems", len(r.Problems))
	const most = 20
	for _, p := range r.Problems[:min(most, len(r.Problems))] {
		log.WarnContext(ctx, "a registration of Meridio 1.x was not taken over", "id", p.ID, "reason", p.Reason)
	}
}
