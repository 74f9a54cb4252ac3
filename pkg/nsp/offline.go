package nsp

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/registry/meridio1x"
	"github.com/nordix/meridio-nsp/pkg/registry/sqlite"
)

// ImportConfig configures an import while no process runs.
type ImportConfig struct {
	// From is the file of Meridio 1.x.
	From string
	// Datasource and Namespace are those of the process.
	Datasource, Namespace string
	// DryRun says what would be done, and does nothing.
	DryRun bool
}

// Validate says, in sentences, all that has to be changed.
func (c *ImportConfig) Validate() error {
	return errors.Join(
		given("from", c.From, "name the registry file of Meridio 1.x"),
		given("datasource", c.Datasource, "name the registry file of the process"),
		given("namespace", c.Namespace, "set it, or NSP_NAMESPACE, to the namespace of the process"),
	)
}

func given(flag, value, hint string) error {
	if value == "" {
		return fmt.Errorf("--%s is empty: %s", flag, hint)
	}
	return nil
}

// Import takes over a file of Meridio 1.x and says into which file. It refuses while a process has that open, and where that is
// damaged.
func Import(ctx context.Context, cfg ImportConfig) (report TakeoverReport, into string, err error) {
	from, err := filepath.Abs(cfg.From)
	if err != nil {
		return report, "", err
	}
	at, err := findRegistry(ctx, cfg.Datasource)
	if err != nil {
		return report, "", err
	}
	o := takeover{from: from, namespace: cfg.Namespace}
	if _, err := meridio1x.Read(ctx, meridio1x.ReadConfig{Path: from, Namespace: cfg.Namespace}); err != nil {
		return report, at.Path, err // before anything is made for it
	}
	path := at.Path
	if cfg.DryRun {
		dir, err := os.MkdirTemp("", "nsp-import-")
		if err != nil {
			return report, at.Path, err
		}
		defer os.RemoveAll(dir)
		if path, err = trial(ctx, at.Path, dir); err != nil {
			return report, at.Path, err
		}
	}
	store, err := sqlite.Open(ctx, sqlite.Config{Path: path, Strict: true})
	if err != nil {
		return report, at.Path, err
	}
	report, err = o.run(ctx, store)
	return report, at.Path, errors.Join(err, store.Close())
}

// trial is a copy of a registry that anything may be done to.
func trial(ctx context.Context, path, dir string) (string, error) {
	used, err := sqlite.InUse(path)
	if used {
		err = fmt.Errorf("opening the registry file %s: %w: stop that one first", path, sqlite.ErrInUse)
	}
	if err != nil {
		return "", err
	}
	kind, _, err := sqlite.Inspect(ctx, path)
	switch {
	case err != nil:
		return "", err
	case kind == sqlite.Free:
		return filepath.Join(dir, "new.db"), nil
	}
	return sqlite.Snapshot(path, dir)
}

// ExportConfig configures an export while no process runs.
type ExportConfig struct {
	// To is the new file of Meridio 1.x; Force allows that there is one already.
	To    string
	Force bool
	// Datasource is that of the process.
	Datasource string
	// Trench, if set, is the only one whose entries are written, with those of frontends that belong to none. A 1.x NSP serves
	// one.
	Trench string
}

// Validate says, in sentences, all that has to be changed.
func (c *ExportConfig) Validate() error {
	return errors.Join(
		given("to", c.To, "name the file to write for Meridio 1.x"),
		given("datasource", c.Datasource, "name the registry file of the process"),
	)
}

// ExportReport says what was written.
type ExportReport struct {
	// From is the registry file that was read.
	From     string
	Written  int
	Problems []meridio1x.Problem
}

// Export writes the registry of a process as one of Meridio 1.x. It refuses while a process has it open, and where it is
// missing or damaged.
func Export(ctx context.Context, cfg ExportConfig) (ExportReport, error) {
	at, err := findRegistry(ctx, cfg.Datasource)
	if err != nil {
		return ExportReport{}, err
	}
	r := ExportReport{From: at.Path}
	if kind, _, err := sqlite.Inspect(ctx, at.Path); err != nil || kind == sqlite.Free {
		return r, fmt.Errorf("reading the registry file %s: %w", at.Path, errors.Join(err, fs.ErrNotExist))
	}
	entries, err := stored(ctx, at.Path)
	if err != nil {
		return r, err
	}
	var chosen []*registry.Entry
	for _, e := range entries {
		if cfg.Trench == "" || e.Scope == cfg.Trench || e.Scope == "" {
			chosen = append(chosen, e)
		}
	}
	r.Problems, err = meridio1x.Write(ctx, meridio1x.WriteConfig{Path: cfg.To, Force: cfg.Force}, chosen)
	r.Written = len(chosen) - len(r.Problems)
	return r, err
}

// stored are the entries of a registry file.
func stored(ctx context.Context, path string) ([]*registry.Entry, error) {
	store, err := sqlite.Open(ctx, sqlite.Config{Path: path, Strict: true})
	if err != nil {
		return nil, err
	}
	saved, err := store.Load(ctx)
	return saved.Entries, errors.Join(err, store.Close())
}
