package stage

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// flip is a change of a pod's readiness.
type flip struct {
	pod   string
	ready bool
}

func (f flip) to() string {
	if f.ready {
		return "Ready"
	}
	return "NotReady"
}

// stages are the times of a flip since the patch of the pod's status. Without the fast path a sidecar stands between the
// cluster and the load balancers; with it, told and held are zero. The old load balancer hears by way of its trench process, and
// is neither the first nor the last.
type stages struct {
	slice, told, held, first, last, old time.Duration
}

// all is when every load balancer has heard.
func (s stages) all() time.Duration { return max(s.last, s.old) }

// flipResult is a flip with and without the fast path.
type flipResult struct {
	flip    flip
	on, off stages
}

// stagesOf reads the stages of a flip that began at a time from the journal; ok tells whether it is over.
func (s *side) stagesOf(f flip, began time.Time, sidecar bool) (out stages, ok bool) {
	heard := make(map[string]bool)
	for _, ev := range s.journal.since(began) {
		if ev.pod != f.pod {
			continue
		}
		at := ev.at.Sub(began)
		switch ev.kind {
		case announced:
			out.slice = at
		case told:
			out.told = at
		case held:
			out.held = at
		case sends:
			heard[ev.who] = true
			out.hears(ev.who, at)
		}
	}
	ok = out.slice > 0 && len(heard) == len(s.lbs) && (!sidecar || out.told > 0 && out.held > 0)
	return out, ok
}

func (s *stages) hears(lb string, at time.Duration) {
	if lb == oldLB {
		s.old = at
		return
	}
	if s.first == 0 {
		s.first = at
	}
	s.last = at
}

// compare makes the flip in blue that was made in red, and shows the stages of both.
func (w *world) compare(ctx context.Context, f flip) error {
	r := flipResult{flip: f}
	wait := func(s *side, began time.Time, sidecar bool, out *stages) error {
		err := w.await(ctx, func(context.Context, *world) (ok bool) {
			*out, ok = s.stagesOf(f, began, sidecar)
			return ok
		})
		if err != nil {
			return fmt.Errorf("pod %s turns %s in %s: waiting until all have heard: %w", f.pod, f.to(), s.name, err)
		}
		return nil
	}
	if err := wait(w.red, w.began, false, &r.on); err != nil {
		return err
	}
	began := time.Now()
	if err := setReady(f.pod, f.ready)(ctx, w.blue); err != nil {
		return err
	}
	if err := wait(w.blue, began, true, &r.off); err != nil {
		return err
	}
	w.blue.journal.settle(ctx, 50*time.Millisecond)
	w.flips = append(w.flips, r)
	w.screen.flip(r)
	return nil
}

// flip writes the stages of a flip.
func (s *screen) flip(r flipResult) {
	done := "stream closed"
	if r.flip.ready {
		done = "stream open"
	}
	const row = "     %-24s %13s %12s %13s %8s %8s %8s"
	s.line(s.paint(dim, fmt.Sprintf(row, "ms since status patch", "EndpointSlice", "sidecar", done, "first LB", "last LB", oldLB)))
	for _, side := range []struct {
		name string
		stages
	}{{"red   fast path on", r.on}, {"blue  fast path off", r.off}} {
		s.line(fmt.Sprintf(row, side.name, cell(side.slice), cell(side.told), cell(side.held), cell(side.first), cell(side.last),
			cell(side.old)))
	}
}

// cell is a time, or a dash where there is none.
func cell(d time.Duration) string {
	if d == 0 {
		return "-"
	}
	return millis(d)
}

// summary writes the medians of all flips.
func (w *world) summary() {
	w.screen.line("")
	w.screen.text("", bold, fmt.Sprintf("Medians of %d flips in ms, with and without the fast path", len(w.flips)))
	for _, to := range []bool{false, true} {
		var on, off []stages
		for _, r := range w.flips {
			if r.flip.ready == to {
				on, off = append(on, r.on), append(off, r.off)
			}
		}
		w.screen.summary(flip{ready: to}, on, off)
	}
	w.screen.text("  ", dim, "Without the fast path a real TAPA also tears down or sets up an interface at each flip; "+
		"the one here does not, and it is on the same machine.")
	w.screen.line("")
}

func (s *screen) summary(f flip, on, off []stages) {
	const row = "  %-46s %10s %10s %8s"
	s.line(s.paint(dim, fmt.Sprintf(row, fmt.Sprintf("a pod turns %s (%d times)", f.to(), len(on)), "on", "off", "ratio")))
	for _, r := range []struct {
		what  string
		of    func(stages) time.Duration
		ratio bool // not where the fast path makes no difference
	}{
		{"pod status patch -> EndpointSlice event", func(s stages) time.Duration { return s.slice }, false},
		{"EndpointSlice event -> first load balancer", func(s stages) time.Duration { return s.first - s.slice }, true},
		{"EndpointSlice event -> last load balancer", func(s stages) time.Duration { return s.last - s.slice }, true},
		{"EndpointSlice event -> lb-old, by its trench", func(s stages) time.Duration { return s.old - s.slice }, true},
		{"pod status patch -> all load balancers", stages.all, true},
	} {
		a, b := median(on, r.of), median(off, r.of)
		slower := ""
		if r.ratio {
			slower = ratio(a, b)
		}
		s.line(strings.TrimRight(fmt.Sprintf(row, r.what, millis(a), millis(b), slower), " "))
	}
}

// ratio is how much longer b is than a.
func ratio(a, b time.Duration) string {
	if a <= 0 {
		return "-"
	}
	return fmt.Sprintf("%.1fx", float64(b)/float64(a))
}

func median(all []stages, of func(stages) time.Duration) time.Duration {
	var values []time.Duration
	for _, s := range all {
		values = append(values, of(s))
	}
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}
