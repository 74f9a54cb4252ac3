package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// waiting is whoever waits for an identifier in the name of the pod, or ExternalTarget, that is followed.
func (p *path) waiting() *Waiting {
	for i, w := range p.process.Waiting {
		if w.Stream == p.key && p.owns(TargetFacts{Pod: w.Pod, PodUID: w.PodUID}) {
			return &p.process.Waiting[i]
		}
	}
	return nil
}

// waits says why somebody has no identifier yet, and who comes first.
func (p *path) waits(id string, w *Waiting) Step {
	title := titles[id]
	if !p.process.Trenches[p.key.Trench].Read {
		return stop(id, title, fmt.Sprintf("%s waits for an identifier, and the NSP has not read how many trench %s has", list(w.Addresses), p.key.Trench),
			"wait a moment and ask again; else look at the log of the NSP")
	}
	others, preferred := 0, 0
	for _, o := range p.process.Waiting {
		if o.Stream == p.key && !slices.Equal(o.Addresses, w.Addresses) {
			others++
			if o.Preferred && !w.Preferred {
				preferred++
			}
		}
	}
	detail := fmt.Sprintf("%s waits for an identifier: all %d of the stream are taken", list(w.Addresses), p.limit())
	if others > 0 {
		detail += fmt.Sprintf("; %d more wait", others)
	}
	if preferred > 0 {
		detail += fmt.Sprintf(", and %d of them come first, because they are ready", preferred)
	}
	return stop(id, title, detail, "raise max-targets of the Stream, or take targets away; it gets an identifier by itself when one is free")
}

// waitingAt are those that wait with the address.
func (x *explainer) waitingAt(addr netip.Addr) (paths []Path) {
	for i, w := range x.f.Process.Waiting {
		if !slices.ContainsFunc(w.Addresses, func(text string) bool { return sameAddr(text, addr) }) {
			continue
		}
		p := &path{x: x, key: w.Stream, nsp: w.Stream.Namespace, process: &x.f.Process, pod: &PodFacts{}}
		p.pod.Namespace, p.pod.Name, _ = strings.Cut(w.Pod, "/")
		steps := []Step{p.waits(StepRegister, &x.f.Process.Waiting[i])}
		paths = append(paths, Path{Title: "target " + list(w.Addresses) + ", stream " + w.Stream.String(), Stream: w.Stream.String(), Pod: w.Pod, Steps: steps})
	}
	return paths
}
