// Package engine joins what the cluster says (pool) with what the targets say (registry) into effective targets, and tells
// watchers. It is the only writer of that state.
//
// One goroutine owns everything. Sources post events into its inbox; it takes all that has arrived, applies it, recomputes
// what that touched, and publishes the result as one revision. Watchers read immutable rows from feed topics and boards and
// never meet the owner.
//
// The rules are those of Service readiness in Kubernetes (discovery/v1 conditions) applied to registrations:
//   - a target is active when its registration is ENABLED and its member's state in the pools of its stream says so;
//   - one that left the last pool of its stream is inactive at once, whatever its lease;
//   - one that no pool ever listed is not touched by readiness: the application opened it.
//
// A registration belongs to the pod that its caller proved to be, else to the one whose sidecar proved to bear its addresses,
// else to the one at the peer address of the call. What is ambiguous proves nothing, and then the last binding stands. What
// was concluded is remembered with the registration, so that it can be told when the cluster cannot be read after a restart.
//
// Load balancers are told nothing before every namespace has been read, or found unavailable, and the configuration of their
// trench too: an empty list would close what works. Registrations as registered are told at once.
package engine
