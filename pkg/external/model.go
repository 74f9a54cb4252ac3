package external

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
)

// Endpoint is one address.
type Endpoint struct {
	Addr netip.Addr
	// Ready is whether it takes new traffic, Serving whether it serves the connections that it has.
	Ready, Serving, Terminating bool
	// Identity is what the source vouches for, such as a SPIFFE ID; empty where it names none.
	Identity string
}

// Report is what a source learnt: where Failure is set it failed, and Endpoints say nothing.
type Report struct {
	Endpoints []Endpoint
	Failure   *Failure
}

// Failure is why a source has no addresses.
type Failure struct {
	// Reason in CamelCase, Message a sentence.
	Reason, Message string
}

// localPort is what errors of connections begin with, as "read udp 10.0.0.1:40123->10.0.0.2:53": an address and a port of the moment.
var localPort = regexp.MustCompile(`:[0-9]+->`)

// Failed is a report of a failure. The message leaves out ports of the moment: one that is another each time would be told, and
// written to the cluster, each time.
func Failed(reason, format string, args ...any) Report {
	return Report{Failure: &Failure{reason, localPort.ReplaceAllString(fmt.Sprintf(format, args...), "->")}}
}

// The reasons of failures, and of states.
const (
	// ReasonResolved is the one of states that are up to date and whole.
	ReasonResolved = "Resolved"
	// ReasonSomeIgnored is of states that are up to date, but of which some addresses are unusable or too many.
	ReasonSomeIgnored = "SomeIgnored"
	// ReasonPending is before the first report.
	ReasonPending = "Pending"

	ReasonInvalid             = "InvalidSource"
	ReasonNameNotFound        = "NameNotFound"
	ReasonNoAddresses         = "NoAddresses"
	ReasonResolverFailed      = "ResolverFailed"
	ReasonClusterUnreachable  = "ClusterUnreachable"
	ReasonSecretUnreadable    = "SecretUnreadable"
	ReasonUnknownProvider     = "UnknownProvider"
	ReasonProviderUnavailable = "ProviderUnavailable"
	ReasonProviderInvalid     = "ProviderInvalid"
	ReasonLocatorRefused      = "LocatorRefused"
)

// Source finds addresses. Run reports, from one goroutine at a time, until ctx ends. A source goes on after failures.
type Source interface {
	Run(ctx context.Context, report func(Report))
}

// State is what counts.
type State struct {
	// Endpoints are sorted by address and distinct.
	Endpoints []Endpoint
	// Resolved is whether they are up to date.
	Resolved        bool
	Reason, Message string
}

// Equal is whether nothing differs.
func (s State) Equal(o State) bool {
	return s.Resolved == o.Resolved && s.Reason == o.Reason && s.Message == o.Message && slices.Equal(s.Endpoints, o.Endpoints)
}

// MaxEndpoints is how many addresses one source may have.
const MaxEndpoints = 1000

// usable is whether the API server takes the address in an EndpointSlice, and a load balancer may send packets to it:
// https://pkg.go.dev/k8s.io/kubernetes/pkg/apis/core/validation#ValidateEndpointIP
func usable(a netip.Addr) bool {
	return a.IsValid() && a.Zone() == "" && !a.Is4In6() && a.IsGlobalUnicast()
}

// accept makes a state of what a source said.
func accept(reported []Endpoint) State {
	var unusable []netip.Addr
	endpoints := make([]Endpoint, 0, len(reported))
	for _, e := range reported {
		if usable(e.Addr) {
			endpoints = append(endpoints, e)
		} else {
			unusable = append(unusable, e.Addr)
		}
	}
	endpoints = distinct(endpoints)
	state := State{Endpoints: endpoints, Resolved: true, Reason: ReasonResolved, Message: "All addresses are known."}
	if len(unusable) > 0 {
		state.Reason = ReasonSomeIgnored
		state.Message = fmt.Sprintf("%s is no address that packets can be sent to; %d such are ignored.",
			slices.MinFunc(unusable, netip.Addr.Compare), len(unusable))
	}
	if n := len(endpoints); n > MaxEndpoints {
		state.Endpoints = slices.Clip(endpoints[:MaxEndpoints])
		state.Reason = ReasonSomeIgnored
		state.Message = fmt.Sprintf("There are %d addresses; the first %d are taken.", n, MaxEndpoints)
	}
	return state
}

// distinct sorts, and of several endpoints with one address keeps the readiest.
func distinct(endpoints []Endpoint) []Endpoint {
	slices.SortFunc(endpoints, func(a, b Endpoint) int {
		return cmp.Or(a.Addr.Compare(b.Addr), rank(b)-rank(a), cmp.Compare(a.Identity, b.Identity))
	})
	return slices.CompactFunc(endpoints, func(a, b Endpoint) bool { return a.Addr == b.Addr })
}

// rank is greater the readier an endpoint is, and equal for no two that differ: their order shall not matter.
func rank(e Endpoint) (n int) {
	if e.Ready {
		n += 4
	}
	if e.Serving {
		n += 2
	}
	if !e.Terminating {
		n++
	}
	return n
}
