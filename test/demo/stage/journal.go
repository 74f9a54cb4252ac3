package stage

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// kind is what sort of thing happened.
type kind int

const (
	announced kind = iota // an EndpointSlice says something of a pod
	told                  // a sidecar got a list
	held                  // a sidecar opened or closed a stream
	sends                 // a load balancer changed its mind
	life                  // the nsp came or went, or somebody came back to it
	trouble               // something failed
)

// event is what one party heard or did about one pod.
type event struct {
	at   time.Time
	kind kind
	who  string
	what string // with %s for the pod
	pod  string
}

// journal keeps what happened in one namespace, and which pods each load balancer sends to.
type journal struct {
	mu      sync.Mutex
	events  []event
	sending map[route]map[string]bool
}

// route is a stream at a load balancer.
type route struct{ lb, stream string }

func newJournal() *journal { return &journal{sending: make(map[route]map[string]bool)} }

func (j *journal) add(ev event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.events = append(j.events, ev)
}

// send notes that a load balancer does or does not send to a pod. Only changes count.
func (j *journal) send(at time.Time, r route, pod string, on bool, why string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.sending[r] == nil {
		j.sending[r] = make(map[string]bool)
	}
	if j.sending[r][pod] == on {
		return
	}
	ev := event{at: at, kind: sends, who: r.lb, what: r.stream + " goes to %s", pod: pod}
	if on {
		j.sending[r][pod] = true
	} else {
		delete(j.sending[r], pod)
		ev.what = r.stream + " no longer goes to %s"
		if why != "" {
			ev.what += " (" + why + ")"
		}
	}
	j.events = append(j.events, ev)
}

// receivers are the pods that a load balancer sends a stream to, sorted.
func (j *journal) receivers(r route) []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Sorted(maps.Keys(j.sending[r]))
}

// since returns what happened after t, in order of time.
func (j *journal) since(t time.Time) []event {
	j.mu.Lock()
	defer j.mu.Unlock()
	var out []event
	for _, ev := range j.events {
		if ev.at.After(t) {
			out = append(out, ev)
		}
	}
	slices.SortStableFunc(out, func(a, b event) int { return a.at.Compare(b.at) })
	return out
}

// settle waits until nothing has happened for a while.
func (j *journal) settle(ctx context.Context, while time.Duration) {
	for ctx.Err() == nil && len(j.since(time.Now().Add(-while))) > 0 {
		pause(ctx, while/4)
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// entry is one line of a timeline: events that differ in who and in the pod only.
type entry struct {
	first, last time.Time
	kind        kind
	what        string
	who, pods   []string
}

// entries gathers events, which are in order of time, into lines.
func entries(events []event) []*entry {
	var out []*entry
	lines := make(map[string]*entry)
	for _, ev := range events {
		e := lines[ev.what]
		if e == nil {
			e = &entry{first: ev.at, kind: ev.kind, what: ev.what}
			lines[ev.what] = e
			out = append(out, e)
		}
		e.last = ev.at
		if !slices.Contains(e.who, ev.who) {
			e.who = append(e.who, ev.who)
		}
		if !slices.Contains(e.pods, ev.pod) {
			e.pods = append(e.pods, ev.pod)
		}
	}
	for _, e := range out {
		slices.Sort(e.who)
		slices.Sort(e.pods)
	}
	return out
}

func (e *entry) text() string {
	if !strings.Contains(e.what, "%s") {
		return e.what
	}
	return fmt.Sprintf(e.what, strings.Join(e.pods, ", "))
}

// when is the time, or the span, since t.
func (e *entry) when(t time.Time) string {
	first, last := e.first.Sub(t), e.last.Sub(t)
	if last-first < 100*time.Microsecond {
		return "+" + millis(first) + " ms"
	}
	return "+" + millis(first) + ".." + millis(last) + " ms"
}

// millis are milliseconds with as many digits as are of interest.
func millis(d time.Duration) string {
	ms := float64(d) / float64(time.Millisecond)
	if ms >= 1000 {
		return fmt.Sprintf("%.0f", ms)
	}
	return fmt.Sprintf("%.1f", ms)
}

// timeline writes events with their time since t.
func (s *screen) timeline(t time.Time, events []event) {
	colours := map[kind]style{announced: dim, told: blue, held: blue, sends: bold, trouble: red}
	for _, e := range entries(events) {
		prefix := fmt.Sprintf("     %-17s %-17s ", e.when(t), strings.Join(e.who, " "))
		s.text(prefix, colours[e.kind], e.text())
	}
}
