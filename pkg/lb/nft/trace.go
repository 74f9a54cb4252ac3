package nft

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// Trace is the way of a packet and why it takes it.
type Trace struct {
	// Steps are in the order in which they are taken.
	Steps []Step `json:"steps"`
	// Forwarded says whether a target gets the packet.
	Forwarded bool   `json:"forwarded"`
	Flow      string `json:"flow,omitempty"`
	Stream    string `json:"stream,omitempty"`
	// Slot of Slots is where the hash of the connection points to.
	Slot  uint32 `json:"slot,omitempty"`
	Slots uint32 `json:"slots,omitempty"`
	// Before says that the table from before a drain decided.
	Before bool `json:"before,omitempty"`
	// Identifier of the target, the mark that stands for it, and the next hop.
	Identifier uint32 `json:"identifier,omitempty"`
	Mark       uint32 `json:"mark,omitempty"`
	Via        string `json:"via,omitempty"`
	// Why is the reason of a drop, or of leaving the packet alone.
	Why string `json:"why,omitempty"`
	// TargetPort is the destination port that the target sees, where it is another one.
	TargetPort uint16 `json:"targetPort,omitempty"`
}

// Step is one thing that happens.
type Step struct {
	Chain string `json:"chain"`
	Text  string `json:"text"`
}

// Trace follows a packet through what the kernel has now, which need not be what is desired.
func (p *Plane) Trace(packet Packet) (*Trace, error) {
	k := newKernel(p.cfg)
	conn, err := k.open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.CloseLasting() }()
	if exists, err := k.exists(conn); err != nil || !exists {
		return &Trace{Why: "there is no table " + p.cfg.Table}, err
	}
	t, err := follow(&kernelRules{kernel: k, conn: conn, sets: map[string]*kernelSet{}}, packet)
	if err != nil || !t.Forwarded {
		return t, err
	}
	return t, p.traceRoute(t, packet)
}

// traceRoute adds what the routes do with the mark.
func (p *Plane) traceRoute(t *Trace, packet Packet) error {
	h, err := p.router.read()
	if err != nil {
		return err
	}
	f := ipv4
	if packet.Destination.Unmap().Is6() {
		f = ipv6
	}
	via, ok := h.nextHop(t.Mark, f)
	switch rules := h.rules[hop{t.Mark, f}]; {
	case rules == 0:
		t.Forwarded, t.Why = false, fmt.Sprintf("no rule leads from the mark %#x to its routing table", t.Mark)
	case !ok:
		t.Forwarded, t.Why = false, fmt.Sprintf("the routing table %d has no route but the blackhole", t.Mark)
	default:
		t.Via = via.String()
		t.Steps = append(t.Steps, Step{"routing", fmt.Sprintf("mark %#x -> table %d -> via %v", t.Mark, t.Mark, via)})
	}
	return nil
}

// follow runs the rules and writes down what matters.
func follow(r rules, packet Packet) (*Trace, error) {
	h, err := packet.headers()
	if err != nil {
		return nil, err
	}
	t := &Trace{}
	m := &machine{rules: r, packet: h, see: t.see}
	verdict, err := m.run(chainPrerouting)
	if err != nil {
		return nil, err
	}
	t.Forwarded, t.Mark = verdict == expr.VerdictAccept && m.packet.mark != 0, m.packet.mark
	if verdict == expr.VerdictAccept && !t.Forwarded {
		t.Why = "the destination is no VIP, or it is not for the load balancer to answer"
	}
	if t.Forwarded {
		t.translate(m, packet)
	}
	return t, nil
}

// translate runs the port translation, which may not be there.
func (t *Trace) translate(m *machine, packet Packet) {
	if _, err := m.run(chainNAT); err != nil || packet.Quoted {
		return
	}
	if port := binary.BigEndian.Uint16(m.packet.transport[2:]); port != packet.DestinationPort {
		t.TargetPort = port
		t.Steps = append(t.Steps, Step{chainNAT, fmt.Sprintf("the destination port becomes %d", port)})
	}
}

func (t *Trace) see(chain string, e expr.Any, m *machine) {
	say := func(format string, args ...any) { t.Steps = append(t.Steps, Step{chain, fmt.Sprintf(format, args...)}) }
	switch e := e.(type) {
	case *expr.Objref:
		if flow, ok := strings.CutPrefix(e.Name, "flow."); ok {
			t.Flow = flow
			say("flow %s takes it", flow)
		} else if why, ok := strings.CutPrefix(e.Name, "drop."); ok {
			t.Why = reason(why)
			say("dropped: %s", t.Why)
		}
	case *expr.Hash:
		t.Slot, t.Slots = m.slot, e.Modulus
	case *expr.Lookup:
		t.lookedUp(e, m, say)
	}
}

func (t *Trace) lookedUp(e *expr.Lookup, m *machine, say func(string, ...any)) {
	_, isSlots := slotsSize(e.SetName)
	switch {
	case isSlots:
		t.Before = strings.HasPrefix(e.SetName, "before")
		t.Stream = strings.SplitN(e.SetName, ".", 3)[2]
		say("stream %s: slot %d of %d in %s has mark %#x", t.Stream, t.Slot, t.Slots, e.SetName, binary.NativeEndian.Uint32(m.found.Val))
	case strings.HasPrefix(e.SetName, "learned"):
		say("the connection began during a drain and was learned in %s", e.SetName)
	case e.SetName == setTargets:
		t.Stream, t.Identifier, _ = parseTarget(m.found.Comment)
		say("mark %#x is target %d of stream %s", m.packet.mark, t.Identifier, t.Stream)
	case m.verdict != nil && m.verdict.Chain != "":
		say("%s -> %s", e.SetName, m.verdict.Chain)
	default:
		say("is in %s", e.SetName)
	}
}

func reason(why string) string {
	switch {
	case why == "no-flow":
		return "no flow of the VIP matches"
	case why == "no-route":
		return "the mark is that of no target"
	case why == "icmp":
		return "an ICMP packet that belongs to no flow"
	case strings.HasPrefix(why, "no-target."):
		return "stream " + strings.TrimPrefix(why, "no-target.") + " has no target for it"
	}
	return why
}

// kernelRules reads what it is asked for.
type kernelRules struct {
	kernel *kernel
	conn   *nftables.Conn
	sets   map[string]*kernelSet
}

type kernelSet struct {
	interval bool
	elements []nftables.SetElement
}

func (k *kernelRules) chain(name string) ([][]expr.Any, error) {
	rules, err := k.conn.GetRules(k.kernel.table, &nftables.Chain{Name: name})
	if err != nil {
		return nil, fmt.Errorf("reading the chain %s: %w", name, err)
	}
	var out [][]expr.Any
	for _, r := range rules {
		out = append(out, r.Exprs)
	}
	return out, nil
}

func (k *kernelRules) find(name string, key []byte) (nftables.SetElement, bool, error) {
	s, err := k.set(name)
	if err != nil {
		return nftables.SetElement{}, false, err
	}
	e, found := findIn(s.elements, s.interval, key)
	if v, ok := parseVerdict(e.Val); found && ok {
		e.VerdictData = v
	}
	return e, found, nil
}

func (k *kernelRules) set(name string) (*kernelSet, error) {
	if s := k.sets[name]; s != nil {
		return s, nil
	}
	set, err := k.conn.GetSetByName(k.kernel.table, name)
	if err != nil {
		return nil, fmt.Errorf("reading the set %s: %w", name, err)
	}
	elements, err := k.conn.GetSetElements(set)
	if err != nil {
		return nil, fmt.Errorf("reading the set %s: %w", name, err)
	}
	s := &kernelSet{set.Interval, elements}
	k.sets[name] = s
	return s, nil
}

// parseVerdict reads the value of a map of verdicts, which the library leaves as attributes: the code, and the chain if there is one.
func parseVerdict(b []byte) (*expr.Verdict, bool) {
	const header = 4
	if len(b) < 2*header || binary.NativeEndian.Uint16(b) != 2*header {
		return nil, false
	}
	v := &expr.Verdict{Kind: expr.VerdictKind(int32(binary.BigEndian.Uint32(b[header:])))}
	if rest := b[2*header:]; len(rest) > header {
		v.Chain = strings.TrimRight(string(rest[header:]), "\x00")
	}
	return v, true
}
