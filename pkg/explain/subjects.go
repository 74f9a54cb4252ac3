package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nordix/meridio-nsp/pkg/pool"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// lasting is for people how long something lasts, without more precision than they need.
func (x *explainer) lasting(t time.Time) string {
	d := x.f.Now.Sub(t)
	switch {
	case t.IsZero():
		return "an unknown time"
	case d < 0:
		return "a moment"
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

// service explains a Service by its own steps, and by those of its members: counts, and the first that is stopped.
func (x *explainer) service(s Subject, e *Explanation) {
	svc, first := x.findService(s)
	if first.Status == Fail {
		e.Paths = []Path{{Title: "Service " + s.Namespace + "/" + s.Name, Steps: []Step{first}}}
		return
	}
	p := x.path(svc)
	own := []Step{first}
	if svc.MadeFor != "" {
		own = append(own, p.madeFor())
	}
	own = append(own, p.serviceSteps()...)
	pods, externals := x.members(p), x.externals(p)
	own = append(own, p.members(len(pods)+len(externals)))
	e.Paths = []Path{p.done(own)}
	if _, stopped := e.Paths[0].First(Fail); stopped || len(pods)+len(externals) == 0 {
		return
	}
	e.Members = len(pods) + len(externals)
	var ways []Path
	for i := range pods {
		w := x.path(svc)
		w.follow(&pods[i])
		ways = append(ways, w.done(w.memberSteps()))
	}
	for _, o := range externals {
		w := x.path(svc)
		w.followExternal(o)
		ways = append(ways, w.done(append([]Step{x.resolved(o)}, w.memberSteps()...)))
	}
	e.Counts = count(ways)
	for _, w := range ways {
		if _, stopped := w.First(Fail); stopped {
			e.Paths = append(e.Paths, w)
			return
		}
	}
	e.Paths = append(e.Paths, ways[0])
}

func (x *explainer) findService(s Subject) (ServiceFacts, Step) {
	id, title := StepExists, titles[StepExists]
	ref := pool.Ref{Namespace: s.Namespace, Name: s.Name}
	if x.f.Cluster.Err != "" {
		if x.havePool(ref) == nil {
			return ServiceFacts{}, stop(id, title, fmt.Sprintf("the NSP has no pool %s", ref),
				"make the API server readable for this command: see --kubeconfig and --context")
		}
		return ServiceFacts{Service: pool.Service{Ref: ref}}, unknown(id, title, x.f.Cluster.Err)
	}
	i := slices.IndexFunc(x.f.Cluster.Services, func(f ServiceFacts) bool { return f.Ref == ref })
	if i < 0 {
		return ServiceFacts{}, stop(id, title, fmt.Sprintf("there is no Service %s in namespace %s", s.Name, s.Namespace),
			fmt.Sprintf("look for its name with: kubectl get services -n %s", s.Namespace))
	}
	svc := x.f.Cluster.Services[i]
	return svc, pass(id, title, "selector %s", orNone(selectorText(svc.Selector), "none: only its EndpointSlices count"))
}

// members are the pods of a Service: those that it selects, and those that it lists besides; sorted by name.
func (x *explainer) members(p *path) []PodFacts {
	var pods []PodFacts
	known := func(namespace, name, uid string) bool {
		return slices.ContainsFunc(pods, func(o PodFacts) bool {
			return o.Namespace == namespace && o.Name == name && (uid == "" || o.UID == uid)
		})
	}
	for _, pod := range x.f.Cluster.Pods {
		ended := pod.Phase == "Succeeded" || pod.Phase == "Failed"
		if pod.Namespace == p.service.Namespace && !ended && (selects(p.service.Selector, pod.Labels) || x.lists(p.service.Ref, "Pod", pod.Name)) {
			pods = append(pods, pod)
		}
	}
	if p.have != nil {
		for _, m := range p.have.Members {
			if m.Pod != "" && !m.External && !known(m.Namespace, m.Pod, m.UID) {
				pods = append(pods, PodFacts{Namespace: m.Namespace, Name: m.Pod, UID: m.UID, IPs: m.Addresses})
			}
		}
	}
	slices.SortStableFunc(pods, func(a, b PodFacts) int { return cmp.Compare(a.Name, b.Name) })
	return pods
}

// externals are the ExternalTargets of a Service: those that it selects, and those that it lists besides; sorted by name.
func (x *explainer) externals(p *path) (found []*ExternalFacts) {
	for i, e := range x.f.Cluster.Externals {
		if e.Namespace == p.service.Namespace && (selects(p.service.Selector, e.Labels) || x.lists(p.service.Ref, kindExternal, e.Name)) {
			found = append(found, &x.f.Cluster.Externals[i])
		}
	}
	slices.SortFunc(found, func(a, b *ExternalFacts) int { return a.Compare(b.Ref) })
	return found
}

// members counts those that are followed, and the addresses that nobody is known to be behind.
func (p *path) members(followed int) Step {
	id, title := StepMembers, titles[StepMembers]
	bare := 0
	if p.have != nil {
		for _, m := range p.have.Members {
			if m.Pod == "" || m.External && p.x.f.Cluster.ExternalsErr != "" {
				bare++
			}
		}
	}
	switch {
	case p.want == nil && p.have == nil:
		return skip(id, title)
	case followed+bare > 0:
		return pass(id, title, "%s", plural(followed+bare, "member"))
	case len(p.service.Selector) > 0:
		return stop(id, title, "no pod and no ExternalTarget matches the selector "+selectorText(p.service.Selector), "start pods with these labels, or correct the selector")
	}
	return stop(id, title, "its EndpointSlices list nothing that counts", "put endpoints with a targetRef to a pod into them; others need a grant for external targets")
}

// count sums up the steps of many ways, and names who failed. What is no step of a way is passed there. The steps of the longest way
// come first: that of an ExternalTarget has some that pods have not.
func count(ways []Path) []Count {
	var counts []Count
	at := make(map[string]int)
	longest := slices.MaxFunc(ways, func(a, b Path) int { return cmp.Compare(len(a.Steps), len(b.Steps)) })
	for _, w := range append([]Path{longest}, ways...) {
		for _, s := range w.Steps {
			if _, known := at[s.ID]; !known {
				at[s.ID] = len(counts)
				counts = append(counts, Count{ID: s.ID, Title: s.Title, Passed: len(ways)})
			}
		}
	}
	for _, w := range ways {
		for _, s := range w.Steps {
			c := &counts[at[s.ID]]
			if s.Status == Fail {
				c.Failed = append(c.Failed, orNone(w.Pod, w.ExternalTarget))
			}
			if s.Status != Pass && s.Status != Warn {
				c.Passed--
			}
		}
	}
	return counts
}

// target explains an address from behind: who registered it, whose it is, and then the way of that pod.
func (x *explainer) target(s Subject) []Path {
	id, title := StepAddress, titles[StepAddress]
	if x.f.Process.Err != "" {
		u := unknown(id, title, x.f.Process.Err)
		u.Advice = "see --server (of the plugin of kubectl: --nsp-address); registrations are known to the NSP alone"
		return []Path{{Title: s.String(), Steps: []Step{u}}}
	}
	var paths []Path
	for i, t := range x.f.Process.Targets {
		if slices.ContainsFunc(t.Addresses, func(text string) bool { return sameAddr(text, s.Addr) }) {
			paths = append(paths, x.targetPath(&x.f.Process.Targets[i]))
		}
	}
	if len(paths) == 0 {
		paths = x.waitingAt(s.Addr)
	}
	if len(paths) > 0 {
		return paths
	}
	for _, pod := range x.f.Cluster.Pods {
		if slices.ContainsFunc(pod.IPs, func(text string) bool { return sameAddr(text, s.Addr) }) {
			note := Step{ID: id, Title: title, Status: Warn, Detail: fmt.Sprintf("it is the primary address of pod %s/%s; here is the way of that pod", pod.Namespace, pod.Name)}
			ways := x.pod(Subject{Kind: Pod, Namespace: pod.Namespace, Name: pod.Name})
			for i := range ways {
				ways[i].Steps = append([]Step{note}, ways[i].Steps...)
			}
			return ways
		}
	}
	return []Path{{Title: s.String(), Steps: []Step{x.nobody(s)}}}
}

func (x *explainer) nobody(s Subject) Step {
	id, title := StepAddress, titles[StepAddress]
	for _, sc := range x.f.Process.Sidecars {
		if slices.ContainsFunc(sc.Addresses, func(text string) bool { return sameAddr(text, s.Addr) }) {
			return stop(id, title, fmt.Sprintf("nobody registered it; the sidecar of pod %s reports it", orNone(sc.Pod, sc.Address)),
				fmt.Sprintf("ask for that pod: explain pod/%s", sc.Pod))
		}
	}
	return stop(id, title, "nobody registered it, and no pod of the namespace bears it",
		"targets register addresses of the secondary network: see nsp targets. A registration that was not refreshed for --entry-timeout is gone")
}

func (x *explainer) targetPath(t *TargetFacts) Path {
	first := pass(StepAddress, titles[StepAddress], "in stream %s, from %s", t.Stream, orNone(t.Peer, "an unknown caller"))
	bound := pass(StepBound, titles[StepBound], "pod %s: %s", t.Pod, bindings[t.Binding])
	namespace, name, _ := strings.Cut(t.Pod, "/")
	if t.Binding == "" || t.Pod == "" {
		return x.orphan(t, first)
	}
	steps := []Step{first, bound}
	if e := x.externalOf(t.PodUID); e != nil {
		return x.externalTargetPath(t, e, first)
	}
	pod, exists := x.findPod(Subject{Kind: Pod, Namespace: namespace, Name: name})
	switch svc, ok := x.serviceFor(t, pod, "Pod"); {
	case pod == nil && len(x.f.Cluster.Pods) > 0:
		return Path{Title: "target " + list(t.Addresses), Stream: t.Stream.String(), Pod: t.Pod, Steps: append(steps, exists)}
	case !ok:
		return x.orphan(t, first, bound)
	default:
		way := x.podPath(svc, pod, exists)
		way.Title = "target " + list(t.Addresses) + ", " + way.Title
		way.Steps = append(steps, way.Steps...)
		return way
	}
}

// externalTargetPath is the way of a registration that is an ExternalTarget's.
func (x *explainer) externalTargetPath(t *TargetFacts, e *ExternalFacts, first Step) Path {
	bound := pass(StepBound, titles[StepBound], "ExternalTarget %s: %s", e.Ref, bindings[t.Binding])
	svc, ok := x.serviceFor(t, e.asPod(), kindExternal)
	if !ok {
		return x.orphan(t, first, bound)
	}
	way := x.externalPath(svc, e, pass(StepExists, titles[StepExists], "source %s", e.Source))
	way.Title = "target " + list(t.Addresses) + ", " + way.Title
	way.Steps = append([]Step{first, bound}, way.Steps...)
	return way
}

// serviceFor is the Service of the registration's stream that has the pod.
func (x *explainer) serviceFor(t *TargetFacts, pod *PodFacts, kind string) (ServiceFacts, bool) {
	if pod == nil {
		return ServiceFacts{}, false
	}
	for _, s := range x.servicesOf(pod, kind) {
		if p := x.path(s); p.key == t.Stream {
			return s, true
		}
	}
	return ServiceFacts{}, false
}

// orphan is the way of a registration that no Service stands behind.
func (x *explainer) orphan(t *TargetFacts, steps ...Step) Path {
	p := &path{x: x, key: t.Stream, nsp: t.Stream.Namespace, process: &x.f.Process, target: t, pod: &PodFacts{}}
	p.pod.Namespace, p.pod.Name, _ = strings.Cut(t.Pod, "/")
	if t.Binding == "" {
		steps = append(steps, p.unbound())
	}
	if t.Listed || t.Reason == "LeftPool" {
		steps = append(steps, stop(StepListed, titles[StepListed], "no Service of the stream has it as a member any more",
			"the pod's TAPA closes the stream; put the pod back into the Service to use it again"))
	}
	steps = append(steps, p.run([]step{(*path).number, (*path).enabled, (*path).state, (*path).balancers})...)
	return Path{Title: "target " + list(t.Addresses) + ", stream " + t.Stream.String(), Stream: t.Stream.String(), Pod: t.Pod, Steps: steps}
}

// unbound is a cross only where Services drive the stream: a TAPA of Meridio 1.x may register on its own.
func (p *path) unbound() Step {
	id, title := StepBound, titles[StepBound]
	driven := slices.ContainsFunc(p.process.Pools, func(o PoolFacts) bool { return o.Stream == p.key && o.Accepted })
	s := Step{ID: id, Title: title, Status: Warn, Detail: "no pod is known for it, so readiness does not count",
		Advice: "a sidecar that reports the address, or a call from the pod's own address, binds it"}
	if !driven && p.key != (stream.Key{}) {
		s.Detail, s.Advice = "no pod is known for it, and no Service drives the stream: the application registered on its own", ""
		s.Status = Pass
	}
	return s
}
