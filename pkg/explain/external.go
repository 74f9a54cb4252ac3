package explain

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nordix/meridio-nsp/pkg/pool"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// kindExternal is the kind of targetRefs to ExternalTargets.
const kindExternal = "ExternalTarget"

// asPod is what the steps look at of an ExternalTarget as of a pod.
func (e *ExternalFacts) asPod() *PodFacts {
	pod := &PodFacts{Namespace: e.Namespace, Name: e.Name, UID: e.UID, Labels: e.Labels, Ready: e.Ready > 0}
	for _, a := range e.Confirmed {
		pod.IPs = append(pod.IPs, a.String())
	}
	if ready := e.Conditions["Ready"]; ready.Status != "True" {
		pod.NotReady = ready.Message
	}
	return pod
}

// externalTarget explains an ExternalTarget: one way for each Service that selects it.
func (x *explainer) externalTarget(s Subject) []Path {
	e, first := x.findExternal(s)
	alone := Path{Title: kindExternal + " " + s.Namespace + "/" + s.Name, ExternalTarget: s.Namespace + "/" + s.Name}
	if e == nil {
		alone.Steps = []Step{first}
		return []Path{alone}
	}
	services := x.servicesOf(e.asPod(), kindExternal)
	if len(services) == 0 {
		alone.Steps = []Step{first, x.resolved(e), x.notSelected(e.asPod(), "ExternalTarget")}
		return []Path{alone}
	}
	var paths []Path
	for _, svc := range services {
		paths = append(paths, x.externalPath(svc, e, first))
	}
	return paths
}

func (x *explainer) externalPath(svc ServiceFacts, e *ExternalFacts, first Step) Path {
	p := x.path(svc)
	p.followExternal(e)
	steps := []Step{first, x.resolved(e), pass(StepSelected, titles[StepSelected], "Service %s", svc.Ref)}
	return p.done(slices.Concat(steps, p.serviceSteps(), p.memberSteps()))
}

// findExternal is nil for one that does not exist. Where the cluster says nothing, the name is all that is known.
func (x *explainer) findExternal(s Subject) (*ExternalFacts, Step) {
	id, title := StepExists, titles[StepExists]
	ref := pool.Ref{Namespace: s.Namespace, Name: s.Name}
	if why := orNone(x.f.Cluster.Err, x.f.Cluster.ExternalsErr); why != "" {
		return &ExternalFacts{Target: pool.Target{Ref: ref}}, unknown(id, title, why)
	}
	i := slices.IndexFunc(x.f.Cluster.Externals, func(e ExternalFacts) bool { return e.Ref == ref })
	if i < 0 {
		return nil, stop(id, title, fmt.Sprintf("there is no ExternalTarget %s in namespace %s", s.Name, s.Namespace),
			fmt.Sprintf("look for its name with: kubectl get externaltargets -n %s", s.Namespace))
	}
	e := &x.f.Cluster.Externals[i]
	detail := "source " + orNone(e.Source, "unknown")
	if e.Origin != (pool.Component{}) {
		detail += ": " + e.Origin.String()
	}
	return e, pass(id, title, "%s", detail)
}

// externalOf is the ExternalTarget behind a UID.
func (x *explainer) externalOf(uid string) *ExternalFacts {
	i := slices.IndexFunc(x.f.Cluster.Externals, func(e ExternalFacts) bool { return e.UID == uid && uid != "" })
	if i < 0 {
		return nil
	}
	return &x.f.Cluster.Externals[i]
}

// resolved is what the controller says of the addresses.
func (x *explainer) resolved(e *ExternalFacts) Step {
	id, title := StepResolved, titles[StepResolved]
	if why := orNone(x.f.Cluster.Err, x.f.Cluster.ExternalsErr); why != "" {
		return unknown(id, title, why)
	}
	c, looked := e.Conditions["Resolved"]
	number := "1 address"
	if len(e.Confirmed) != 1 {
		number = fmt.Sprintf("%d addresses", len(e.Confirmed))
	}
	look := fmt.Sprintf("kubectl describe externaltarget -n %s %s", e.Namespace, e.Name)
	switch {
	case !looked || c.Outdated:
		return stop(id, title, "no controller has looked for them", fmt.Sprintf("does nsp controller run, and look at namespace %s? "+
			"see the chart's value controller.enabled and docs/external-targets.md", e.Namespace))
	case c.Status != "True" && len(e.Confirmed) > 0:
		return Step{ID: id, Title: title, Status: Warn, Detail: fmt.Sprintf("%s of before; %s: %s", number, c.Reason, c.Message),
			Advice: "mend the source before they stop to count; " + look}
	case c.Status != "True":
		return stop(id, title, c.Reason+": "+c.Message, "mend the source; "+look)
	case len(e.Confirmed) == 0:
		return stop(id, title, "the source has none", "see to it that the source lists addresses; "+look)
	}
	return pass(id, title, "%s, %d ready", number, e.Ready)
}

// followExternal sets the ExternalTarget whose way it is.
func (p *path) followExternal(e *ExternalFacts) {
	p.external = e
	p.follow(e.asPod())
}

// named asks whether a grant lets the ExternalTarget in: also in the trench's own namespace it needs one.
func (p *path) named() Step {
	id, title := StepNamed, titles[StepNamed]
	if p.key == (stream.Key{}) {
		return skip(id, title)
	}
	why := orNone(p.x.f.Cluster.Err, p.x.f.Cluster.GrantsErr[p.nsp])
	switch {
	case why != "" && p.haveMember != nil:
		return pass(id, title, "as far as the NSP says")
	case why != "":
		return unknown(id, title, why)
	}
	if p.x.f.Cluster.Grants[p.nsp].Permission(p.service.Namespace, p.key).Target(p.external.Name) {
		return pass(id, title, "by a grant in namespace %s", p.nsp)
	}
	s := stop(id, title, fmt.Sprintf("no grant in namespace %s names ExternalTarget %s of namespace %s for stream %s",
		p.nsp, p.external.Name, p.service.Namespace, p.key),
		fmt.Sprintf("ask the owner of trench %s for a TargetGrant with from: [{namespace: %s, externalTargets: [%s]}]; see docs/external-targets.md",
			p.key.Trench, p.service.Namespace, p.external.Name))
	if p.haveMember != nil {
		s.Differs = fmt.Sprintf("the NSP still acts on a grant for ExternalTarget %s that is gone", p.external.Name)
	}
	return s
}

// confirmed compares what the EndpointSlices say with what the status does: only the controller can write that.
func (p *path) confirmed() Step {
	id, title := StepConfirmed, titles[StepConfirmed]
	if why := orNone(p.x.f.Cluster.Err, p.x.f.Cluster.ExternalsErr); why != "" {
		return unknown(id, title, why)
	}
	var listed, strange, others []string
	for _, s := range p.slices {
		for _, e := range s.Endpoints {
			switch {
			case !refersTo(e, kindExternal, p.external.Name):
			case e.Target.UID != p.external.UID:
				others = append(others, s.Name)
			default:
				for _, a := range e.Addresses {
					if listed = append(listed, a); !slices.Contains(p.pod.IPs, a) {
						strange = append(strange, a+" in "+s.Name)
					}
				}
			}
		}
	}
	advice := "the controller writes both: wait a moment; an EndpointSlice that somebody else wrote has to be mended by them"
	switch {
	case len(listed) == 0 && len(others) > 0:
		return stop(id, title, fmt.Sprintf("EndpointSlice %s lists another object of the name, which is gone", list(slices.Compact(others))), advice)
	case len(listed) == 0:
		return skip(id, title)
	case len(strange) == len(listed):
		return stop(id, title, "it does not have "+list(strange), advice)
	case len(strange) > 0:
		return Step{ID: id, Title: title, Status: Warn, Detail: "it does not have " + list(strange) + "; the others count", Advice: advice}
	}
	return pass(id, title, "%s", strings.Join(listed, ", "))
}

// externalUnlisted is why no slice that counts lists the ExternalTarget.
func (p *path) externalUnlisted() Step {
	id, title := StepListed, titles[StepListed]
	switch {
	case !selects(p.service.Selector, p.pod.Labels):
		return stop(id, title, "the Service does not select it any more", "see the selector of the Service and the labels of the ExternalTarget")
	case p.want != nil && len(p.want.Problems) > 0:
		return stop(id, title, list(p.want.Problems), "do what the message says")
	}
	return stop(id, title, "no EndpointSlice with the marker lists it", fmt.Sprintf(
		"the controller writes one: does nsp controller run, and look at namespace %s? see docs/external-targets.md", p.service.Namespace))
}

// refersTo is whether the endpoint stands for that object of its namespace.
func refersTo(e pool.Endpoint, kind, name string) bool {
	return e.Target != nil && e.Target.Kind == kind && e.Target.Name == name
}
