package explain

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nordix/meridio-nsp/pkg/stream"
)

// bindings say in words how the pod behind a registration is known.
var bindings = map[string]string{
	"Proof": "the caller proved to be the pod", "Claim": "the pod's sidecar reports the addresses",
	"PeerAddress": "the call came from the pod's address", "Stored": "it was the pod's before",
}

func (p *path) registered() Step {
	id, title := StepRegister, titles[StepRegister]
	if s, silent := p.silent(id); silent {
		return s
	}
	switch {
	case p.key == (stream.Key{}) || p.pod == nil:
		return skip(id, title)
	case p.target != nil:
		return pass(id, title, "%s; %s", list(p.target.Addresses), orNone(bindings[p.target.Binding], "the pod is not known"))
	case p.waiting() != nil:
		return p.waits(id, p.waiting())
	case p.process.Rebuilding:
		return stop(id, title, "the NSP lost its registrations and waits for them to come back", "wait: every target registers again within a minute")
	}
	if strangers := p.strangers(); len(strangers) > 0 {
		return stop(id, title, "no registration is known to be the pod's, but in the stream are some that no pod is known for: "+list(strangers),
			"if one is the pod's: its sidecar must report the address, or the registration must come from the pod's own address")
	}
	limit, taken := p.limit(), p.taken("")
	if len(taken) >= int(limit) {
		return stop(id, title, fmt.Sprintf("all %d identifiers of the stream are taken", limit),
			"raise max-targets of the Stream, or take targets away; the next in line gets the place that frees")
	}
	return stop(id, title, "its TAPA has not registered", p.log()+" says what keeps it: the secondary network, or the NSP's refusal")
}

// strangers are the registrations of the stream that no pod is known for.
func (p *path) strangers() (names []string) {
	for _, t := range p.process.Targets {
		if t.Stream == p.key && t.Binding == "" {
			names = append(names, fmt.Sprintf("%s from %s", strings.Join(t.Addresses, "+"), orNone(t.Peer, "an unknown caller")))
		}
	}
	return names
}

// taken are the identifiers of the stream that are held, by others than the registration with these addresses.
func (p *path) taken(addresses string) map[string]TargetFacts {
	held := make(map[string]TargetFacts)
	for _, t := range p.process.Targets {
		if t.Stream == p.key && t.Status == statusEnabled && strings.Join(t.Addresses, "+") != addresses {
			held[t.Identifier] = t
		}
	}
	return held
}

func (p *path) limit() uint32 {
	return stream.MaxTargets(p.process.Trenches[p.key.Trench].MaxTargets[p.key])
}

func (p *path) number() Step {
	id, title := StepNumber, titles[StepNumber]
	if p.process == nil || p.target == nil {
		return p.without(id)
	}
	n, err := strconv.ParseUint(p.target.Identifier, 10, 32)
	limit := p.limit()
	if err != nil || n < 1 || n > uint64(limit) {
		return stop(id, title, fmt.Sprintf("its identifier is %q, which is none of 1..%d", p.target.Identifier, limit),
			"max-targets of the Stream was lowered, or the TAPA chose badly: raise it, or restart the TAPA")
	}
	s := pass(id, title, "%d of 1..%d", n, limit)
	if t, ok := p.x.f.Cluster.Trenches[TrenchName{p.nsp, p.key.Trench}]; ok && t.Config != nil && p.process.Trenches[p.key.Trench].Read {
		for _, c := range t.Config.Streams {
			if c.Conduit == p.key.Conduit && c.Name == p.key.Name && stream.MaxTargets(c.MaxTargets) != limit {
				s.Differs = fmt.Sprintf("the ConfigMap gives stream %s %d targets, the NSP %d", p.key, stream.MaxTargets(c.MaxTargets), limit)
			}
		}
	}
	return s
}

// without is a step about a registration where there is none, or nobody to ask.
func (p *path) without(id string) Step {
	if s, silent := p.silent(id); silent {
		return s
	}
	return skip(id, titles[id])
}

func (p *path) enabled() Step {
	id, title := StepEnabled, titles[StepEnabled]
	if p.process == nil || p.target == nil {
		return p.without(id)
	}
	switch {
	case p.target.Blocked:
		holder := p.taken(strings.Join(p.target.Addresses, "+"))[p.target.Identifier]
		return stop(id, title, fmt.Sprintf("it waits for identifier %s, which is held by %s", p.target.Identifier,
			orNone(strings.Join(holder.Addresses, "+")+podOf(holder), "another target")),
			"it is enabled by itself when the other leaves; a newer TAPA takes a free identifier from the NSP")
	case p.target.Status != statusEnabled:
		return stop(id, title, "it is registered as "+p.target.Status, fmt.Sprintf(
			"the TAPA enables it once the secondary network is there: %s", p.log()))
	}
	return pass(id, title, "%s", p.target.Status)
}

func podOf(t TargetFacts) string {
	if t.Pod == "" {
		return ""
	}
	return " (pod " + t.Pod + ")"
}

// ready compares what the pod says with what its slices say and with what the process has.
func (p *path) ready() Step {
	id, title := StepReady, titles[StepReady]
	cluster, process := "", ""
	if p.wantMember != nil {
		cluster = p.wantMember.Condition.String()
	}
	if p.haveMember != nil {
		process = p.haveMember.Condition
	}
	s := p.readiness(orNone(process, cluster))
	switch {
	case cluster != "" && process != "" && cluster != process:
		s.Differs = fmt.Sprintf("the EndpointSlices say that %s is %s, the NSP has %s", p.noun(), cluster, process)
	case cluster == "Ready" && p.x.f.Cluster.Err == "" && !p.pod.Ready && !p.pod.Terminating:
		s.Differs = p.noun() + " is not ready and its EndpointSlice says it is: the endpointslice controller is behind, or publishNotReadyAddresses is set"
	}
	if s.ID == "" {
		return skip(id, title)
	}
	return s
}

func (p *path) readiness(condition string) Step {
	id, title := StepReady, titles[StepReady]
	says := orNone(p.pod.NotReady, "its condition Ready is not True")
	switch condition {
	case "Ready":
		return pass(id, title, "Ready")
	case "Draining":
		return stop(id, title, "it terminates and still serves", "nothing: it is on its way out; see annotation meridio.nordix.org/draining")
	case "NotReady":
		if p.target != nil && p.target.State == stateActive {
			return Step{ID: id, Title: title, Status: Warn, Detail: "NotReady: " + says, Advice: "it takes traffic nevertheless: " + p.target.Reason}
		}
		if p.external != nil {
			return stop(id, title, "NotReady: "+says, fmt.Sprintf(
				"see to what its source or its health probe finds: kubectl get externaltarget -n %s %s -o yaml, status.addresses", p.pod.Namespace, p.pod.Name))
		}
		return stop(id, title, "NotReady: "+says, fmt.Sprintf("kubectl describe pod -n %s %s: see its readiness probe and readiness gates", p.pod.Namespace, p.pod.Name))
	}
	return Step{}
}

// reasons are what to do where a target is not active though all before it is well.
var reasons = map[string]string{
	"LeftPool":             "no Service has it as a member any more; the TAPA has not closed the stream yet",
	"WaitingForIdentifier": "another target holds its identifier",
	"InvalidIdentifier":    "its identifier is none of 1..max-targets",
	"Disabled":             "the TAPA has not enabled it",
}

func (p *path) state() Step {
	id, title := StepState, titles[StepState]
	if p.process == nil || p.target == nil {
		return p.without(id)
	}
	t := p.target
	since := ""
	if !t.Caused.IsZero() {
		since = " for " + p.x.lasting(t.Caused)
	}
	var s Step
	switch t.State {
	case stateActive:
		s = pass(id, title, "%s (%s)%s", t.State, t.Reason, since)
	case "":
		s = stop(id, title, p.pending(), "wait a moment and ask again; else look at the log of the NSP")
	case stateDraining:
		s = stop(id, title, fmt.Sprintf("%s (%s)%s: it keeps its connections and gets no new ones", t.State, t.Reason, since), "nothing: it is on its way out")
	default:
		s = stop(id, title, fmt.Sprintf("%s (%s)%s", t.State, t.Reason, since), orNone(reasons[t.Reason], "see the steps before"))
	}
	if p.process.Stale {
		s.Differs = "the NSP goes by what it stored before its restart: it has not read every namespace again"
	}
	return s
}

func (p *path) pending() string {
	switch {
	case p.process.Rebuilding:
		return "nothing yet: the NSP lost its registrations and waits for all to come back"
	case !p.process.Answering:
		return "nothing yet: the NSP has not read all of its namespaces"
	case !p.process.Trenches[p.key.Trench].Read:
		return fmt.Sprintf("nothing yet: the NSP has not read the configuration of trench %s", p.key.Trench)
	}
	return "nothing yet"
}

// balancers counts who listens to the conduit, and who is behind.
func (p *path) balancers() Step {
	id, title := StepBalancers, titles[StepBalancers]
	if s, silent := p.silent(id); silent {
		return s
	}
	if p.key == (stream.Key{}) {
		return skip(id, title)
	}
	prefixes, limited := p.process.Prefixes[p.key]
	if limited && prefixes == 0 {
		return stop(id, title, fmt.Sprintf("nobody may use stream %s: no source of its policies has an address", p.key),
			"kubectl describe streampolicies -n "+p.nsp)
	}
	conduit := p.process.Conduits[p.key.Of()]
	var all, late []string
	kinds := make(map[ReceiverKind]int)
	for _, r := range p.process.Receivers {
		if !r.hears(p.key) {
			continue
		}
		kinds[r.Kind]++
		all = append(all, r.Peer)
		if r.Kind == ByFeed && r.Revision < conduit.Revision {
			late = append(late, fmt.Sprintf("%s has revision %d of %d", orNone(r.Peer, "this host"), r.Revision, conduit.Revision))
		}
	}
	if len(all) == 0 {
		return stop(id, title, fmt.Sprintf("no load balancer watches conduit %s", p.key.Of()),
			"are the load balancers of the conduit running, and do they reach the NSP? kubectl get pods -n "+p.nsp)
	}
	detail := describeKinds(kinds)
	if len(late) > 0 {
		slices.Sort(late)
		return Step{ID: id, Title: title, Status: Warn, Detail: detail + "; " + list(late),
			Advice: "a moment is normal; one that stays behind does not read: look at its log"}
	}
	if kinds[ByFeed] > 0 {
		detail += fmt.Sprintf(", at revision %d", conduit.Revision)
	}
	if limited {
		detail += fmt.Sprintf("; policies let in %d prefixes only", prefixes)
	}
	return pass(id, title, "%s", detail)
}

func (r Receiver) hears(k stream.Key) bool {
	matches := func(asked, name string) bool { return asked == "" || asked == name }
	return matches(r.Trench, k.Trench) && matches(r.Conduit, k.Conduit) && matches(r.Stream, k.Name)
}

func describeKinds(kinds map[ReceiverKind]int) string {
	var parts []string
	for _, k := range []struct {
		kind ReceiverKind
		one  string
	}{{ByFeed, "load balancer"}, {ByList, "load balancer of Meridio 1.x"}, {ByRelay, "trench process"}} {
		switch n := kinds[k.kind]; {
		case n == 1:
			parts = append(parts, "1 "+k.one)
		case n > 1 && k.kind == ByList:
			parts = append(parts, fmt.Sprintf("%d load balancers of Meridio 1.x", n))
		case n > 1 && k.kind == ByRelay:
			parts = append(parts, fmt.Sprintf("%d trench processes", n))
		case n > 1:
			parts = append(parts, plural(n, k.one))
		}
	}
	return strings.Join(parts, ", ")
}
