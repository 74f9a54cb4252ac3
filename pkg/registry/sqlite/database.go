package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	lib "modernc.org/sqlite/lib"
)

// database is one open file: a single connection with its prepared statements.
type database struct {
	db         *sql.DB
	conn       *sql.Conn
	statements []*sql.Stmt

	put, delete, deleteRow, putDoc, deleteDoc, begin, commit, rollback *sql.Stmt
}

// settings hold for the connection. FULL makes a commit in WAL mode survive a loss of power.
// https://www.sqlite.org/pragma.html#pragma_synchronous
const settings = "?_pragma=busy_timeout(5000)&_pragma=synchronous(FULL)"

// open opens the file, checks it and brings its schema up to date. The error is a damage where the file is no good.
func open(ctx context.Context, path string) (*database, error) {
	db, err := sql.Open("sqlite", DSN(path)+settings)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	d := &database{db: db}
	if d.conn, err = db.Conn(ctx); err == nil {
		err = d.setUp(ctx)
	}
	if err != nil {
		d.close()
		return nil, asDamage(err)
	}
	return d, nil
}

func (d *database) setUp(ctx context.Context) error {
	if err := d.check(ctx); err != nil {
		return err
	}
	if err := d.migrate(ctx); err != nil {
		return err
	}
	// After the schema: as long as that is in the log only, the header does not say whose file it is.
	if _, err := d.conn.ExecContext(ctx, "PRAGMA journal_mode = WAL"); err != nil {
		return err
	}
	return d.prepare(ctx)
}

// check has SQLite look through the whole file.
func (d *database) check(ctx context.Context) error {
	var verdict string
	if err := d.conn.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&verdict); err != nil {
		return err
	}
	if verdict != "ok" {
		return damage{verdict}
	}
	return nil
}

func (d *database) migrate(ctx context.Context) error {
	var version int
	if err := d.conn.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return err
	}
	if version > len(migrations) {
		return damage{fmt.Sprintf("its schema version %d is newer than %d, the latest known here", version, len(migrations))}
	}
	if version == len(migrations) {
		return nil
	}
	tx, err := d.conn.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // of no effect after Commit
	for _, m := range migrations[version:] {
		if _, err := tx.ExecContext(ctx, m); err != nil {
			return fmt.Errorf("bringing the schema up to date: %w", err)
		}
	}
	marks := fmt.Sprintf("PRAGMA application_id = %d; PRAGMA user_version = %d", applicationID, len(migrations))
	if _, err := tx.ExecContext(ctx, marks); err != nil {
		return err
	}
	return tx.Commit()
}

func (d *database) prepare(ctx context.Context) error {
	for _, s := range []struct {
		at  **sql.Stmt
		sql string
	}{
		{&d.put, putEntry}, {&d.delete, deleteEntry}, {&d.deleteRow, deleteRow},
		{&d.putDoc, putDocument}, {&d.deleteDoc, deleteDocument},
		{&d.begin, "BEGIN IMMEDIATE"}, {&d.commit, "COMMIT"}, {&d.rollback, "ROLLBACK"},
	} {
		stmt, err := d.conn.PrepareContext(ctx, s.sql)
		if err != nil {
			return err
		}
		*s.at = stmt
		d.statements = append(d.statements, stmt)
	}
	return nil
}

// transact commits what f does, or nothing.
func (d *database) transact(ctx context.Context, f func() error) error {
	if _, err := d.begin.ExecContext(ctx); err != nil {
		return err
	}
	err := f()
	if err == nil {
		_, err = d.commit.ExecContext(ctx)
	}
	if err != nil {
		_, _ = d.rollback.ExecContext(ctx) // SQLite may have done it itself
	}
	return err
}

// close closes the statements too: with one open, SQLite would keep the file and its log open behind our back.
func (d *database) close() error {
	var errs []error
	for _, s := range d.statements {
		errs = append(errs, s.Close())
	}
	if d.conn != nil {
		errs = append(errs, d.conn.Close())
	}
	return errors.Join(append(errs, d.db.Close())...)
}

// asDamage tells a file that is broken from trouble that may pass, such as a full disk or a lock.
func asDamage(err error) error {
	switch code(err) {
	case lib.SQLITE_CORRUPT, lib.SQLITE_NOTADB:
		return damage{err.Error()}
	}
	return err
}
