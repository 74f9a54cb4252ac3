package sqlite

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/nordix/meridio-nsp/pkg/filelock"
)

// ErrForeign is wrapped where the path holds the registry of a Meridio 1.x NSP. It is left untouched.
var ErrForeign = errors.New("registry file of a Meridio 1.x NSP")

// damage is an error that says why a file cannot be used any more.
type damage struct{ reason string }

func (d damage) Error() string { return d.reason }

// makeDir makes the directory of the file where it is missing, readable for no others.
func makeDir(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return fmt.Errorf("creating the directory of the registry file: %w", err)
	}
	return nil
}

// create makes the file where it is missing, readable for nobody else.
func create(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("creating the registry file: %w", err)
	}
	return f.Close()
}

// Kind says whose a file is.
type Kind int

// The kinds of files.
const (
	// Free is a file that is missing or empty.
	Free Kind = iota
	// Own is a registry of this NSP, damaged or not.
	Own
	// Meridio1 is the registry of a Meridio 1.x NSP.
	Meridio1
	// Foreign is anything else: it belongs to another program, or is too damaged to say.
	Foreign
)

// Inspect looks whose file it is, without touching it; why is the reason for Foreign. The error is that of looking.
func Inspect(ctx context.Context, path string) (k Kind, why string, err error) {
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return Free, "", nil
	}
	if err != nil {
		return Foreign, "", fmt.Errorf("looking at the registry file: %w", err)
	}
	err = inspect(ctx, path)
	d, damaged := errors.AsType[damage](err)
	switch {
	case errors.Is(err, ErrForeign):
		return Meridio1, "", nil
	case damaged && exists(path+filelock.Suffix): // nobody else makes that
		return Own, "", nil
	case damaged:
		return Foreign, d.reason, nil
	case err != nil:
		return Foreign, "", fmt.Errorf("looking at the registry file %s: %w", path, err)
	case info.Size() == 0:
		return Free, "", nil
	}
	return Own, "", nil
}

// inspect looks whose file it is, without touching it. The error is a damage where it is of no use to anybody.
func inspect(ctx context.Context, path string) error {
	const headerSize, idAt = 100, 68 // https://www.sqlite.org/fileformat.html#the_database_header
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	var header [headerSize]byte
	n, err := io.ReadFull(f, header[:])
	switch {
	case errors.Is(err, io.EOF): // empty: new
		return nil
	case errors.Is(err, io.ErrUnexpectedEOF):
		return damage{fmt.Sprintf("it has only %d bytes", n)}
	case err != nil:
		return err
	case !bytes.HasPrefix(header[:], []byte("SQLite format 3\x00")):
		return damage{"it is no SQLite file"}
	case binary.BigEndian.Uint32(header[idAt:]) == applicationID:
		return nil
	}
	switch old, err := isMeridio1(ctx, path); {
	case err != nil:
		return asDamage(err)
	case old:
		return fmt.Errorf("%w at %s: choose another path for this registry", ErrForeign, path)
	}
	return damage{"it is a SQLite file of another program"}
}

// isMeridio1 says whether the database has the tables of a Meridio 1.x NSP. SQLite neither writes to the file nor makes files
// beside it: where it would have to, because a log is left over, it gets a copy.
func isMeridio1(ctx context.Context, path string) (old bool, err error) {
	if exists(path+"-wal") || exists(path+"-journal") {
		err = WithCopy(path, func(path string) error {
			old, err = hasTables(ctx, DSN(path))
			return err
		})
		return old, err
	}
	return hasTables(ctx, DSN(path)+"?mode=ro&immutable=1")
}

func hasTables(ctx context.Context, dsn string) (bool, error) {
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		return false, err
	}
	defer db.Close()
	const tables = `SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name IN ('targets', 'streams', 'conduits', 'trenches')`
	var n int
	err = db.QueryRowContext(ctx, tables).Scan(&n)
	return n == 4, err
}

// moveAside renames the file and those that SQLite keeps beside it, and says what the new name is. A file that is moved
// without its log would lose what is in the log.
func moveAside(path string, now time.Time) (string, error) {
	aside := path + ".damaged-" + now.UTC().Format("20060102T150405Z")
	for i := 2; exists(aside); i++ {
		aside = fmt.Sprintf("%s.damaged-%s-%d", path, now.UTC().Format("20060102T150405Z"), i)
	}
	for _, suffix := range []string{"-wal", "-shm", "-journal", ""} {
		if err := os.Rename(path+suffix, aside+suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", fmt.Errorf("moving a damaged registry file aside: %w", err)
		}
	}
	return aside, nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// DSN is the path as SQLite's driver wants it: a URI, so that no character in it means anything else.
func DSN(path string) string {
	return "file:" + (&url.URL{Path: path}).EscapedPath()
}
