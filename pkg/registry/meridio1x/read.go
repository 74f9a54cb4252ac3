package meridio1x

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"strings"

	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/registry/sqlite"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// ErrUnusable is wrapped where a file is no registry of Meridio 1.x, or a damaged one.
var ErrUnusable = errors.New("no usable registry of Meridio 1.x")

// ReadConfig says what to read.
type ReadConfig struct {
	Path string
	// Namespace is the NSP's own, that of every stream.
	Namespace string
	// Scope is that of registrations without a stream, which are those of frontends.
	Scope string
}

// Content is what a file has.
type Content struct {
	// Targets have different keys, and are in the order in which they were first stored; statuses are as stored.
	Targets []registry.Target
	// Problems are the entries that are not among them.
	Problems []Problem
	// Trenches are the names of all trenches that the file knows.
	Trenches []string
	// Digest is equal for two files with the same entries, whatever their bytes are.
	Digest string
}

// Problem is an entry that cannot be what it was.
type Problem struct {
	// ID is the entry's primary key in the 1.x file.
	ID     string
	Reason string
}

func (p Problem) String() string { return fmt.Sprintf("%.200q: %s", p.ID, p.Reason) }

// Read reads a registry from a copy, with what a killed NSP left in its logs; the file stays as it is, to the byte. The error
// wraps ErrUnusable where the file is not what it should be, fs.ErrNotExist where there is none, and sqlite.ErrInUse where it
// never stands still.
func Read(ctx context.Context, cfg ReadConfig) (Content, error) {
	c, err := read(ctx, cfg)
	if err != nil {
		return Content{}, fmt.Errorf("reading %s: %w", cfg.Path, err)
	}
	return c, nil
}

func read(ctx context.Context, cfg ReadConfig) (Content, error) {
	var c Content
	err := sqlite.WithCopy(cfg.Path, func(path string) (err error) {
		c, err = readCopy(ctx, cfg, path)
		return err
	})
	return c, err
}

func readCopy(ctx context.Context, cfg ReadConfig, path string) (Content, error) {
	switch kind, why, err := sqlite.Inspect(ctx, path); {
	case err != nil:
		return Content{}, err
	case kind == sqlite.Free:
		return Content{}, fmt.Errorf("%w: it is empty", ErrUnusable)
	case kind == sqlite.Own:
		return Content{}, fmt.Errorf("%w: it is a registry of this NSP already", ErrUnusable)
	case kind == sqlite.Foreign:
		return Content{}, fmt.Errorf("%w: %s", ErrUnusable, why)
	}
	db, err := sql.Open("sqlite", sqlite.DSN(path))
	if err != nil {
		return Content{}, err
	}
	defer db.Close()
	if err := check(ctx, db); err != nil {
		return Content{}, fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	r := newReader(cfg)
	if err := errors.Join(r.readTargets(ctx, db), r.readTrenches(ctx, db)); err != nil {
		return Content{}, fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	r.Digest = hex.EncodeToString(r.digest.Sum(nil))
	return r.Content, nil
}

// check has SQLite look through the whole file.
func check(ctx context.Context, db *sql.DB) error {
	var verdict string
	if err := db.QueryRowContext(ctx, "PRAGMA integrity_check(1)").Scan(&verdict); err != nil {
		return err
	}
	if verdict != "ok" {
		return errors.New("it is damaged: " + verdict)
	}
	return nil
}

// reader collects the content.
type reader struct {
	Content
	cfg    ReadConfig
	digest hash.Hash
	// at is where the target of a key stands, and ids what its entry is called.
	at  map[registry.Key]int
	ids map[registry.Key]string
}

func newReader(cfg ReadConfig) *reader {
	return &reader{cfg: cfg, digest: sha256.New(), at: map[registry.Key]int{}, ids: map[registry.Key]string{}}
}

// row is a target as the tables have it.
type row struct {
	id, ips, context, stream, conduit, trench sql.NullString
	status, kind                              int32
}

func (r *reader) readTargets(ctx context.Context, db *sql.DB) error {
	rows, err := db.QueryContext(ctx, selectTargets)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var w row
		err := rows.Scan(&w.id, &w.ips, &w.context, &w.status, &w.kind, &w.stream, &w.conduit, &w.trench)
		fmt.Fprintf(r.digest, "%q %d %d\n", []string{w.id.String, w.ips.String, w.context.String, w.stream.String, w.conduit.String,
			w.trench.String}, w.status, w.kind)
		if err != nil {
			r.refuse(w.id.String, fmt.Errorf("it is unreadable: %w", err))
			continue
		}
		r.add(w)
	}
	return rows.Err()
}

func (r *reader) readTrenches(ctx context.Context, db *sql.DB) error {
	rows, err := db.QueryContext(ctx, selectTrenches)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return err
		}
		r.Trenches = append(r.Trenches, name)
	}
	return rows.Err()
}

func (r *reader) refuse(id string, why error) {
	r.Problems = append(r.Problems, Problem{id, why.Error()})
}

// add takes a target in, unless it could not be registered.
func (r *reader) add(w row) {
	t, err := w.target(r.cfg)
	if err != nil {
		r.refuse(w.id.String, err)
		return
	}
	k, err := registry.Check(t, r.cfg.Namespace, registry.Limits{})
	if err != nil {
		r.refuse(w.id.String, err)
		return
	}
	at, known := r.at[k]
	if !known {
		r.at[k], r.ids[k] = len(r.Targets), w.id.String
		r.Targets = append(r.Targets, t)
		return
	}
	r.merge(k, at, t, w.id.String)
}

// merge makes one of two targets that a 1.x NSP tells apart by the order or the spelling of their addresses. The enabled one
// counts, else the later one: that is what its client refreshes now.
func (r *reader) merge(k registry.Key, at int, t registry.Target, id string) {
	less := id
	if first := r.Targets[at]; t.Status == registry.Enabled || first.Status != registry.Enabled {
		less, r.ids[k] = r.ids[k], id
		r.Targets[at] = t
	}
	r.refuse(less, fmt.Errorf("merged into %.200q, which has the same addresses", r.ids[k]))
}

func (w row) target(cfg ReadConfig) (registry.Target, error) {
	t := registry.Target{
		Scope:  cfg.Scope,
		Type:   registry.Type(w.kind),
		Status: registry.Status(w.status),
		Stream: stream.Key{Namespace: cfg.Namespace, Trench: w.trench.String, Conduit: w.conduit.String, Name: w.stream.String},
		IPs:    strings.Split(w.ips.String, separator),
	}
	if err := json.Unmarshal([]byte(w.context.String), &t.Context); err != nil {
		return registry.Target{}, fmt.Errorf("its context is unreadable: %w", err)
	}
	return t, nil
}
