// Package feed carries state from one writer to many watchers.
//
// Topic is for a wide state of which a watcher wants every difference: a snapshot, then deltas, with resume. Board is for many
// small states of which each watcher wants one, whole, when it changes. Both know no domain type.
//
// Neither keeps a queue per watcher. A watcher holds a position; what it is owed is computed from the shared state when it
// asks. So a watcher that does not read costs nothing and delays nobody, and what it missed coalesces per key by itself:
// when it reads again it gets the latest value of each key that changed, in order.
package feed
