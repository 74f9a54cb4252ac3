package explain

import (
	"fmt"
	"slices"
	"strings"
)

// Status is how a step went.
type Status string

// The statuses. Skip is a step that means nothing after an earlier cross.
const (
	Pass    Status = "pass"
	Fail    Status = "fail"
	Warn    Status = "warn"
	Unknown Status = "unknown"
	Skip    Status = "skip"
)

// Step is one step on the way from the label to the load balancer.
type Step struct {
	// ID is a name for scripts, in CamelCase; it does not change.
	ID     string `json:"id"`
	Title  string `json:"title"`
	Status Status `json:"status"`
	Detail string `json:"detail,omitempty"`
	// Advice says what to do, where the step is a cross or a warning.
	Advice string `json:"advice,omitempty"`
	// Differs says where the process and the cluster do not say the same.
	Differs string `json:"differs,omitempty"`
}

// Path is the way of one target in one stream, or of one Service.
type Path struct {
	// Title says what it is about.
	Title   string `json:"title"`
	Service string `json:"service,omitempty"`
	Stream  string `json:"stream,omitempty"`
	Pod     string `json:"pod,omitempty"`
	// ExternalTarget is instead of Pod.
	ExternalTarget string `json:"externalTarget,omitempty"`
	Steps          []Step `json:"steps"`
}

// Count is how many members of a Service passed a step, and who did not.
type Count struct {
	ID     string   `json:"id"`
	Title  string   `json:"title"`
	Passed int      `json:"passed"`
	Failed []string `json:"failed,omitempty"`
}

// Explanation is the answer.
type Explanation struct {
	Subject string `json:"subject"`
	// Works is whether no step is a cross and none that decides is unknown.
	Works bool `json:"works"`
	// Verdict is the answer in one sentence, Advice what to do about the first cross.
	Verdict string `json:"verdict"`
	Advice  string `json:"advice,omitempty"`
	// Stopped is the ID of the first cross.
	Stopped string `json:"stopped,omitempty"`
	Paths   []Path `json:"paths"`
	// Members and Counts are of a Service.
	Members int     `json:"members,omitempty"`
	Counts  []Count `json:"counts,omitempty"`
	// Differences are all that the process and the cluster do not agree on.
	Differences []string `json:"differences,omitempty"`

	// good is the verdict where nothing is wrong and no target is asked for.
	good string
}

// First is the first step of a status; ok is false where there is none.
func (p Path) First(s Status) (Step, bool) {
	i := slices.IndexFunc(p.Steps, func(x Step) bool { return x.Status == s })
	if i < 0 {
		return Step{}, false
	}
	return p.Steps[i], true
}

// Explain explains a subject.
func Explain(s Subject, f Facts) *Explanation {
	x := newExplainer(f)
	e := &Explanation{Subject: s.String()}
	switch s.Kind {
	case Pod:
		e.Paths = x.pod(s)
	case Service:
		x.service(s, e)
	case Target:
		e.Paths = x.target(s)
	case ExternalTarget:
		e.Paths = x.externalTarget(s)
	case TargetPool:
		x.targetPool(s, e)
	case StreamPolicy:
		x.streamPolicy(s, e)
	}
	e.conclude()
	return e
}

// conclude sums up: a subject works where one of its ways does.
func (e *Explanation) conclude() {
	for i := range e.Paths {
		for _, s := range e.Paths[i].Steps {
			if s.Differs != "" && !slices.Contains(e.Differences, s.Differs) {
				e.Differences = append(e.Differences, s.Differs)
			}
		}
	}
	best := e.best()
	if best == nil {
		return
	}
	stop, stopped := best.First(Fail)
	unknown, unsure := best.First(Unknown)
	switch {
	case stopped:
		e.Stopped, e.Advice = stop.ID, stop.Advice
		e.Verdict = fmt.Sprintf("stopped at %q: %s", stop.Title, stop.Detail)
	case unsure:
		e.Verdict = fmt.Sprintf("nothing wrong was found, but %q is not known: %s", unknown.Title, unknown.Detail)
		e.Advice = unknown.Advice
	default:
		e.Works = true
		e.Verdict = orNone(e.good, "takes traffic")
		if e.Members > 0 {
			e.Verdict = fmt.Sprintf("every member takes traffic (%d)", e.Members)
		}
	}
	if others := len(e.Paths) - 1; others > 0 && stopped {
		e.Verdict += fmt.Sprintf(" (%s)", best.Title)
	}
}

// best is the path that tells most: of a Service the first with a cross, else the one that comes furthest.
func (e *Explanation) best() *Path {
	var best *Path
	for i := range e.Paths {
		if best == nil || reach(e.Paths[i]) > reach(*best) {
			best = &e.Paths[i]
		}
	}
	if len(e.Counts) == 0 {
		return best
	}
	for i := range e.Paths {
		if _, stopped := e.Paths[i].First(Fail); stopped {
			return &e.Paths[i]
		}
	}
	return best
}

// reach is how many steps are behind the target before the first cross; all of them and more where there is none.
func reach(p Path) int {
	i := slices.IndexFunc(p.Steps, func(s Step) bool { return s.Status == Fail })
	if i < 0 {
		return len(p.Steps) + 1
	}
	return i
}

func pass(id, title, detail string, args ...any) Step {
	return Step{ID: id, Title: title, Status: Pass, Detail: fmt.Sprintf(detail, args...)}
}

// stop makes a cross of detail and advice.
func stop(id, title, detail, advice string) Step {
	return Step{ID: id, Title: title, Status: Fail, Detail: detail, Advice: advice}
}

func unknown(id, title, why string) Step {
	return Step{ID: id, Title: title, Status: Unknown, Detail: why}
}

func skip(id, title string) Step { return Step{ID: id, Title: title, Status: Skip} }

// list names a few of many.
func list(names []string) string {
	const few = 5
	if len(names) > few {
		return strings.Join(names[:few], ", ") + fmt.Sprintf(" and %d more", len(names)-few)
	}
	return strings.Join(names, ", ")
}

func plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}
