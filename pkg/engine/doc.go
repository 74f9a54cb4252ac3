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
package engine
