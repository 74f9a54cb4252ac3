package explain

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nordix/meridio-nsp/pkg/config"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

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
	var flows []config.Flow
	for _, f := range t.Config.Flows {
		if f.Stream == p.key.Name {
			flows = append(flows, f)
		}
	}
	if len(flows) == 0 {
		return Step{ID: id, Title: title, Status: Warn, Detail: "the stream has no flows, so it gets no traffic", Advice: "make a Flow that names the stream"}
	}
	var missed []string
	for _, port := range p.service.Ports {
		if !slices.ContainsFunc(flows, func(f config.Flow) bool { return meets(port, f) }) {
			missed = append(missed, fmt.Sprintf("%d/%s", port.Port, port.Protocol))
		}
	}
	if len(missed) > 0 {
		return Step{ID: id, Title: title, Status: Warn, Detail: fmt.Sprintf("no flow of the stream takes port %s", list(missed)),
			Advice: "correct the ports of the Service, or the flows; traffic follows the flows, so this only warns"}
	}
	return pass(id, title, "%s of %s", plural(len(p.service.Ports), "port"), plural(len(flows), "flow"))
}

func meets(port Port, f config.Flow) bool {
	if !slices.ContainsFunc(f.Protocols, func(p string) bool { return strings.EqualFold(p, port.Protocol) }) {
		return false
	}
	return slices.ContainsFunc(f.DestinationPortRanges, func(r string) bool { return inRange(port.Port, r) || inRange(port.Target, r) })
}

// inRange reads "80", "80-90" and "any".
func inRange(port uint16, r string) bool {
	if r == "any" {
		return true
	}
	from, to, ok := strings.Cut(strings.TrimSpace(r), "-")
	if !ok {
		to = from
	}
	low, err1 := strconv.ParseUint(from, 10, 16)
	high, err2 := strconv.ParseUint(to, 10, 16)
	return err1 == nil && err2 == nil && port != 0 && low <= uint64(port) && uint64(port) <= high
}
