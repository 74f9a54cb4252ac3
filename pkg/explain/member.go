package explain

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nordix/meridio-nsp/pkg/pool"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// listed asks whether a slice that counts lists the pod, in the cluster and in the process.
func (p *path) listed() Step {
	id, title := StepListed, titles[StepListed]
	if p.want == nil && p.have == nil || p.want != nil && !p.want.Accepted {
		return skip(id, title)
	}
	if p.x.f.Cluster.Err == "" && p.wantMember == nil && p.tells() {
		s := p.unlisted()
		if p.haveMember != nil {
			s.Differs = fmt.Sprintf("the NSP still has %s as a member of %s, the cluster has not", p.noun(), p.service.Ref)
		}
		return s
	}
	switch {
	case p.haveMember != nil:
		return pass(id, title, "%s", orNone(strings.Join(p.haveMember.Addresses, ", "), "an EndpointSlice lists it"))
	case p.process == nil && p.wantMember != nil:
		return pass(id, title, "an EndpointSlice lists it")
	case p.process == nil:
		return unknown(id, title, "neither the cluster nor the NSP says")
	case p.have == nil || !p.have.Accepted:
		return skip(id, title)
	}
	s := stop(id, title, "the NSP does not have it as a member", "wait a moment and ask again; else look at the log of the NSP")
	s.Differs = fmt.Sprintf("an EndpointSlice of %s lists %s, the NSP does not have it", p.service.Ref, p.noun())
	return s
}

// tells is whether the cluster says whether the followed one is a member.
func (p *path) tells() bool {
	return p.external == nil || p.x.f.Cluster.GrantsErr[p.nsp] == "" && p.x.f.Cluster.ExternalsErr == ""
}

func (p *path) unlisted() Step {
	id, title := StepListed, titles[StepListed]
	switch {
	case p.external != nil:
		return p.externalUnlisted()
	case len(p.pod.IPs) == 0:
		return stop(id, title, fmt.Sprintf("the pod has no address yet; its phase is %s", orNone(p.pod.Phase, "Unknown")),
			fmt.Sprintf("kubectl describe pod -n %s %s says what it waits for", p.pod.Namespace, p.pod.Name))
	case len(p.service.Selector) > 0 && !selects(p.service.Selector, p.pod.Labels):
		return stop(id, title, "the Service does not select it any more", "see the selector of the Service and the labels of the pod")
	case p.want != nil && len(p.want.Problems) > 0:
		return stop(id, title, list(p.want.Problems), "mend the EndpointSlice")
	}
	return stop(id, title, "no EndpointSlice with the marker lists it", "wait a moment; else is the endpointslice controller running?")
}

// account asks whether a grant that names ServiceAccounts lets the pod in, and whether the pod has proven to run as one.
func (p *path) account() Step {
	id, title := StepAccount, titles[StepAccount]
	if p.wantMember == nil && p.haveMember == nil {
		return skip(id, title)
	}
	if p.service.Namespace == p.nsp {
		return pass(id, title, "pods of the trench's own namespace need no grant")
	}
	_, known := p.granted()
	allowed := known && p.x.f.Cluster.Grants[p.nsp].Permission(p.service.Namespace, p.key).Account(p.pod.Account)
	withheld := p.haveMember != nil && p.haveMember.Withheld && p.have.Reason == pool.ReasonMembersNotPermitted
	switch {
	case known && !allowed:
		return stop(id, title, fmt.Sprintf("it runs as ServiceAccount %s, which no grant names", orNone(p.pod.Account, "(unknown)")),
			"name the ServiceAccount in the TargetGrant, or run the pod as one that is named")
	case withheld:
		return stop(id, title, "it has not proven to run as "+orNone(p.pod.Account, "a ServiceAccount that is named"),
			"its sidecar must show a token of the pod: see docs/security.md")
	case known:
		return pass(id, title, "%s", p.pod.Account)
	}
	return unknown(id, title, orNone(p.x.f.Cluster.GrantsErr[p.nsp], p.x.f.Cluster.Err))
}

func (p *path) contested() Step {
	id, title := StepContested, titles[StepContested]
	want, have := p.wantMember, p.haveMember
	if want == nil && have == nil {
		return skip(id, title)
	}
	says := ""
	switch {
	case have != nil && have.Withheld && p.have.Reason == pool.ReasonConflict:
		says = p.have.Message
	case have == nil && want != nil && want.Withheld && p.want.Reason == pool.ReasonConflict:
		says = p.want.Message
	}
	if says != "" {
		return stop(id, title, says, "let only Services of one trench select it: the older Service wins")
	}
	return pass(id, title, "a member is in one trench")
}

func (p *path) assigned() Step {
	id, title := StepAssigned, titles[StepAssigned]
	if s, silent := p.silent(id); silent {
		return s
	}
	switch {
	case p.haveMember == nil || p.haveMember.Withheld:
		return skip(id, title)
	case !p.haveMember.Assigned:
		return stop(id, title, fmt.Sprintf("the Service assigns its stream to ready pods only, and this one is %s", p.haveMember.Condition),
			fmt.Sprintf("make the pod ready, or set annotation %s=%s on the Service", pool.AnnotationAssignment, pool.ByMembership))
	}
	return pass(id, title, "by %s", orNone(p.have.Assignment, string(pool.ByMembership)))
}

// sidecars are the watches for the pod; those that are not found to be the pod's own say nothing.
func (p *path) sidecars() (proven, others []Sidecar) {
	for _, s := range p.process.Sidecars {
		named := s.Pod == p.pod.Name && (s.PodUID == "" || p.pod.UID == "" || s.PodUID == p.pod.UID)
		if p.external != nil {
			named = s.External == p.external.Name
		}
		if !named && (s.Address == "" || !slices.Contains(p.addresses(), s.Address)) {
			continue
		}
		if s.Proven {
			proven = append(proven, s)
		} else {
			others = append(others, s)
		}
	}
	return proven, others
}

func (p *path) addresses() []string {
	if p.haveMember != nil {
		return p.haveMember.Addresses
	}
	return p.pod.IPs
}

func (p *path) sidecar() Step {
	id, title := StepSidecar, titles[StepSidecar]
	if s, silent := p.silent(id); silent {
		return s
	}
	proven, others := p.sidecars()
	advice := fmt.Sprintf("does it run the sidecar, and can that reach the NSP? %s; see docs/sidecar.md", p.log())
	switch {
	case len(proven) > 0:
		s := proven[len(proven)-1]
		detail := fmt.Sprintf("for %s, from %s", p.x.lasting(s.Since), orNone(s.Peer, "this host"))
		if len(s.Addresses) > 0 {
			detail += "; reports " + list(s.Addresses)
		}
		return pass(id, title, "%s", detail)
	case p.haveMember == nil:
		return skip(id, title)
	case len(others) > 0:
		return stop(id, title, fmt.Sprintf("somebody at %s watches for it and has not proven to be it", orNone(others[0].Peer, "this host")),
			"is the authorisation of sidecar and NSP the same? the NSP's is "+orNone(p.process.Authorisation, "unknown"))
	case p.target != nil:
		return Step{ID: id, Title: title, Status: Warn, Detail: "none does; the registration was made without",
			Advice: "a Service cannot open or close streams of a target without sidecar; " + advice}
	}
	return stop(id, title, "no sidecar watches for it", advice)
}

func (p *path) told() Step {
	id, title := StepTold, titles[StepTold]
	if s, silent := p.silent(id); silent {
		return s
	}
	proven, _ := p.sidecars()
	if len(proven) == 0 || p.haveMember == nil || !p.haveMember.Assigned {
		return skip(id, title)
	}
	s := proven[len(proven)-1]
	switch {
	case !p.process.Answering:
		return stop(id, title, "the NSP has not read all of its namespaces yet, so it tells nobody anything",
			"wait a moment and ask again; metric nsp_namespace_readable says which namespace it waits for")
	case !s.Told:
		return stop(id, title, "it was sent no list yet", "look at the log of the NSP")
	case !slices.Contains(s.Streams, p.key):
		return stop(id, title, fmt.Sprintf("its last list has %s", orNone(keys(s.Streams), "no stream")), "ask again; else restart the sidecar")
	}
	detail := keys(s.Streams)
	if s.Owners && slices.Contains(s.Application, p.key) {
		detail += "; the application holds the stream too"
	}
	return pass(id, title, "%s", detail)
}

func keys(all []stream.Key) string {
	var names []string
	for _, k := range all {
		names = append(names, k.String())
	}
	return list(names)
}
