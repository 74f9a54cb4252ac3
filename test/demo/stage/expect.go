package stage

import (
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nordix/meridio-nsp/pkg/kube"
	"github.com/nordix/meridio-nsp/test/play"
)

// expectation is something that must come to hold in red.
type expectation struct {
	says  string
	holds func(context.Context, *world) bool
}

// sentTo: every load balancer sends the stream to exactly these pods.
func sentTo(stream string, pods ...string) expectation {
	return expectation{
		says:  fmt.Sprintf("all three load balancers send %s to %s", stream, names(pods)),
		holds: func(_ context.Context, w *world) bool { return w.red.all(stream, pods) },
	}
}

// heldBy: exactly these pods' sidecars hold the stream.
func heldBy(stream string, pods ...string) expectation {
	return expectation{
		says:  fmt.Sprintf("the sidecars of %s hold %s", names(pods), stream),
		holds: func(_ context.Context, w *world) bool { return slices.Equal(w.red.holders(stream), pods) },
	}
}

// conditions: the nsp says on the Service that it is accepted, and Programmed with this status. With an empty status it
// must say nothing.
func conditions(service, programmed string) expectation {
	e := expectation{says: fmt.Sprintf("the status of Service %s says Accepted, and Programmed=%s", service, programmed)}
	if programmed == "" {
		e.says = fmt.Sprintf("the status of Service %s says nothing of the nsp any more", service)
	}
	e.holds = func(ctx context.Context, w *world) bool {
		svc, err := w.cluster.Client().CoreV1().Services(w.red.name).Get(ctx, service, metav1.GetOptions{})
		if err != nil {
			return false
		}
		var accepted, is string
		for _, c := range svc.Status.Conditions {
			switch c.Type {
			case kube.ConditionAccepted:
				accepted = string(c.Status)
			case kube.ConditionProgrammed:
				is = string(c.Status)
			}
		}
		return is == programmed && (accepted == "True" || programmed == "")
	}
	return e
}

// terminating: the cluster has said so of all these pods.
func terminating(pods ...string) expectation {
	return announcedAs(play.PodTerminating, "the EndpointSlices list %s as terminating", pods)
}

// gone: the cluster does not list these pods any more.
func gone(pods ...string) expectation {
	return announcedAs(play.PodGone, "the EndpointSlices do not list %s any more", pods)
}

func announcedAs(state, says string, pods []string) expectation {
	return expectation{
		says: fmt.Sprintf(says, names(pods)),
		holds: func(_ context.Context, w *world) bool {
			seen := make(map[string]bool)
			for _, ev := range w.red.journal.since(w.began) {
				if ev.kind == announced && ev.what == "%s: "+state {
					seen[ev.pod] = true
				}
			}
			return len(seen) == len(pods)
		},
	}
}

// watching: every load balancer has a complete answer of the present process.
func watching() expectation {
	return expectation{
		says: "all three load balancers watch again",
		holds: func(_ context.Context, w *world) bool {
			for _, lb := range w.red.lbs {
				if !lb.Live() {
					return false
				}
			}
			return true
		},
	}
}

// undisturbed: no load balancer has changed its mind.
func undisturbed() expectation {
	return expectation{
		says: "no load balancer stopped sending to anybody meanwhile",
		holds: func(_ context.Context, w *world) bool {
			return !slices.ContainsFunc(w.red.journal.since(w.began), func(ev event) bool { return ev.kind == sends })
		},
	}
}
