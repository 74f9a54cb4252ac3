package explain

import (
	"fmt"
	"slices"

	"github.com/nordix/meridio-nsp/pkg/pool"
)

// streamPolicy explains a StreamPolicy: whether it is in force, and for how many prefixes.
func (x *explainer) streamPolicy(s Subject, e *Explanation) {
	exists, policy := x.findPolicy(s)
	steps := []Step{exists}
	if policy != nil {
		steps = append(steps, policy.inForce(), policy.sources(), x.enforced(policy))
		e.good = fmt.Sprintf("in force: %s may use stream %s", prefixes(policy.Prefixes), policy.Stream)
	}
	e.Paths = []Path{{Title: "StreamPolicy " + s.Namespace + "/" + s.Name, Steps: steps}}
}

func (x *explainer) findPolicy(s Subject) (Step, *PolicyFacts) {
	id, title := StepExists, titles[StepExists]
	if why := orNone(x.f.Cluster.Err, x.f.Cluster.PoliciesErr); why != "" {
		return unknown(id, title, why), nil
	}
	ref := pool.Ref{Namespace: s.Namespace, Name: s.Name}
	i := slices.IndexFunc(x.f.Cluster.Policies, func(p PolicyFacts) bool { return p.Ref == ref })
	if i < 0 {
		return stop(id, title, fmt.Sprintf("there is no StreamPolicy %s in namespace %s", s.Name, s.Namespace),
			fmt.Sprintf("look for its name with: kubectl get streampolicies -n %s", s.Namespace)), nil
	}
	p := &x.f.Cluster.Policies[i]
	return pass(id, title, "for stream %s", p.Stream), p
}

func (p *PolicyFacts) inForce() Step {
	id, title := StepInForce, titles[StepInForce]
	c, looked := p.Conditions["Accepted"]
	switch {
	case !looked || c.Outdated:
		return stop(id, title, "no controller has resolved it", fmt.Sprintf("does nsp controller run, and look at namespace %s? "+
			"see the chart's value controller.enabled and docs/policy.md", p.Namespace))
	case c.Status != "True":
		return stop(id, title, c.Reason+": "+c.Message, fmt.Sprintf("correct the source that it names; kubectl describe streampolicy -n %s %s", p.Namespace, p.Name))
	}
	return pass(id, title, "%s", c.Reason)
}

// sources is a cross where nobody gets in by this policy: that may be meant, but is what somebody who asks looks for.
func (p *PolicyFacts) sources() Step {
	id, title := StepSources, titles[StepSources]
	c := p.Conditions["Resolved"]
	switch {
	case p.Prefixes == 0:
		return stop(id, title, orNone(c.Message, "no source has an address")+": by this policy nobody gets in",
			fmt.Sprintf("give it a source that has addresses; kubectl describe streampolicy -n %s %s", p.Namespace, p.Name))
	case c.Status != "True":
		return Step{ID: id, Title: title, Status: Warn, Detail: c.Reason + ": " + c.Message}
	}
	return pass(id, title, "%s", prefixes(p.Prefixes))
}

// enforced asks the process, which takes all policies of a stream together.
func (x *explainer) enforced(p *PolicyFacts) Step {
	id, title := StepEnforced, titles[StepEnforced]
	all, known := x.f.Process.Prefixes[p.Stream]
	switch {
	case x.f.Process.Err != "":
		return unknown(id, title, x.f.Process.Err)
	case x.f.Process.Namespace != p.Namespace:
		return stop(id, title, fmt.Sprintf("this NSP serves the streams of namespace %s, the policy is for one of %s", x.f.Process.Namespace, p.Namespace),
			"make the policy in the namespace of the trench, or ask the NSP of that namespace: see --server (of the plugin of kubectl: --nsp-address)")
	case !known:
		s := stop(id, title, "the NSP knows of no policy for the stream", "may it watch streampolicies? see its log, and upgrade the chart where its Role is older")
		s.Differs = fmt.Sprintf("StreamPolicy %s is in force, and the NSP does not have it", p.Ref)
		return s
	}
	return pass(id, title, "%s, of all its policies", prefixes(all))
}

func prefixes(n int) string {
	if n == 1 {
		return "1 prefix"
	}
	return fmt.Sprintf("%d prefixes", n)
}
