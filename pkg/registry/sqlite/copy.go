package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"

	"github.com/nordix/meridio-nsp/pkg/registry"
)

// WithCopy calls f with the path of a copy of the database, which lasts as long as the call. The copy is in the directory for
// temporary files, or in memory where there is no room in that: it may be on the disk that is full.
func WithCopy(path string, f func(path string) error) error {
	var errs []error
	for _, parent := range []string{"", "/dev/shm"} {
		dir, err := os.MkdirTemp(parent, "nsp-registry-")
		if err != nil {
			errs = append(errs, err)
			continue
		}
		to, err := Snapshot(path, dir)
		if err == nil {
			err = f(to)
			return errors.Join(err, os.RemoveAll(dir))
		}
		errs = append(errs, err, os.RemoveAll(dir))
		if errors.Is(err, fs.ErrNotExist) {
			break // there is nothing to copy, wherever to
		}
	}
	return errors.Join(errs...)
}

// Read gives back what a registry file has, without writing to it or to its directory. The error is that of looking, or says
// what is wrong with the file.
func Read(ctx context.Context, path string, log *slog.Logger) (saved registry.Saved, err error) {
	err = WithCopy(path, func(path string) error {
		if err := inspect(ctx, path); err != nil {
			return err
		}
		db, err := open(ctx, path)
		if err != nil {
			return err
		}
		saved, err = db.load(ctx, log)
		return errors.Join(err, db.close())
	})
	if err != nil {
		return registry.Saved{}, fmt.Errorf("reading the registry file %s: %w", path, err)
	}
	return saved, nil
}
