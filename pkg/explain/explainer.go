package explain

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nordix/meridio-nsp/pkg/pool"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// explainer has the facts, and what the rules make of those of the cluster.
type explainer struct {
	f Facts
	// tables hold what an NSP of that namespace should conclude from the cluster as it is: the process may be behind.
	tables map[string]*pool.Table
}

func newExplainer(f Facts) *explainer {
	x := &explainer{f: f, tables: make(map[string]*pool.Table)}
	for _, s := range f.Cluster.Services {
		x.table(nspOf(s))
	}
	return x
}

// nspOf is the namespace of the NSP that a Service speaks to.
func nspOf(s ServiceFacts) string { return cmp.Or(s.Labels[pool.LabelNamespace], s.Namespace) }

func (x *explainer) table(nsp string) *pool.Table {
	if t, ok := x.tables[nsp]; ok {
		return t
	}
	t := pool.New(pool.Config{Namespace: nsp, Cluster: x.f.Process.Cluster, Grants: x.f.Cluster.Grants[nsp]})
	for _, s := range x.f.Cluster.Services {
		t.SetService(s.Service)
	}
	for _, s := range x.f.Cluster.Slices {
		if s.Marked {
			t.SetSlice(s.Slice)
		}
	}
	for _, e := range x.f.Cluster.Externals {
		t.SetTarget(e.Target)
	}
	for _, p := range x.f.Cluster.Pods {
		t.SetAccount(pool.MemberKey{Namespace: p.Namespace, UID: p.UID}, p.Account)
	}
	t.Flush()
	x.tables[nsp] = t
	return t
}

// path is one way while it is followed.
type path struct {
	x       *explainer
	service ServiceFacts
	slices  []SliceFacts
	// nsp is the namespace of the NSP, key the stream; zero where the labels name none.
	nsp string
	key stream.Key
	// want is the Service as it should be understood, have as the process understands it; nil where there is none.
	want *pool.Pool
	have *PoolFacts
	// process is nil where it did not answer, or is of another namespace.
	process *ProcessFacts

	// pod is who is followed; external is set where that is an ExternalTarget.
	pod        *PodFacts
	external   *ExternalFacts
	wantMember *pool.PoolMember
	haveMember *MemberFacts
	target     *TargetFacts
}

func (x *explainer) path(s ServiceFacts) *path {
	p := &path{x: x, service: s, nsp: nspOf(s)}
	for _, sl := range x.f.Cluster.Slices {
		if sl.Namespace == s.Namespace && sl.Service == s.Name {
			p.slices = append(p.slices, sl)
		}
	}
	p.have = x.havePool(s.Ref)
	if x.f.Cluster.Err == "" {
		p.want = x.table(p.nsp).Pool(s.Ref)
	} else if p.have != nil {
		p.nsp, p.key = p.have.Stream.Namespace, p.have.Stream
	}
	if p.want != nil {
		p.key = p.want.Stream
	}
	if x.f.Process.Err == "" && x.f.Process.Namespace == p.nsp {
		p.process = &x.f.Process
	}
	return p
}

func (x *explainer) havePool(r pool.Ref) *PoolFacts {
	i := slices.IndexFunc(x.f.Process.Pools, func(p PoolFacts) bool { return p.Ref == r })
	if i < 0 {
		return nil
	}
	return &x.f.Process.Pools[i]
}

// follow sets the pod whose way it is.
func (p *path) follow(pod *PodFacts) {
	p.pod = pod
	if p.want != nil {
		for _, m := range p.x.table(p.nsp).PoolMembers(p.service.Ref) {
			if m.Key.UID == pod.UID && pod.UID != "" || m.Name == pod.Name && pod.UID == "" {
				p.wantMember = &m
			}
		}
	}
	if p.have != nil {
		for i, m := range p.have.Members {
			if m.Pod == pod.Name && m.External == (p.external != nil) && (pod.UID == "" || m.UID == pod.UID) {
				p.haveMember = &p.have.Members[i]
			}
		}
	}
	p.target = p.findTarget()
}

// findTarget is the pod's registration in the stream: the one that takes traffic where there are several.
func (p *path) findTarget() *TargetFacts {
	if p.process == nil || p.key == (stream.Key{}) {
		return nil
	}
	var best *TargetFacts
	for i, t := range p.process.Targets {
		if t.Stream == p.key && p.owns(t) && (best == nil || t.State == stateActive) {
			best = &p.process.Targets[i]
		}
	}
	return best
}

func (p *path) owns(t TargetFacts) bool {
	if p.pod.UID != "" {
		return t.PodUID == p.pod.UID
	}
	return t.Pod == p.pod.Namespace+"/"+p.pod.Name
}

func (p *path) title() string {
	title := "Service " + p.service.Ref.String()
	if p.key != (stream.Key{}) {
		title += ", stream " + p.key.String()
	}
	return title
}

func (p *path) done(steps []Step) Path {
	out := Path{Title: p.title(), Service: p.service.Ref.String(), Steps: steps}
	if p.key != (stream.Key{}) {
		out.Stream = p.key.String()
	}
	switch {
	case p.external != nil:
		out.ExternalTarget = p.external.Ref.String()
		out.Title = "ExternalTarget " + out.ExternalTarget + ", " + out.Title
	case p.pod != nil:
		out.Pod = p.pod.Namespace + "/" + p.pod.Name
		out.Title = "pod " + out.Pod + ", " + out.Title
	}
	return out
}

// noun is for sentences about who is followed.
func (p *path) noun() string {
	if p.external != nil {
		return "ExternalTarget " + p.pod.Name
	}
	return "pod " + p.pod.Name
}

// log is where to look for what the sidecar of who is followed says.
func (p *path) log() string {
	if p.external != nil {
		return "the log of its sidecar"
	}
	return fmt.Sprintf("kubectl logs -n %s %s -c tapa", p.pod.Namespace, p.pod.Name)
}

// pod explains a pod: one way for each Service that selects it.
func (x *explainer) pod(s Subject) []Path {
	pod, first := x.findPod(s)
	if first.Status == Fail {
		return []Path{{Title: "pod " + s.Namespace + "/" + s.Name, Pod: s.Namespace + "/" + s.Name, Steps: []Step{first}}}
	}
	services := x.servicesOf(pod, "Pod")
	if len(services) == 0 {
		return []Path{{
			Title: "pod " + s.Namespace + "/" + s.Name, Pod: s.Namespace + "/" + s.Name, Steps: []Step{first, x.notSelected(pod, "pod")},
		}}
	}
	var paths []Path
	for _, svc := range services {
		paths = append(paths, x.podPath(svc, pod, first))
	}
	return paths
}

func (x *explainer) podPath(svc ServiceFacts, pod *PodFacts, first Step) Path {
	p := x.path(svc)
	p.follow(pod)
	steps := []Step{first, pass(StepSelected, titles[StepSelected], "Service %s", svc.Ref)}
	return p.done(slices.Concat(steps, p.serviceSteps(), p.memberSteps()))
}

func (x *explainer) findPod(s Subject) (*PodFacts, Step) {
	id, title := StepExists, titles[StepExists]
	if x.f.Cluster.Err != "" {
		pod := &PodFacts{Namespace: s.Namespace, Name: s.Name}
		return pod, unknown(id, title, x.f.Cluster.Err)
	}
	i := slices.IndexFunc(x.f.Cluster.Pods, func(p PodFacts) bool { return p.Namespace == s.Namespace && p.Name == s.Name })
	if i < 0 {
		return nil, stop(id, title, fmt.Sprintf("there is no pod %s in namespace %s", s.Name, s.Namespace),
			fmt.Sprintf("look for its name with: kubectl get pods -n %s", s.Namespace))
	}
	pod := &x.f.Cluster.Pods[i]
	if pod.Phase == "Succeeded" || pod.Phase == "Failed" {
		return pod, stop(id, title, fmt.Sprintf("the pod has ended: its phase is %s", pod.Phase), "start it again; a pod that has ended is no target")
	}
	state := pod.Phase
	if pod.Terminating {
		state += ", terminating"
	}
	return pod, pass(id, title, "%s; %s", state, orNone(strings.Join(pod.IPs, ", "), "no address yet"))
}

func orNone(s, none string) string {
	if s == "" {
		return none
	}
	return s
}

// servicesOf are the Services that select the pod, or object of another kind, or whose slices list it. Ordinary ones count only where
// there are no others.
func (x *explainer) servicesOf(pod *PodFacts, kind string) []ServiceFacts {
	var marked, ordinary []ServiceFacts
	for _, s := range x.f.Cluster.Services {
		switch {
		case s.Namespace != pod.Namespace || !selects(s.Selector, pod.Labels) && !x.lists(s.Ref, kind, pod.Name):
		case s.Labels[pool.LabelMarker] == pool.MarkerValue:
			marked = append(marked, s)
		case s.Labels[pool.LabelTrench] != "" || s.Labels[pool.LabelConduit] != "" || s.Labels[pool.LabelStream] != "":
			marked = append(marked, s)
		default:
			ordinary = append(ordinary, s)
		}
	}
	if x.f.Cluster.Err != "" {
		for _, p := range x.f.Process.Pools {
			if slices.ContainsFunc(p.Members, func(m MemberFacts) bool {
				return m.Namespace == pod.Namespace && m.Pod == pod.Name && m.External == (kind == kindExternal)
			}) {
				marked = append(marked, ServiceFacts{Service: pool.Service{Ref: p.Ref}})
			}
		}
	}
	if len(marked) > 0 {
		return marked
	}
	return ordinary
}

func (x *explainer) lists(r pool.Ref, kind, name string) bool {
	return slices.ContainsFunc(x.f.Cluster.Slices, func(s SliceFacts) bool {
		return s.Namespace == r.Namespace && s.Service == r.Name && slices.ContainsFunc(s.Endpoints, func(e pool.Endpoint) bool { return refersTo(e, kind, name) })
	})
}

// selects follows Kubernetes: an empty selector of a Service selects nothing.
func selects(selector, labels map[string]string) bool {
	for k, v := range selector {
		if have, ok := labels[k]; !ok || have != v {
			return false
		}
	}
	return len(selector) > 0
}

func (x *explainer) notSelected(pod *PodFacts, noun string) Step {
	id, title := StepSelected, titles[StepSelected]
	if x.f.Cluster.Err != "" {
		return stop(id, title, "the NSP has no pool with this "+noun, "make the API server readable for this command: see --kubeconfig and --context")
	}
	var missed []string
	for _, s := range x.f.Cluster.Services {
		if s.Labels[pool.LabelMarker] == pool.MarkerValue && len(s.Selector) > 0 {
			missed = append(missed, fmt.Sprintf("%s wants %s", s.Name, selectorText(s.Selector)))
		}
	}
	advice := "make a Service that selects it: see docs/first-service.md"
	if len(missed) > 0 {
		advice = fmt.Sprintf("give the %[3]s the labels that a Service selects; here %[1]s, and the %[3]s has %[2]s", list(missed), orNone(selectorText(pod.Labels), "none"), noun)
	}
	return stop(id, title, "no Service of its namespace selects the "+noun, advice)
}

func selectorText(selector map[string]string) string {
	var parts []string
	for k, v := range selector {
		parts = append(parts, k+"="+v)
	}
	slices.Sort(parts)
	return strings.Join(parts, ",")
}

// sameAddr compares what may be written as an address or as a CIDR.
func sameAddr(text string, a netip.Addr) bool {
	if p, err := netip.ParsePrefix(text); err == nil {
		return p.Addr().Unmap() == a
	}
	b, err := netip.ParseAddr(text)
	return err == nil && b.Unmap() == a
}
