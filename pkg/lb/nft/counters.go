package nft

import "strings"

// Counters are what the kernel has counted since it was told to count it. They outlive this process.
type Counters struct {
	// Flows by name.
	Flows map[string]Count
	// Targets that packets were sent to.
	Targets map[TargetRef]Count
	// Drops by reason; "no-target.stream" is what a stream could not forward.
	Drops map[string]Count
}

// Counters reads all of them. It can be called at any time, from any goroutine.
func (p *Plane) Counters() (Counters, error) {
	c := Counters{Flows: map[string]Count{}, Targets: map[TargetRef]Count{}, Drops: map[string]Count{}}
	k := newKernel(p.cfg)
	conn, err := k.open()
	if err != nil {
		return c, err
	}
	defer func() { _ = conn.CloseLasting() }()
	if exists, err := k.exists(conn); err != nil || !exists {
		return c, err
	}
	counters, err := k.counters(conn)
	if err != nil {
		return c, err
	}
	for name, n := range counters {
		if flow, ok := strings.CutPrefix(name, "flow."); ok {
			c.Flows[flow] = n
		} else if why, ok := strings.CutPrefix(name, "drop."); ok {
			c.Drops[why] = n
		}
	}
	targets, err := k.targetCounts(conn)
	for name, n := range targets {
		if stream, id, ok := parseTarget(name); ok {
			c.Targets[TargetRef{stream, id}] = n
		}
	}
	return c, err
}
