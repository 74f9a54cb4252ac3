// Package relay is the registry of a trench process that has a namespace process behind it.
//
// It keeps a mirror of the trench's registrations with what the namespace process concluded of them, answers the watches of
// nsp.v1 from it, and passes registrations on. While the namespace process is away the mirror goes on: it serves its last rows,
// applies removals and expired leases to them, and answers refreshes that change nothing. When the namespace process is back it is
// told of these first; then the mirror is brought up to date, so that watchers see no more than differences.
//
// The mirror is stored in the form of a registry, so that a trench process can begin or cease to relay: what it has is then
// handed to the namespace process, or is its own registry from there on.
package relay
