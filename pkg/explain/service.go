package explain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nordix/meridio-nsp/pkg/config"
	"github.com/nordix/meridio-nsp/pkg/pool"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// unread is the step where the cluster could not be read.
func (p *path) unread(id string) (Step, bool) {
	if why := p.x.f.Cluster.Err; why != "" {
		return unknown(id, titles[id], why), true
	}
	return Step{}, false
}

// silent is the step where the process says nothing.
func (p *path) silent(id string) (Step, bool) {
	switch {
	case p.process != nil:
		return Step{}, false
	case p.x.f.Process.Err != "":
		return unknown(id, titles[id], "the NSP did not answer"), true
	}
	return skip(id, titles[id]), true
}

func (p *path) marker() Step {
	if s, unread := p.unread(StepMarker); unread {
		return s
	}
	value, is := p.service.Labels[pool.LabelMarker]
	switch {
	case value == pool.MarkerValue:
		return pass(StepMarker, titles[StepMarker], "label %s=%s", pool.LabelMarker, pool.MarkerValue)
	case is:
		return stop(StepMarker, titles[StepMarker], fmt.Sprintf("its label %s says %q", pool.LabelMarker, value),
			fmt.Sprintf("kubectl label service -n %s %s --overwrite %s=%s", p.service.Namespace, p.service.Name, pool.LabelMarker, pool.MarkerValue))
	}
	return stop(StepMarker, titles[StepMarker], "it bears no label "+pool.LabelMarker,
		fmt.Sprintf("kubectl label service -n %s %s %s=%s", p.service.Namespace, p.service.Name, pool.LabelMarker, pool.MarkerValue))
}

func (p *path) labels() Step {
	if s, unread := p.unread(StepLabels); unread {
		return s
	}
	switch {
	case p.want == nil:
		return skip(StepLabels, titles[StepLabels])
	case p.want.Reason == pool.ReasonIncompleteLabels || p.want.Reason == pool.ReasonInvalidLabels:
		return stop(StepLabels, titles[StepLabels], p.want.Message, fmt.Sprintf(
			"kubectl label service -n %s %s --overwrite %s=TRENCH %s=CONDUIT %s=STREAM", p.service.Namespace, p.service.Name,
			pool.LabelTrench, pool.LabelConduit, pool.LabelStream))
	}
	return pass(StepLabels, titles[StepLabels], "%s", p.key)
}

func (p *path) kind() Step {
	if s, unread := p.unread(StepType); unread {
		return s
	}
	switch {
	case p.want == nil:
		return skip(StepType, titles[StepType])
	case p.want.Reason == pool.ReasonUnsupportedType:
		return stop(StepType, titles[StepType], "type ExternalName has no endpoints",
			"make the Service headless: spec.type ClusterIP, spec.clusterIP None")
	}
	return pass(StepType, titles[StepType], "%s", p.service.Type)
}

func (p *path) servedHere() Step {
	f := p.x.f.Process
	switch {
	case f.Err != "":
		s := unknown(StepNSP, titles[StepNSP], f.Err)
		s.Advice = "see --server (of the plugin of kubectl: --nsp-address); nothing below can be told without the NSP"
		return s
	case p.x.f.Cluster.Err == "" && p.want == nil:
		return skip(StepNSP, titles[StepNSP])
	case f.Namespace != p.nsp:
		return stop(StepNSP, titles[StepNSP], fmt.Sprintf("the NSP that answered serves namespace %s, the stream is of namespace %s", f.Namespace, p.nsp),
			fmt.Sprintf("ask the NSP of namespace %s, or set label %s to the namespace of the trench", p.nsp, pool.LabelNamespace))
	}
	return pass(StepNSP, titles[StepNSP], "namespace %s", f.Namespace)
}

// permitted asks the cluster's grants, and then what the process makes of them.
func (p *path) permitted() Step {
	id, title := StepPermitted, titles[StepPermitted]
	if p.key == (stream.Key{}) {
		return skip(id, title)
	}
	if p.service.Namespace == p.nsp {
		return pass(id, title, "it is the trench's own namespace")
	}
	if granted, known := p.granted(); known {
		return p.permittedBy(granted)
	}
	switch {
	case p.have == nil:
		return unknown(id, title, orNone(p.x.f.Cluster.GrantsErr[p.nsp], p.x.f.Cluster.Err))
	case p.have.Reason == pool.ReasonNotPermitted:
		return stop(id, title, p.have.Message, p.askForGrant())
	}
	return pass(id, title, "as far as the NSP says")
}

func (p *path) askForGrant() string {
	return fmt.Sprintf("ask the owner of trench %s for a TargetGrant in namespace %s that names namespace %s: see docs/permissions.md",
		p.key.Trench, p.nsp, p.service.Namespace)
}

// permittedBy compares what the cluster grants with what the process makes of it.
func (p *path) permittedBy(granted bool) Step {
	id, title := StepPermitted, titles[StepPermitted]
	var s Step
	switch refused := p.have != nil && p.have.Reason == pool.ReasonNotPermitted; {
	case granted && refused:
		s = stop(id, title, "there is a grant, and the NSP has not taken it in", "look at the log of the NSP: may it watch TargetGrants?")
		s.Differs = fmt.Sprintf("the cluster has a grant for namespace %s that the NSP does not know", p.service.Namespace)
	case granted:
		s = pass(id, title, "by a grant in namespace %s", p.nsp)
	default:
		s = stop(id, title, fmt.Sprintf("nothing in namespace %s grants namespace %s stream %s", p.nsp, p.service.Namespace, p.key), p.askForGrant())
		if p.have != nil && p.have.Accepted {
			s.Differs = fmt.Sprintf("the NSP still acts on a grant for namespace %s that is gone", p.service.Namespace)
		}
	}
	return s
}

func (p *path) granted() (granted, known bool) {
	c := p.x.f.Cluster
	if c.Err != "" || c.GrantsErr[p.nsp] != "" {
		return false, false
	}
	return c.Grants[p.nsp].Permission(p.service.Namespace, p.key).Granted(), true
}

func (p *path) streamExists() Step {
	id, title := StepStream, titles[StepStream]
	if s, unread := p.unread(id); unread {
		return s
	}
	if p.key == (stream.Key{}) {
		return skip(id, title)
	}
	name := fmt.Sprintf("ConfigMap %s/%s", p.nsp, config.MapName(p.key.Trench))
	t, ok := p.x.f.Cluster.Trenches[TrenchName{p.nsp, p.key.Trench}]
	switch {
	case !ok || t.Err != "":
		return unknown(id, title, orNone(t.Err, name+" was not read"))
	case t.Config == nil:
		return stop(id, title, fmt.Sprintf("there is no %s", name),
			fmt.Sprintf("is there a trench %s in namespace %s? correct the label %s of the Service, or make the Trench", p.key.Trench, p.nsp, pool.LabelTrench))
	case slices.Contains(t.Malformed, config.KeyStreams):
		return stop(id, title, fmt.Sprintf("the key streams of the %s is malformed", name), "mend it; the log of the NSP says what is wrong")
	}
	var there []string
	for _, s := range t.Config.Streams {
		if s.Conduit == p.key.Conduit && s.Name == p.key.Name {
			return pass(id, title, "max-targets %d", stream.MaxTargets(s.MaxTargets))
		}
		there = append(there, s.Conduit+"/"+s.Name)
	}
	return stop(id, title, fmt.Sprintf("the %s has no stream %s in conduit %s", name, p.key.Name, p.key.Conduit),
		fmt.Sprintf("it has %s; correct the labels %s and %s of the Service, or make the Stream", orNone(list(there), "none"), pool.LabelConduit, pool.LabelStream))
}

// behind is how long the API server may have been silent before the process counts as behind: bookmarks come about once a minute.
const behind = 5 * time.Minute

func (p *path) read() Step {
	id, title := StepRead, titles[StepRead]
	if s, silent := p.silent(id); silent {
		return s
	}
	n, watched := p.process.Namespaces[p.service.Namespace]
	switch {
	case p.process.Namespaces == nil:
		return unknown(id, title, "the NSP does not say which namespaces it watches")
	case !watched:
		return stop(id, title, fmt.Sprintf("the NSP does not watch namespace %s", p.service.Namespace),
			"add it to the target namespaces of the NSP: see --target-namespaces and the chart's value serviceFication.targetNamespaces")
	case n.Err != "" && !n.Synced:
		return stop(id, title, n.Err, fmt.Sprintf(
			"let the NSP's ServiceAccount list and watch services and endpointslices in namespace %s: see docs/permissions.md", p.service.Namespace))
	case !n.Synced:
		return stop(id, title, "it is still being read", "wait a moment and ask again; see the log of the NSP if it stays so")
	case n.Err != "":
		return Step{ID: id, Title: title, Status: Warn, Detail: "what was read is kept, but now: " + n.Err,
			Advice:  "look after the API server, or the Role of the NSP",
			Differs: fmt.Sprintf("the NSP cannot read namespace %s and goes by what it read %s ago", p.service.Namespace, n.Age.Round(time.Second))}
	case n.Age > behind:
		return Step{ID: id, Title: title, Status: Warn, Detail: fmt.Sprintf("the API server has said nothing for %s", n.Age.Round(time.Second)),
			Advice:  "look after the connection of the NSP to the API server",
			Differs: fmt.Sprintf("the NSP has heard nothing of namespace %s for %s", p.service.Namespace, n.Age.Round(time.Second))}
	}
	return pass(id, title, "the API server was heard %s ago", n.Age.Round(time.Second))
}

func (p *path) accepted() Step {
	id, title := StepAccepted, titles[StepAccepted]
	if s, silent := p.silent(id); silent {
		return s
	}
	if p.have == nil {
		if p.want == nil {
			return skip(id, title)
		}
		s := stop(id, title, "the NSP does not know the Service as a pool", "wait a moment and ask again; else look at the log of the NSP")
		s.Differs = fmt.Sprintf("Service %s bears the marker and the NSP does not have it", p.service.Ref)
		return s
	}
	s := p.judgement()
	if p.want != nil && (p.have.Stream != p.want.Stream || p.have.UID != p.want.UID) {
		s.Differs = fmt.Sprintf("the NSP has Service %s with stream %s, the cluster with %s", p.service.Ref, p.have.Stream, p.want.Stream)
	}
	return s
}

func (p *path) judgement() Step {
	id, title := StepAccepted, titles[StepAccepted]
	switch {
	case !p.have.Accepted:
		return stop(id, title, p.have.Reason+": "+p.have.Message, "do what the message says; the condition Accepted in the status of the Service has it too")
	case len(p.have.Problems) > 0:
		return Step{ID: id, Title: title, Status: Warn, Detail: list(p.have.Problems), Advice: "mend these endpoints; the others count"}
	case p.have.Panic:
		return Step{ID: id, Title: title, Status: Warn, Detail: "too few members are ready, so all that are not terminating count as active",
			Advice: "make members ready, or see annotation " + pool.AnnotationPanicThreshold}
	}
	return pass(id, title, "assignment by %s", orNone(p.have.Assignment, string(pool.ByMembership)))
}

func (p *path) sliced() Step {
	id, title := StepSlices, titles[StepSlices]
	if s, unread := p.unread(id); unread {
		return s
	}
	if p.want == nil {
		return skip(id, title)
	}
	var unmarked []string
	for _, s := range p.slices {
		if !s.Marked {
			unmarked = append(unmarked, s.Name)
		}
	}
	switch {
	case len(p.slices) == 0 && len(p.service.Selector) == 0:
		return stop(id, title, "the Service has no selector and no EndpointSlice",
			"give it a selector, or make an EndpointSlice with the labels kubernetes.io/service-name and "+pool.LabelMarker)
	case len(p.slices) == 0:
		return stop(id, title, "there is no EndpointSlice of the Service", "is the endpointslice controller running? see kube-controller-manager")
	case len(unmarked) == len(p.slices):
		return stop(id, title, fmt.Sprintf("%s bear no label %s", list(unmarked), pool.LabelMarker),
			fmt.Sprintf("the controller copies the label within moments; hand-made slices need: kubectl label endpointslice -n %s %s %s=%s",
				p.service.Namespace, unmarked[0], pool.LabelMarker, pool.MarkerValue))
	case len(unmarked) > 0:
		return Step{ID: id, Title: title, Status: Warn, Detail: fmt.Sprintf("%s bear no label %s", list(unmarked), pool.LabelMarker),
			Advice: "slices without the label do not count"}
	}
	return pass(id, title, "%s", plural(len(p.slices), "EndpointSlice"))
}

// current compares the versions of the slices.
func (p *path) current() Step {
	id, title := StepCurrent, titles[StepCurrent]
	if s, silent := p.silent(id); silent {
		return s
	}
	if p.x.f.Cluster.Err != "" || p.have == nil {
		return skip(id, title)
	}
	var late []string
	for _, s := range p.slices {
		have, known := p.have.Slices[s.Name]
		switch {
		case s.Marked && !known:
			late = append(late, fmt.Sprintf("the NSP does not have EndpointSlice %s", s.Name))
		case s.Marked && have < s.Version:
			late = append(late, fmt.Sprintf("the NSP has version %d of EndpointSlice %s, the cluster %d", have, s.Name, s.Version))
		}
	}
	for name := range p.have.Slices {
		if !slices.ContainsFunc(p.slices, func(s SliceFacts) bool { return s.Name == name && s.Marked }) {
			late = append(late, fmt.Sprintf("the NSP has EndpointSlice %s, which is gone or has lost its marker", name))
		}
	}
	slices.Sort(late)
	if len(late) == 0 {
		return pass(id, title, "it has the versions that the cluster has")
	}
	return Step{ID: id, Title: title, Status: Warn, Detail: list(late), Differs: strings.Join(late, "; "),
		Advice: "a moment is normal: ask again; else the NSP has lost the API server, see metric nsp_namespace_state_age_seconds"}
}

// ports is a warning at most: Kubernetes demands ports of a Service, and here they are informative.
func (p *path) ports() Step {
	id, title := StepPorts, titles[StepPorts]
	if s, unread := p.unread(id); unread {
		return s
	}
	t := p.x.f.Cluster.Trenches[TrenchName{p.nsp, p.key.Trench}]
	if p.key == (stream.Key{}) || t.Config == nil {
		return skip(id, title)
	}
	var flows []pool.Flow
	for _, f := range t.Config.Flows {
		if f.Stream == p.key.Name {
			flows = append(flows, pool.Flow{Name: f.Name, Protocols: f.Protocols, Ports: f.DestinationPortRanges})
		}
	}
	unmet := pool.Unmet(p.service.Ports, flows)
	switch {
	case len(flows) == 0:
		return Step{ID: id, Title: title, Status: Warn, Detail: "the stream has no flows, so it gets no traffic", Advice: "make a Flow that names the stream"}
	case len(unmet) > 0:
		return Step{ID: id, Title: title, Status: Warn, Detail: "no flow of the stream takes port " + list(unmet),
			Advice: "correct the ports of the Service, or the flows; traffic follows the flows, so this only warns"}
	}
	return pass(id, title, "%s of the Service, %s of the stream", plural(len(p.service.Ports), "port"), plural(len(flows), "flow"))
}
