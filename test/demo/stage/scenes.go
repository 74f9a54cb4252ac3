package stage

import (
	"context"
	"fmt"
)

// scene is one step of the demo.
type scene struct {
	what string
	// why says what a newcomer should know.
	why string
	do  func(context.Context, *world) error
	// expect is awaited in this order; then all of it is so.
	expect []expectation
	// flip is the change of readiness that do makes in red: it is made in blue too, and both are measured.
	flip *flip
}

// chapters are the demo, in order. Each finds things as the ones before leave them, and has no scenes where the world lacks what
// it needs. Who adds one that makes pods ends them in it.
var chapters = []func(*world) []scene{pools, flips, oldPod, endings, relabelling, scaling, restarts, machines, realPackets}

// script is the demo.
func script(w *world) []scene {
	var all []scene
	for _, chapter := range chapters {
		all = append(all, chapter(w)...)
	}
	return all
}

func pools(*world) []scene {
	return []scene{
		{
			what: "Service web, which selects app=web, is labelled as the pool of stream-a",
			why: "The labels are the whole configuration: the marker, and the names of trench, conduit and stream. The sidecars are told, " +
				"open the stream and register; the load balancers hear of each target that counts.",
			do: inBoth(service("web", "stream-a")),
			expect: []expectation{
				heldBy("stream-a", "web-1", "web-2", "web-3", "web-4"),
				sentTo("stream-a", "web-1", "web-2", "web-3", "web-4"),
				conditions("web", "True"),
			},
		},
		{
			what: "Service api becomes the pool of stream-b",
			do:   inBoth(service("api", "stream-b")),
			expect: []expectation{
				sentTo("stream-b", "api-1", "api-2"),
				conditions("api", "True"),
			},
		},
	}
}

func flips(*world) []scene {
	return []scene{
		readiness("web-2", false, "The load balancers hear it from the cluster, by way of the nsp. The sidecar is not involved: the stream stays open, "+
			"so that a flap tears no interface down.",
			sentTo("stream-a", "web-1", "web-3", "web-4"), heldBy("stream-a", "web-1", "web-2", "web-3", "web-4")),
		readiness("web-2", true, "", sentTo("stream-a", "web-1", "web-2", "web-3", "web-4")),
		readiness("api-2", false, "A target with addresses of both families is one target.", sentTo("stream-b", "api-1")),
		readiness("api-2", true, "", sentTo("stream-b", "api-1", "api-2")),
		readiness("web-1", false, "More flips, so that the medians at the end mean something.",
			sentTo("stream-a", "web-2", "web-3", "web-4")),
		readiness("web-1", true, "", sentTo("stream-a", "web-1", "web-2", "web-3", "web-4")),
		readiness("web-3", false, "", sentTo("stream-a", "web-1", "web-2", "web-4")),
		readiness("web-3", true, "", sentTo("stream-a", "web-1", "web-2", "web-3", "web-4")),
		readiness("api-1", false, "", sentTo("stream-b", "api-2")),
		readiness("api-1", true, "", sentTo("stream-b", "api-1", "api-2")),
	}
}

// oldPod has a pod with a TAPA of Meridio 1.x and no sidecar. The nsp knows by the address it calls from which pod that is.
func oldPod(w *world) []scene {
	if !w.hostAddress.IsValid() {
		return nil // a machine with a loopback only, where nobody calls from an address that a pod may have
	}
	const b = "stream-b"
	return []scene{
		{
			what: "Pod old-1 comes; it has a TAPA of Meridio 1.x, whose application opens stream-b",
			why: "It knows nothing but the trench process, and registers there. That passes on where the call came from, so that the nsp " +
				"finds the pod.",
			do:     inRed(oldTAPA("old-1", 120, b)),
			expect: []expectation{heldBy(b, "api-1", "api-2", "old-1"), sentTo(b, "api-1", "api-2", "old-1")},
		},
		{
			what: "Pod old-1 turns NotReady",
			why:  "The fast path serves it too. Its TAPA is told nothing, and keeps the stream.",
			do:   inRed(setReady("old-1", false)),
			expect: []expectation{
				sentTo(b, "api-1", "api-2"), heldBy(b, "api-1", "api-2", "old-1"),
			},
		},
		{
			what:   "Pod old-1 turns Ready",
			do:     inRed(setReady("old-1", true)),
			expect: []expectation{sentTo(b, "api-1", "api-2", "old-1")},
		},
		{
			what:   "The application closes stream-b",
			do:     inRed(closes("old-1", b)),
			expect: []expectation{sentTo(b, "api-1", "api-2"), heldBy(b, "api-1", "api-2")},
		},
		{
			what:   "The containers of old-1 have ended",
			do:     inRed(remove("old-1")),
			expect: []expectation{gone("old-1")},
		},
	}
}

func endings(*world) []scene {
	return []scene{
		{
			what: "Pod web-4 is deleted, with a grace period of 30 s",
			why:  "A terminating pod gets no new traffic while others are ready, and keeps its stream for the connections it has.",
			do:   inRed(terminate("web-4")),
			expect: []expectation{
				sentTo("stream-a", "web-1", "web-2", "web-3"),
				heldBy("stream-a", "web-1", "web-2", "web-3", "web-4"),
			},
		},
		{
			what:   "The containers of web-4 have ended",
			do:     inRed(remove("web-4")),
			expect: []expectation{gone("web-4"), heldBy("stream-a", "web-1", "web-2", "web-3")},
		},
	}
}

func relabelling(*world) []scene {
	return []scene{
		{
			what: "Service web is relabelled: its stream is stream-c now",
			why:  "The pods stay as they are; their sidecars move.",
			do:   inRed(service("web", "stream-c")),
			expect: []expectation{
				sentTo("stream-a"), heldBy("stream-a"),
				heldBy("stream-c", "web-1", "web-2", "web-3"), sentTo("stream-c", "web-1", "web-2", "web-3"),
			},
		},
		{
			what:   "The marker is removed from Service api",
			why:    "It is an ordinary Service again.",
			do:     inRed(unmarked("api")),
			expect: []expectation{sentTo("stream-b"), heldBy("stream-b"), conditions("api", "")},
		},
		{
			what:   "The marker is put back",
			do:     inRed(service("api", "stream-b")),
			expect: []expectation{heldBy("stream-b", "api-1", "api-2"), sentTo("stream-b", "api-1", "api-2"), conditions("api", "True")},
		},
	}
}

func scaling(*world) []scene {
	return []scene{
		{
			what: "web is scaled to zero: its pods terminate, one after the other",
			why: "When the last one terminates, none is ready. Then the terminating ones count, as kube-proxy does it: " +
				"a pod on its way out is better than none.",
			do:     inRed(terminate("web-1", "web-2", "web-3")),
			expect: []expectation{terminating("web-1", "web-2", "web-3"), sentTo("stream-c", "web-1", "web-2", "web-3")},
		},
		{
			what:   "Their containers have ended",
			do:     inRed(remove("web-1", "web-2", "web-3")),
			expect: []expectation{gone("web-1", "web-2", "web-3"), sentTo("stream-c"), conditions("web", "False")},
		},
		{
			what: "web is scaled to three again",
			do:   inRed(webPods(5, 6, 7)),
			expect: []expectation{
				heldBy("stream-c", "web-5", "web-6", "web-7"), sentTo("stream-c", "web-5", "web-6", "web-7"), conditions("web", "True"),
			},
		},
	}
}

func restarts(*world) []scene {
	return []scene{
		{
			what: "The nsp process is killed, and started again",
			why: "Sidecars and load balancers keep what they have and come back on their own; lb-old is served by the trench process " +
				"meanwhile. No load balancer may drop a target for that.",
			do: inRed(killed(nspProcess, "lb-1", "lb-2")),
			expect: []expectation{
				watching(), undisturbed(),
				sentTo("stream-b", "api-1", "api-2"), sentTo("stream-c", "web-5", "web-6", "web-7"),
			},
		},
		{
			what:   "The trench process is killed, and started again",
			why:    "It has a copy of what it serves.",
			do:     inRed(killed(trenchProcess, oldLB)),
			expect: []expectation{watching(), undisturbed(), sentTo("stream-c", "web-5", "web-6", "web-7")},
		},
		{
			what:   "Pod web-6 turns NotReady, to see that the new processes do their work",
			do:     inRed(setReady("web-6", false)),
			expect: []expectation{sentTo("stream-c", "web-5", "web-7")},
		},
		{
			what:   "Pod web-6 turns Ready",
			do:     inRed(setReady("web-6", true)),
			expect: []expectation{sentTo("stream-c", "web-5", "web-6", "web-7")},
		},
	}
}

// readiness is a scene in which the readiness of a pod changes, measured on both sides.
func readiness(pod string, to bool, why string, expect ...expectation) scene {
	f := &flip{pod: pod, ready: to}
	return scene{
		what: fmt.Sprintf("Pod %s turns %s", pod, f.to()), why: why, flip: f, do: inRed(setReady(pod, to)), expect: expect,
	}
}
