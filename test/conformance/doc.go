// Package conformance says what it takes to serve nsp.v1, and tests it: recordings of real Meridio components with their own NSP
// (testdata/transcripts, described in docs/compatibility.md) are played against a server and its answers are held against
// the recorded ones; and random clients, whose process is killed now and then, write histories that a checker judges by named
// guarantees.
//
// The link between both is Model, a registry as plain as can be. It can be the registry of Meridio 1.x, and is that because it
// explains every recorded list; or the one that this project wants, which differs by named departures.
package conformance

import "time"

// patience is how long something may take that takes milliseconds on a machine that is not busy.
const patience = time.Minute
