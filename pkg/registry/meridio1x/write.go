package meridio1x

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/registry/sqlite"
)

// WriteConfig says where to write to.
type WriteConfig struct {
	Path string
	// Force allows to replace a file, though never a registry of this NSP.
	Force bool
}

// leftovers are what SQLite may have left beside a database that is gone or goes; it would take them for logs of the new one.
var leftovers = []string{"-journal", "-wal", "-shm"}

// Write writes the entries into a new file that a 1.x NSP can go on with, and says which of them that has no way to hold. The
// file is there as a whole or not at all. The error wraps fs.ErrExist where there is one already.
func Write(ctx context.Context, cfg WriteConfig, entries []*registry.Entry) ([]Problem, error) {
	problems, err := write(ctx, cfg, entries)
	if err != nil {
		return nil, fmt.Errorf("writing %s: %w", cfg.Path, err)
	}
	return problems, nil
}

func write(ctx context.Context, cfg WriteConfig, entries []*registry.Entry) ([]Problem, error) {
	if err := mayWrite(ctx, cfg); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(filepath.Dir(cfg.Path), ".nsp-export-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "registry.db")
	w := newWriter(entries)
	if err := w.fill(ctx, path); err != nil {
		return nil, err
	}
	if err := publish(path, cfg); err != nil {
		return nil, err
	}
	return w.problems, nil
}

// mayWrite looks before the work is done; publish makes sure.
func mayWrite(ctx context.Context, cfg WriteConfig) error {
	if !cfg.Force {
		for _, suffix := range append([]string{""}, leftovers...) {
			if _, err := os.Lstat(cfg.Path + suffix); err == nil {
				return fmt.Errorf("%s: %w", cfg.Path+suffix, fs.ErrExist)
			}
		}
		return nil
	}
	kind, _, err := sqlite.Inspect(ctx, cfg.Path)
	if err == nil && kind == sqlite.Own {
		err = errors.New("it is a registry of this NSP: choose another path")
	}
	return err
}

// publish gives the finished file its name.
func publish(path string, cfg WriteConfig) error {
	if !cfg.Force { // a rename would replace what came meanwhile
		f, err := os.OpenFile(cfg.Path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	for _, suffix := range leftovers {
		if err := os.Remove(cfg.Path + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return os.Rename(path, cfg.Path)
}

// writer fills a file.
type writer struct {
	entries []*registry.Entry
	// parents are what the names of streams and conduits belong to.
	streams, conduits map[string]string
	ids               map[string]bool
	problems          []Problem
	tx                *sql.Tx
}

func newWriter(entries []*registry.Entry) *writer {
	return &writer{entries: entries, streams: map[string]string{}, conduits: map[string]string{}, ids: map[string]bool{}}
}

func (w *writer) fill(ctx context.Context, path string) error {
	db, err := sql.Open("sqlite", sqlite.DSN(path)+"?_pragma=synchronous(FULL)")
	if err != nil {
		return err
	}
	defer db.Close()
	if w.tx, err = db.BeginTx(ctx, nil); err != nil {
		return err
	}
	defer w.tx.Rollback() //nolint:errcheck // of no effect after Commit
	for _, s := range schema {
		if _, err := w.tx.ExecContext(ctx, s); err != nil {
			return err
		}
	}
	for _, e := range w.entries {
		if err := w.put(ctx, e); err != nil {
			return err
		}
	}
	return errors.Join(w.tx.Commit(), db.Close())
}

// put writes an entry, or notes why it cannot be.
func (w *writer) put(ctx context.Context, e *registry.Entry) error {
	st := e.Stream
	name := id(e.IPs, int32(e.Type), st.Name, st.Conduit, st.Trench)
	if why := w.obstacle(e, name); why != "" {
		w.problems = append(w.problems, Problem{name, why})
		return nil
	}
	w.ids[name], w.streams[st.Name], w.conduits[st.Conduit] = true, st.Conduit, st.Trench
	values, err := json.Marshal(e.Context)
	if err != nil {
		return err
	}
	if _, err := w.tx.ExecContext(ctx, insertTarget, name, strings.Join(e.IPs, separator), string(values), e.Status, e.Type, st.Name); err != nil {
		return err
	}
	for _, row := range []struct {
		needed bool
		insert string
		values []any
	}{
		{st.Name+st.Conduit+st.Trench != "", insertStream, []any{st.Name, st.Conduit}},
		{st.Conduit+st.Trench != "", insertConduit, []any{st.Conduit, st.Trench}},
		{st.Trench != "", insertTrench, []any{st.Trench}},
	} {
		if !row.needed {
			continue
		}
		if _, err := w.tx.ExecContext(ctx, row.insert, row.values...); err != nil {
			return err
		}
	}
	return nil
}

// obstacle says why a 1.x registry cannot hold an entry besides those it has; empty if it can.
func (w *writer) obstacle(e *registry.Entry, name string) string {
	st := e.Stream
	if conduit, ok := w.streams[st.Name]; ok && conduit != st.Conduit {
		return fmt.Sprintf("the name of its stream is that of a stream in conduit %q; Meridio 1.x has room for one of them", conduit)
	}
	if trench, ok := w.conduits[st.Conduit]; ok && trench != st.Trench {
		return fmt.Sprintf("the name of its conduit is that of a conduit in trench %q; Meridio 1.x has room for one of them", trench)
	}
	for _, s := range e.IPs {
		if strings.Contains(s, separator) {
			return fmt.Sprintf("the semicolon in %.60q would split it", s)
		}
	}
	if w.ids[name] {
		return "another entry has the same primary key there"
	}
	return ""
}
