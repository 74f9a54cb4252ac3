package explain

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nordix/meridio-nsp/pkg/pool"
)

// targetPool explains a TargetPool: whether its Service was made, and then that Service.
func (x *explainer) targetPool(s Subject, e *Explanation) {
	own, found := x.targetPoolSteps(s)
	title := "TargetPool " + s.Namespace + "/" + s.Name
	if _, stopped := (Path{Steps: own}).First(Fail); stopped || found == nil {
		e.Paths = []Path{{Title: title, Steps: own}}
		return
	}
	x.service(Subject{Kind: Service, Namespace: s.Namespace, Name: found.Service}, e)
	e.Paths[0].Title = title + ", " + e.Paths[0].Title
	e.Paths[0].Steps = append(own, e.Paths[0].Steps...)
}

func (x *explainer) targetPoolSteps(s Subject) ([]Step, *TargetPoolFacts) {
	id, title := StepExists, titles[StepExists]
	ref := pool.Ref{Namespace: s.Namespace, Name: s.Name}
	if why := orNone(x.f.Cluster.Err, x.f.Cluster.MadeErr); why != "" {
		// The Service has the name of its TargetPool.
		return []Step{unknown(id, title, why)}, &TargetPoolFacts{Ref: ref, Service: s.Name}
	}
	i := slices.IndexFunc(x.f.Cluster.Made, func(t TargetPoolFacts) bool { return t.Ref == ref })
	if i < 0 {
		return []Step{stop(id, title, fmt.Sprintf("there is no TargetPool %s in namespace %s", s.Name, s.Namespace),
			fmt.Sprintf("look for its name with: kubectl get targetpools -n %s", s.Namespace))}, nil
	}
	t := &x.f.Cluster.Made[i]
	return []Step{pass(id, title, "TargetPool %s", t.Ref), x.serviceMade(t)}, t
}

func (x *explainer) serviceMade(t *TargetPoolFacts) Step {
	id, title := StepMade, titles[StepMade]
	c, looked := t.Conditions["Accepted"]
	switch {
	case !looked || c.Outdated:
		return stop(id, title, "no controller has made it", fmt.Sprintf("does nsp controller run, and look at namespace %s? "+
			"see the chart's value controller.enabled and docs/external-targets.md", t.Namespace))
	case c.Status != "True":
		return stop(id, title, c.Reason+": "+c.Message, fmt.Sprintf("give the TargetPool another name, or remove what is in its way; "+
			"kubectl describe targetpool -n %s %s", t.Namespace, t.Name))
	case !slices.ContainsFunc(x.f.Cluster.Services, func(s ServiceFacts) bool {
		return s.Namespace == t.Namespace && s.Name == t.Service && s.OwnerUID == t.UID
	}):
		return stop(id, title, fmt.Sprintf("there is no Service %s that it owns, though its status says so", t.Service),
			"the controller makes it again within moments: look at its log if it does not")
	}
	return pass(id, title, "Service %s", t.Service)
}

// madeFor says whose a Service is that the controller made.
func (p *path) madeFor() Step {
	id, title := StepMade, "the Service was made for "+p.service.MadeFor
	kind, name, _ := strings.Cut(p.service.MadeFor, "/")
	if p.service.Owner != p.service.MadeFor {
		return Step{ID: id, Title: title, Status: Warn, Detail: fmt.Sprintf("its annotation says so, but %s owns it", orNone(p.service.Owner, "nobody")),
			Advice: "take the annotation meridio.nordix.org/made-for away: the controller does not look after this Service"}
	}
	gone := kind == "TargetPool" && p.x.f.Cluster.MadeErr == "" &&
		!slices.ContainsFunc(p.x.f.Cluster.Made, func(t TargetPoolFacts) bool {
			return t.Namespace == p.service.Namespace && t.Name == name && t.UID == p.service.OwnerUID
		})
	if gone {
		return Step{ID: id, Title: title, Status: Warn, Detail: "which is gone, and the Service goes with it", Advice: "make the TargetPool again to keep it"}
	}
	return pass(id, title, "which owns it: change that, not the Service")
}
