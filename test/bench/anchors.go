package main

import "time"

// Budgets of the design: 2 cores, loopback.
var (
	budgetFirst = bound{label: "budget", p50: 1, p99: 5, floor: floorFirst}
	budgetLast  = bound{label: "budget", p50: 3, p99: 15, floor: floorLast}

	budgetBytes     = bound{label: "budget", p50: 300}
	budgetRegister  = bound{label: "budget", p50: 5000, more: true, floor: floorCalls}
	budgetRefresh   = bound{label: "budget", p50: 20000, more: true, floor: floorCalls}
	budgetPlaintext = bound{label: "budget", p50: 0.6 * 1024}
	budgetTLS       = bound{label: "budget", p50: 1.5 * 1024}
	budgetRestart   = bound{label: "budget", p50: 2}
)

// What a server that does nothing is asked for too.
const (
	floorFirst = "one message to the first of 100 load balancers"
	floorLast  = "one message to the last of 100 load balancers"
	floorCalls = "calls of 64 callers"
)

// anchor is what the NSP of Meridio 1.2 does: its own code with sqlite and plain gRPC, 10 streams, 8 callers, measured on a
// machine of 2 cores. 0 means that there is no figure.
type anchor struct {
	targets, watchers int
	// register and refresh are calls per second.
	register, refresh float64
	// change is the time, in ms, from a status change to the last watcher: p50 and p99.
	change [2]float64
	// bytes go to every watcher for one change.
	bytes float64
}

var anchors = []anchor{
	{100, 1, 198, 321, [2]float64{5.2, 9.3}, 900},
	{100, 100, 104, 170, [2]float64{10.7, 18}, 900},
	{1000, 10, 72, 62, [2]float64{18.7, 29}, 9300},
	{1000, 100, 43, 27, [2]float64{47, 68}, 9300},
	{5000, 100, 0, 5.5, [2]float64{170, 294}, 47000},
}

// anchorOf finds the anchor of a size, or none.
func anchorOf(targets, watchers int) anchor {
	for _, a := range anchors {
		if a.targets == targets && a.watchers == watchers {
			return a
		}
	}
	return anchor{}
}

// Storms of the same NSP: of 1,000 targets that open at once (15 s deadline, 1 s retry, as its TAPA does) one was open after
// 180 s; the expiry of 835 entries blocked Register for 23 s. For its restart there is no figure.
const (
	anchorOpened = 1
	anchorExpiry = 23 * time.Second
)
