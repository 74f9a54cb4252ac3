package nft

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Refused says why flows and others could not be programmed, by "flow name", "stream name" and the like.
type Refused map[string]error

// compiler turns what is desired into a program. It keeps what took long to compute.
type compiler struct {
	learn   time.Duration
	tables  tableCache
	classes classCache
}

// compile makes the program of a desired state. shares are who can be reached, by stream; marks are what stands for them.
func (c *compiler) compile(desired *Desired, shares map[string]map[family]share, marks func(string, uint32) uint32) (*Program, Refused) {
	p, refused := newProgram(), Refused{}
	p.addNATs(desired, refused)
	b := &balancer{p, c.learn, marks, c.tables.get}
	streams := map[string]bool{}
	for i := range desired.Streams {
		s := &desired.Streams[i]
		if err := s.check(streams); err != nil {
			refused["stream "+s.Name] = err
			continue
		}
		streams[s.Name] = true
		b.balance(s, shares[s.Name])
		for _, t := range s.Targets {
			if reachable(shares[s.Name], t.Identifier) {
				p.targets[marks(s.Name, t.Identifier)] = targetName(s.Name, t.Identifier)
			}
		}
	}
	c.tables.sweep()
	for _, f := range families {
		s := learnedSet(f, c.learn)
		p.sets[s.Name] = s
	}
	classes := c.classes.get(desired, accepted(desired, streams, refused))
	maps.Copy(p.chains, classes.chains)
	maps.Copy(p.sets, classes.sets)
	p.prune()
	return p, refused
}

func reachable(shares map[family]share, id uint32) bool {
	for _, s := range shares {
		if slices.Contains(s.active, id) || slices.Contains(s.draining, id) {
			return true
		}
	}
	return false
}

// maxTargetsLimit is as many targets as a map of slots is made for.
const maxTargetsLimit = 10000

func (s *Stream) check(known map[string]bool) error {
	switch {
	case s.Name == "" || len(s.Name) > maxName:
		return fmt.Errorf("its name has %d characters", len(s.Name))
	case known[s.Name]:
		return fmt.Errorf("there is another one of that name")
	case s.MaxTargets < 0 || s.MaxTargets > maxTargetsLimit:
		return fmt.Errorf("%d targets are out of range: 1 to %d can be", s.MaxTargets, maxTargetsLimit)
	}
	return nil
}

// accepted are the flows that can be programmed, in order of priority.
func accepted(desired *Desired, streams map[string]bool, refused Refused) []*Flow {
	var flows []*Flow
	names := map[string]bool{}
	for i := range desired.Flows {
		f := &desired.Flows[i]
		err := f.check(streams)
		if err == nil && names[f.Name] {
			err = fmt.Errorf("there is another one of that name")
		}
		if err != nil {
			refused["flow "+f.Name] = err
			continue
		}
		names[f.Name] = true
		flows = append(flows, f)
	}
	slices.SortFunc(flows, byPriority)
	return flows
}

// addBase adds what is there for any desired state.
func (p *Program) addBase() {
	p.add(chainPrerouting, &hook{nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityMangle})
	// Of type route, so that what this machine sends is routed again by its mark.
	p.add(chainOutput, &hook{nftables.ChainTypeRoute, nftables.ChainHookOutput, nftables.ChainPriorityMangle})
	p.add(chainForward, nil,
		newRule(&expr.Meta{Key: expr.MetaKeyMARK, Register: firstRegister}, in(setTargets), &expr.Verdict{Kind: expr.VerdictAccept}),
		p.drop("no-route"))
	p.add(chainDefrag, nil, defragRule(unix.NFPROTO_IPV4), defragRule(unix.NFPROTO_IPV6))
	p.sets[setTargets] = &set{Set: nftables.Set{
		Name: setTargets, KeyType: nftables.TypeMark, KeyByteOrder: binaryutil.NativeEndian, Counter: true,
	}}
}

// defragRule is never run: nobody goes to its chain. That a tproxy statement exists has the kernel put fragments together before
// the chains are called, without tracking connections. Without ports, later fragments could not be classified.
func defragRule(family byte) rule {
	return newRule(append(append(
		equal(&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: firstRegister}, family),
		equal(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: firstRegister}, byte(TCP))...),
		&expr.Immediate{Register: firstRegister, Data: []byte{0, 1}},
		&expr.TProxy{Family: family, TableFamily: unix.NFPROTO_INET, RegPort: firstRegister})...)
}

// prune drops the chains of streams that no flow leads to, and counters that nothing uses.
func (p *Program) prune() {
	used := map[string]bool{chainDefrag: true}
	var visit func(name string)
	visit = func(name string) {
		if c := p.chains[name]; c != nil && !used[name] {
			used[name] = true
			for _, r := range c.rules {
				for _, next := range p.leadsTo(r) {
					visit(next)
				}
			}
		}
	}
	for _, c := range p.chains {
		if c.hook != nil {
			visit(c.name)
		}
	}
	maps.DeleteFunc(p.chains, func(name string, _ *chain) bool { return !used[name] })
	counters := map[string]bool{}
	for _, c := range p.chains {
		for _, r := range c.rules {
			for _, e := range r.exprs {
				if o, ok := e.(*expr.Objref); ok {
					counters[o.Name] = true
				}
			}
		}
	}
	p.counters = counters
}

// leadsTo are the chains that a rule can go to.
func (p *Program) leadsTo(r rule) []string {
	var out []string
	for _, e := range r.exprs {
		switch e := e.(type) {
		case *expr.Verdict:
			out = append(out, e.Chain)
		case *expr.Lookup:
			if s := p.sets[e.SetName]; s != nil {
				for _, element := range s.elements {
					if element.VerdictData != nil {
						out = append(out, element.VerdictData.Chain)
					}
				}
			}
		}
	}
	return out
}
