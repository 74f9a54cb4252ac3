package pool

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Port is one of a Service's ports. Target is the port of the pod where that is a number, else 0.
type Port struct {
	Protocol       string
	Number, Target uint16
}

// Flow is what a stream receives: protocols, and destination ports as "80" or "8000-8010". Empty lists are all.
type Flow struct {
	Name             string
	Protocols, Ports []string
}

func (f Flow) accepts(p Port) bool {
	is := func(protocol string) bool { return strings.EqualFold(protocol, p.Protocol) }
	if len(f.Protocols) > 0 && !slices.ContainsFunc(f.Protocols, is) {
		return false
	}
	return len(f.Ports) == 0 || slices.ContainsFunc(f.Ports, func(r string) bool {
		return inRange(r, p.Number) || p.Target != 0 && inRange(r, p.Target)
	})
}

// inRange gives a range that it does not understand the benefit of the doubt: that is for whoever reads the configuration.
func inRange(ports string, n uint16) bool {
	first, last, isRange := strings.Cut(ports, "-")
	if !isRange {
		last = first
	}
	low, err1 := strconv.ParseUint(strings.TrimSpace(first), 10, 16)
	high, err2 := strconv.ParseUint(strings.TrimSpace(last), 10, 16)
	return err1 != nil || err2 != nil || uint64(n) >= low && uint64(n) <= high
}

// Unmet names the ports of a Service to which no flow of the stream sends anything. Without flows, or without ports, there is
// nothing to say: a headless Service needs none.
func Unmet(ports []Port, flows []Flow) []string {
	var unmet []string
	for _, p := range ports {
		if len(flows) > 0 && !slices.ContainsFunc(flows, func(f Flow) bool { return f.accepts(p) }) {
			unmet = append(unmet, fmt.Sprintf("%s %d", p.Protocol, p.Number))
		}
	}
	return unmet
}
