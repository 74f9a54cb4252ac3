// Package sqlite keeps registrations in a SQLite file. A batch is one transaction in its write-ahead log, synced before
// Write returns. A damaged file is moved aside and a new one begun: the registry gets its content back from refreshes.
package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/nordix/meridio-nsp/pkg/filelock"
	"github.com/nordix/meridio-nsp/pkg/registry"
)

// ErrInUse is wrapped where another process has the registry file open.
var ErrInUse = filelock.ErrInUse

var errClosed = errors.New("the registry file is closed")

// Config says where the file is.
type Config struct {
	// Path of the file; it and its directory are created where missing.
	Path string
	// Strict makes a damaged file an error, where otherwise it is moved aside and a new one begun.
	Strict bool
	// Log may be nil.
	Log *slog.Logger
}

// Store is a registry.Store in a file.
type Store struct {
	path   string
	strict bool
	log    *slog.Logger
	lock   *filelock.Lock
	// db is nil after a damaged file could not be replaced; the next Write tries again.
	db     *database
	closed bool
	// lost is Saved.Lost.
	lost bool
}

// Open opens the file or makes it. The error wraps ErrForeign where the file belongs to a Meridio 1.x NSP, and ErrInUse where
// another process has it open; a damaged file is no error. Errors of Open and Write name the file and, for a full disk or a file that
// may not be written to, the way out.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	path, err := filepath.Abs(cfg.Path)
	if err != nil {
		return nil, fmt.Errorf("opening the registry file: %w", err)
	}
	s := &Store{path: path, strict: cfg.Strict, log: cfg.Log}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if err := s.begin(ctx); err != nil {
		return nil, fmt.Errorf("opening the registry file: %w", advise(path, err))
	}
	return s, nil
}

// begin locks the file and opens it. One that is not ours is not even locked: nothing is to appear beside it.
func (s *Store) begin(ctx context.Context) error {
	err := inspect(ctx, s.path)
	if _, damaged := errors.AsType[damage](err); err != nil && !damaged && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := makeDir(s.path); err != nil {
		return err
	}
	if s.lock, err = filelock.Acquire(s.path); err != nil {
		return err
	}
	if err = s.open(ctx); err != nil {
		s.lock.Release()
	}
	return err
}

// open opens the file; one that is damaged is replaced.
func (s *Store) open(ctx context.Context) error {
	err := s.tryOpen(ctx)
	if d, ok := errors.AsType[damage](err); ok {
		err = s.replace(ctx, d)
	}
	return err
}

func (s *Store) tryOpen(ctx context.Context) error {
	if err := create(s.path); err != nil {
		return err
	}
	if err := inspect(ctx, s.path); err != nil {
		return err
	}
	db, err := open(ctx, s.path)
	if err == nil {
		s.db = db
	}
	return err
}

// replace moves the file aside and begins a new one.
func (s *Store) replace(ctx context.Context, why damage) error {
	if s.strict {
		return fmt.Errorf("it is damaged: %w", why)
	}
	if s.db != nil {
		_ = s.db.close() // whatever it says, the file is given up
		s.db = nil
	}
	aside, err := moveAside(s.path, time.Now())
	if err != nil {
		return err
	}
	s.lost = true
	s.log.ErrorContext(ctx, "the registry file was unusable and has been moved aside; registrations come back with their refreshes",
		"path", s.path, "reason", why.reason, "aside", aside)
	return s.tryOpen(ctx)
}

// Write implements registry.Store.
func (s *Store) Write(ctx context.Context, b registry.Batch) error {
	return advise(s.path, s.write(ctx, b))
}

func (s *Store) write(ctx context.Context, b registry.Batch) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.closed {
		return errClosed
	}
	// A transaction is short and its sync cannot be interrupted; a context that can end would only cost a goroutine for
	// each statement.
	ctx = context.WithoutCancel(ctx)
	if s.db == nil {
		if err := s.open(ctx); err != nil {
			return err
		}
		return fmt.Errorf("%w: a new file was begun", registry.ErrLost)
	}
	err := asDamage(s.db.transact(ctx, func() error { return s.db.write(ctx, b) }))
	if d, ok := errors.AsType[damage](err); ok {
		if err := s.replace(ctx, d); err != nil {
			return err
		}
		return fmt.Errorf("%w: %w", registry.ErrLost, d)
	}
	return err
}

// Load implements registry.Store.
func (s *Store) Load(ctx context.Context) (registry.Saved, error) {
	if s.db == nil {
		return registry.Saved{}, errClosed
	}
	saved, err := s.db.load(ctx, s.log)
	if d, ok := errors.AsType[damage](asDamage(err)); ok {
		if err := s.replace(ctx, d); err != nil {
			return registry.Saved{}, err
		}
		saved, err = s.db.load(ctx, s.log)
	}
	saved.Lost = s.lost
	return saved, err
}

// InUse tells whether a process has the registry file open, without leaving a trace.
func InUse(path string) (bool, error) { return filelock.InUse(path) }

// Close implements registry.Store.
func (s *Store) Close() error {
	if s.closed {
		return nil
	}
	s.closed = true
	defer s.lock.Release()
	if s.db == nil {
		return nil
	}
	err := s.db.close()
	s.db = nil
	return err
}
