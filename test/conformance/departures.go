package conformance

import "slices"

// Departure is where this project's answers differ from those of Meridio 1.x on purpose.
type Departure struct {
	// Name is the heading in docs/compatibility.md.
	Name string
	// Why says what is different, and the reason.
	Why string
	// Calls are the recorded calls, by scenario, that are answered otherwise for it. Nothing else may be.
	Calls map[string][]int
}

// Departures are all that there are. Those without calls are not visible in the answers to the recorded calls of TargetRegistry.
var Departures = []Departure{{
	Name: "nonsense is refused",
	Why: "A DEFAULT registration without addresses, with something that is no address, or without stream, conduit or trench is INVALID_ARGUMENT. " +
		"No load balancer could use it, and its sender should know.",
	Calls: map[string][]int{
		"odd-inputs": {1, 2, 3, 4, 5, 9, 10, 12, 13, 17, 18, 20, 24, 25, 26, 108, 109, 110, 114, 115},
	},
}, {
	Name: "addresses are a set",
	Why: "The key of a target is the set of its addresses, parsed: order, spelling and repetition make no other target. In 1.x a reorder makes a " +
		"second entry, and the load balancer is without the target when the first times out.",
	Calls: map[string][]int{"odd-inputs": {125, 127, 128}, "ip-order": {1, 30}},
}, {
	Name: "names are local",
	Why: "A stream name belongs to its conduit and that to its trench. In 1.x a registration in another conduit makes the entries of the first vanish, and " +
		"one in another trench moves them there.",
	Calls: map[string][]int{"odd-inputs": {137, 138, 147, 149, 151}},
}, {
	Name: "an identifier has one holder",
	Why: "A target that asks to be ENABLED with an identifier that another ENABLED target of the stream has stays DISABLED until that is free. In 1.x both are " +
		"ENABLED, and which of them a load balancer uses is chance.",
	Calls: map[string][]int{"odd-inputs": {53, 55, 56}},
}, {
	Name: "identifiers are within max-targets",
	Why: "A target whose identifier is no number in 1..max-targets is stored, and shown to those who ask for ANY, but is in no list of ENABLED targets. " +
		"A load balancer has no place for it.",
}, {
	Name: "an unchanged refresh wakes nobody",
	Why:  "A watch is told what changes its list, and nothing twice. In 1.x each Register and Unregister sends every watch its full list.",
}, {
	Name: "quiet clients may ping",
	Why:  "Keepalive pings every 5 s or slower are accepted, with or without calls. A 1.x NSP disconnects clients that ping every 20 s or 30 s while it has nothing to say.",
}, {
	Name: "a bad key spoils only itself",
	Why: "Where one key of the ConfigMap is malformed, that key keeps its last good value and the others count. In 1.x the whole ConfigMap is ignored, so that " +
		"changes in other keys come late (the answers are the same, but earlier).",
}, {
	Name: "a relay is of one trench",
	Why:  "A trench process that relays to the namespace process refuses registrations that name another trench with PERMISSION_DENIED: it speaks for its own only.",
}, {
	Name: "nothing is answered before it was read",
	Why: "A watch waits until configuration and registry have been read. In 1.x an NSP that answers before that sends an empty list of streams, " +
		"which every TAPA and load balancer takes as an order to close everything.",
	Calls: map[string][]int{"nsp-restart-config-late": {25, 26, 28, 29, 32, 33, 34, 35, 36, 38}},
}}

// departs tells whether a call of a scenario is answered otherwise than recorded.
func departs(scenario string, call int) bool {
	return slices.ContainsFunc(Departures, func(d Departure) bool { return slices.Contains(d.Calls[scenario], call) })
}
