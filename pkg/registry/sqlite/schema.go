package sqlite

// applicationID marks a database file as ours ("MNSP"); it stands in the file's header.
// https://www.sqlite.org/fileformat.html#application_id
const applicationID = 0x4d4e5350

// migrations lead from one schema version (PRAGMA user_version) to the next; the first one makes version 1. Never change
// one that was released.
//
// AUTOINCREMENT makes SQLite remember the greatest ID that ever was, also when its row is gone.
var migrations = []string{`
CREATE TABLE entries (
	id        INTEGER PRIMARY KEY AUTOINCREMENT,
	scope     TEXT    NOT NULL,
	type      INTEGER NOT NULL,
	namespace TEXT    NOT NULL,
	trench    TEXT    NOT NULL,
	conduit   TEXT    NOT NULL,
	stream    TEXT    NOT NULL,
	addrs     TEXT    NOT NULL,
	ips       TEXT    NOT NULL,
	context   TEXT    NOT NULL,
	status    INTEGER NOT NULL,
	blocked   INTEGER NOT NULL,
	peer      TEXT    NOT NULL,
	pod_uid   TEXT    NOT NULL,
	memory    TEXT    NOT NULL,
	UNIQUE (addrs, stream, conduit, trench, namespace, scope, type)
) STRICT;
CREATE TABLE documents (
	name TEXT PRIMARY KEY,
	data BLOB NOT NULL
) STRICT;
`, `
ALTER TABLE entries ADD COLUMN reserved INTEGER NOT NULL DEFAULT 0;
`}

const (
	selectEntries = `SELECT id, scope, type, namespace, trench, conduit, stream, addrs, ips, context, status, blocked, reserved,
		peer, pod_uid, memory FROM entries ORDER BY id`
	// A key that comes back has a new ID, so the row is replaced rather than updated.
	putEntry = `INSERT OR REPLACE INTO entries
		(id, scope, type, namespace, trench, conduit, stream, addrs, ips, context, status, blocked, reserved, peer, pod_uid, memory)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`
	deleteEntry = `DELETE FROM entries WHERE addrs = ? AND stream = ? AND conduit = ? AND trench = ? AND namespace = ?
		AND scope = ? AND type = ?`
	deleteRow       = `DELETE FROM entries WHERE id = ?`
	selectSequence  = `SELECT seq FROM sqlite_sequence WHERE name = 'entries'`
	selectDocuments = `SELECT name, data FROM documents`
	putDocument     = `INSERT OR REPLACE INTO documents (name, data) VALUES (?, ?)`
	deleteDocument  = `DELETE FROM documents WHERE name = ?`
)
