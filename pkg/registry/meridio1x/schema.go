// Package meridio1x reads and writes the registry files of Meridio 1.x, so that registrations survive an upgrade and a
// downgrade.
//
// Such a file is a SQLite database with a table each for targets, streams, conduits and trenches, joined by name. Names are
// global there: two conduits cannot have streams of one name. Addresses are joined by a semicolon, the context is JSON, and
// status and type are the numbers of nsp.v1.
package meridio1x

import (
	"fmt"
	"strings"
)

// separator stands between the addresses of a target.
const separator = ";"

// schema is what a 1.x NSP makes, to the letter: at its start it compares the text.
var schema = []string{
	"CREATE TABLE `trenches` (`name` text,PRIMARY KEY (`name`))",
	"CREATE TABLE `conduits` (`name` text,`trench_name` text,PRIMARY KEY (`name`)," +
		"CONSTRAINT `fk_conduits_trench` FOREIGN KEY (`trench_name`) REFERENCES `trenches`(`name`))",
	"CREATE TABLE `streams` (`name` text,`conduit_name` text,PRIMARY KEY (`name`)," +
		"CONSTRAINT `fk_streams_conduit` FOREIGN KEY (`conduit_name`) REFERENCES `conduits`(`name`))",
	"CREATE TABLE `targets` (`id` text,`ips` text,`context` text,`status` integer,`type` integer,`stream_name` text,PRIMARY KEY (`id`)," +
		"CONSTRAINT `fk_targets_stream` FOREIGN KEY (`stream_name`) REFERENCES `streams`(`name`))",
}

const (
	// selectTargets takes the names from the tables of names, as a 1.x NSP does: a target whose stream is not there has none.
	selectTargets = `SELECT t.id, t.ips, t.context, t.status, t.type, s.name, c.name, r.name FROM targets t
		LEFT JOIN streams s ON s.name = t.stream_name
		LEFT JOIN conduits c ON c.name = s.conduit_name
		LEFT JOIN trenches r ON r.name = c.trench_name
		ORDER BY t.rowid`
	selectTrenches = `SELECT name FROM trenches WHERE name <> '' ORDER BY name`
	insertTarget   = `INSERT INTO targets (id, ips, context, status, type, stream_name) VALUES (?, ?, ?, ?, ?, ?)`
	insertStream   = `INSERT OR IGNORE INTO streams (name, conduit_name) VALUES (?, ?)`
	insertConduit  = `INSERT OR IGNORE INTO conduits (name, trench_name) VALUES (?, ?)`
	insertTrench   = `INSERT OR IGNORE INTO trenches (name) VALUES (?)`
)

// id is the primary key of a target: what a 1.x NSP looks it up by, so each part must be spelled as its client spells it.
func id(ips []string, kind int32, stream, conduit, trench string) string {
	return fmt.Sprintf("%s-%d-%s.%s.%s", strings.Join(ips, separator), kind, stream, conduit, trench)
}
