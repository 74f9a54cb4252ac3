package kube

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/pool"
)

// The conditions on Service.status.
const (
	ConditionAccepted   = prefix + "Accepted"
	ConditionProgrammed = prefix + "Programmed"
)

// The reasons of Accepted that are not the pool's own. The Service is accepted all the same.
const (
	// ReasonStreamNotFound: the trench's configuration has no such stream.
	ReasonStreamNotFound = "StreamNotFound"
	// ReasonPortsNotServed: no flow of the stream is for some port of the Service.
	ReasonPortsNotServed = "PortsNotServed"
)

// The reasons of Programmed; those of Accepted are the pool's.
const (
	// ReasonProgrammed: every Ready member is active.
	ReasonProgrammed = "Programmed"
	// ReasonNotAccepted: see the condition Accepted.
	ReasonNotAccepted = "NotAccepted"
	// ReasonNoMembers: no slice lists an endpoint that counts.
	ReasonNoMembers = "NoMembers"
	// ReasonNoTargets: no member has registered in the stream.
	ReasonNoTargets = "NoTargets"
	// ReasonNotReady: no member is Ready.
	ReasonNotReady = "NotReady"
	// ReasonWaitingForIdentifier: registrations have no identifier of their own in 1..max-targets.
	ReasonWaitingForIdentifier = "WaitingForIdentifier"
	// ReasonPanic: too few members are Ready, so all count as active.
	ReasonPanic = "Panic"
	// ReasonPartly: some Ready members are not active yet.
	ReasonPartly = "PartlyProgrammed"
)

// maxMessage is the limit of metav1.Condition, in bytes to be safe.
const maxMessage = 32768

// conditionsOf judges a pool. The times are left zero.
func conditionsOf(s *engine.PoolStatus) []metav1.Condition {
	reason, is := programmed(s)
	return []metav1.Condition{
		{
			Type: ConditionAccepted, Status: statusOf(s.Pool.Accepted),
			Reason: acceptedReason(s), Message: clip(acceptedMessage(s), maxMessage),
		},
		{
			Type: ConditionProgrammed, Status: statusOf(is),
			Reason: reason, Message: clip(programmedMessage(s), maxMessage),
		},
	}
}

// programmed names the first step that stops the members, in the order in which a target comes up.
func programmed(s *engine.PoolStatus) (reason string, is bool) {
	c, t := s.Pool.Counts, s.Targets
	is = s.Pool.Accepted && t.Active > 0 && t.Active >= c.Ready
	switch {
	case !s.Pool.Accepted:
		return ReasonNotAccepted, false
	case c.Members == c.Withheld:
		return ReasonNoMembers, false
	case t.Registered == 0 && t.Waiting == 0:
		return ReasonNoTargets, false
	case s.Pool.Panic:
		return ReasonPanic, is
	case is:
		return ReasonProgrammed, true
	case t.Blocked+t.Invalid+t.Waiting > 0:
		return ReasonWaitingForIdentifier, false
	case c.Active == 0:
		return ReasonNotReady, false
	}
	return ReasonPartly, false
}

// acceptedReason says what the pool says, unless that is well and something else is not.
func acceptedReason(s *engine.PoolStatus) string {
	switch {
	case s.Pool.Reason != pool.ReasonAccepted:
		return s.Pool.Reason
	case s.Unconfigured:
		return ReasonStreamNotFound
	case len(s.Unmet) > 0:
		return ReasonPortsNotServed
	}
	return s.Pool.Reason
}

func acceptedMessage(s *engine.PoolStatus) string {
	p := s.Pool
	parts := []string{p.Message}
	if s.Unconfigured {
		parts = append(parts, fmt.Sprintf("the configuration of trench %s has no stream %s in conduit %s; nothing is sent there until it has",
			p.Stream.Trench, p.Stream.Name, p.Stream.Conduit))
	}
	if len(s.Unmet) > 0 {
		parts = append(parts, fmt.Sprintf("no flow of the stream is for %s; correct the ports of the Service or the flows",
			strings.Join(s.Unmet[:min(len(s.Unmet), 10)], ", ")))
	}
	problems := slices.DeleteFunc(slices.Clone(p.Problems), func(problem string) bool { return strings.Contains(p.Message, problem) })
	return strings.Join(append(parts, problems...), "; ")
}

func programmedMessage(s *engine.PoolStatus) string {
	p, c, t := s.Pool, s.Pool.Counts, s.Targets
	if !p.Accepted {
		return "not accepted: " + p.Reason
	}
	members := c.Members - c.Withheld
	parts := []string{fmt.Sprintf("%d of %d members are active", t.Active, members)}
	for _, n := range []struct {
		count int
		text  string
		names engine.Names
	}{
		{members - c.Ready - c.Draining, "not ready", engine.Names{}},
		{c.Draining, "draining", engine.Names{}},
		{members - t.Registered, "without a registered target", engine.Names{}},
		{s.Unwatched.Total, "that no sidecar watches for", s.Unwatched},
		{s.Strangers.Total, "registered in the stream by others than members of its pools", s.Strangers},
		{t.Waiting, "waiting until an identifier of 1..max-targets is free", engine.Names{}},
		{t.Blocked, "waiting for an identifier that another target holds", engine.Names{}},
		{t.Invalid, "without an identifier in 1..max-targets", engine.Names{}},
		{s.Waiting.Total, "in need of an identifier", s.Waiting},
		{c.Withheld, "withheld, see the condition Accepted", engine.Names{}},
	} {
		if n.count > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n.count, n.text)+named(n.names))
		}
	}
	if p.Panic {
		parts = append(parts, fmt.Sprintf("fewer than %d %% are ready, so all that are not terminating count as active", p.PanicThreshold))
	}
	if !p.HasSelector {
		parts = append(parts, "has no selector: only its EndpointSlices count")
	}
	return strings.Join(parts, "; ")
}

// named lists names after what they have in common.
func named(n engine.Names) string {
	if len(n.First) == 0 {
		return ""
	}
	text := ": " + strings.Join(n.First, ", ")
	if more := n.Total - len(n.First); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

func statusOf(is bool) metav1.ConditionStatus {
	if is {
		return metav1.ConditionTrue
	}
	return metav1.ConditionFalse
}

// clip shortens to n bytes at most, between characters.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	const dots = "..."
	cut := n - len(dots)
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + dots
}

// ours are the conditions of this package among all, ordered by type.
func ours(all []metav1.Condition) []metav1.Condition {
	var found []metav1.Condition
	for _, c := range all {
		if c.Type == ConditionAccepted || c.Type == ConditionProgrammed {
			found = append(found, c)
		}
	}
	slices.SortFunc(found, func(a, b metav1.Condition) int { return strings.Compare(a.Type, b.Type) })
	return found
}

// sameConditions is whether a write would say anything new. Times follow from the rest.
func sameConditions(a, b []metav1.Condition) bool {
	return slices.EqualFunc(a, b, func(a, b metav1.Condition) bool {
		return a.Type == b.Type && a.Status == b.Status && a.Reason == b.Reason && a.Message == b.Message
	})
}

// withTimes dates each condition by the last change of its status, which is now where old has another or none.
func withTimes(fresh, old []metav1.Condition, now metav1.Time) []metav1.Condition {
	dated := slices.Clone(fresh)
	for i, c := range dated {
		dated[i].LastTransitionTime = now
		if was := find(old, c.Type); was != nil && was.Status == c.Status && !was.LastTransitionTime.IsZero() {
			dated[i].LastTransitionTime = was.LastTransitionTime
		}
	}
	return dated
}

func find(conditions []metav1.Condition, kind string) *metav1.Condition {
	i := slices.IndexFunc(conditions, func(c metav1.Condition) bool { return c.Type == kind })
	if i < 0 {
		return nil
	}
	return &conditions[i]
}
