package nsp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/registry/memory"
	"github.com/nordix/meridio-nsp/pkg/registry/sqlite"
)

// datasource is the store of a process, a registry file. Where that cannot be opened, because its disk is full, say, or
// read-only, the process runs all the same: with what can be read of it, and writes fail until it can be opened.
type datasource struct {
	// path is that of --datasource, namespace that of every stream.
	path, namespace string
	log             *slog.Logger
	// working is told after each write whether the store works; it must not block.
	working func(bool)

	// store is nil while it cannot be opened, failure says why, and tried is when that was found out.
	store   *sqlite.Store
	failure error
	tried   time.Time
	// missed is set where the first registry begins without what a file at the datasource may have held.
	missed bool
	// left are what the file had when it could be opened at last: what became of that was not written.
	left []registry.Key
	// opened is closed once the file has everything.
	opened chan struct{}
}

// openAgain is how long a file that could not be opened is left alone.
const openAgain = time.Second

// open opens the file. The error wraps sqlite.ErrInUse where it is another process's, or is that of the context; any other
// trouble is no error yet.
func (d *datasource) open(ctx context.Context) error {
	d.opened = make(chan struct{})
	err := d.tryOpen(ctx)
	switch {
	case err == nil:
		close(d.opened)
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, sqlite.ErrInUse):
		return err
	}
	d.working(err == nil)
	return nil
}

func (d *datasource) tryOpen(ctx context.Context) (err error) {
	d.store, d.missed, err = openStore(ctx, d.path, d.namespace, d.log)
	d.failure, d.tried = err, time.Now()
	return err
}

// isOpen tells whether the file has all that was written.
func (d *datasource) isOpen() bool {
	select {
	case <-d.opened:
		return true
	default:
		return false
	}
}

// Load implements registry.Store. Saved.Lost is set where there may have been more.
func (d *datasource) Load(ctx context.Context) (registry.Saved, error) {
	if d.store != nil {
		saved, err := d.store.Load(ctx)
		if err == nil {
			saved.Lost = saved.Lost || d.missed
			return saved, nil
		}
		if ctx.Err() != nil {
			return registry.Saved{}, err
		}
		d.failure = errors.Join(err, d.store.Close())
		d.store, d.opened = nil, make(chan struct{})
		d.working(false)
	}
	saved, err := peek(ctx, d.path, d.namespace, d.log)
	if ctx.Err() != nil {
		return registry.Saved{}, ctx.Err()
	}
	if err != nil {
		d.failure = errors.Join(d.failure, err)
		saved = registry.Saved{NextID: 1, Documents: map[string][]byte{}, Lost: true}
	}
	saved.Lost = saved.Lost || d.missed
	d.log.ErrorContext(ctx, "the registry cannot be stored: what is known is served, registrations that are new or changed fail, and it is tried again",
		"datasource", d.path, "registrations", len(saved.Entries), "error", d.failure)
	return saved, nil
}

// Write implements registry.Store.
func (d *datasource) Write(ctx context.Context, b registry.Batch) error {
	err := d.write(ctx, b)
	if !errors.Is(err, registry.ErrLost) {
		d.working(err == nil)
	}
	return err
}

func (d *datasource) write(ctx context.Context, b registry.Batch) error {
	if d.store == nil {
		return d.reopen(ctx)
	}
	if len(d.left) > 0 {
		put := make(map[registry.Key]bool, len(b.Put))
		for _, e := range b.Put {
			put[e.Key] = true
		}
		for _, k := range d.left {
			if !put[k] {
				b.Delete = append(b.Delete, k)
			}
		}
	}
	if err := d.store.Write(ctx, b); err != nil {
		return err
	}
	if !d.isOpen() {
		d.left = nil
		close(d.opened)
		d.log.InfoContext(ctx, "the registry can be stored now", "datasource", d.path)
	}
	return nil
}

// reopen tries to open the file once more. Where it succeeds the error wraps registry.ErrLost: what is known here is newer than
// what the file has.
func (d *datasource) reopen(ctx context.Context) error {
	if time.Since(d.tried) < openAgain {
		return d.failure
	}
	if err := d.tryOpen(ctx); err != nil {
		return err
	}
	saved, err := d.store.Load(ctx)
	if err != nil {
		d.failure = errors.Join(err, d.store.Close())
		d.store = nil
		return d.failure
	}
	d.left = nil
	for _, e := range saved.Entries {
		d.left = append(d.left, e.Key)
	}
	return fmt.Errorf("%w: the registry file could not be opened before", registry.ErrLost)
}

// Close implements registry.Store.
func (d *datasource) Close() error {
	if d.store == nil {
		return nil
	}
	return d.store.Close()
}

// peek is what a process would find at its datasource if it could write there.
func peek(ctx context.Context, path, namespace string, log *slog.Logger) (registry.Saved, error) {
	at, err := findRegistry(ctx, path)
	if err != nil {
		return registry.Saved{}, err
	}
	kind, _, err := sqlite.Inspect(ctx, at.Path)
	if err != nil {
		return registry.Saved{}, err
	}
	known := registry.Saved{NextID: 1}
	if kind != sqlite.Free {
		if known, err = sqlite.Read(ctx, at.Path, log); err != nil {
			return registry.Saved{}, err
		}
	}
	if at.Kind != sqlite.Meridio1 {
		return known, nil
	}
	trial := memory.New()
	if err := trial.Write(ctx, registry.Batch{Put: known.Entries, Documents: known.Documents}); err != nil {
		return registry.Saved{}, err
	}
	report, err := takeover{from: absolute(path), namespace: namespace}.run(ctx, trial)
	report.log(ctx, log, err)
	if err != nil {
		known.Lost = kind == sqlite.Free
		return known, nil
	}
	return trial.Load(ctx)
}
