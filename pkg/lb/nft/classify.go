package nft

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// The chains that always exist.
const (
	chainPrerouting = "prerouting"
	chainOutput     = "output"
	chainDefrag     = "defrag"
	chainNAT        = "nat"
	chainForward    = "forward"
)

// classifier makes the chains that find the flow of a packet.
//
//	prerouting --VIP--> v4.<digest> --protocol--> ps4.<digest> --port--> fs4.<flow>.<digest> ---> s4.<stream>
//	                        |                         \--several flows--> ls4.<digest> --/
//	                        \--ICMP--> error or echo, which do the same with other offsets
type classifier struct {
	*Program
	flows []*Flow // in order of priority; spans refer to them by index
	// known are chains that were made already, by what they were made of.
	known map[string]string
}

func (c *classifier) classify(desired *Desired) {
	for _, f := range families {
		c.addVIPs(f, desired)
	}
}

// addVIPs has each VIP of a family lead to the flows that have it.
func (c *classifier) addVIPs(f family, desired *Desired) {
	var spans []span
	for _, p := range f.only(desired.VIPs) {
		spans = append(spans, prefixSpan(p, nobody))
	}
	for i, flow := range c.flows {
		for _, p := range f.only(flow.VIPs) {
			spans = append(spans, prefixSpan(p, i))
		}
	}
	// The set exists without VIPs too: that makes the base chains the same for both families.
	name := c.addSet("vips"+string('0'+byte(f)), addressSet(f, nftables.TypeVerdict), intervals(flatten(spans), func(s span) *expr.Verdict {
		return goTo(c.vipChain(f, flowsOf(s)))
	}))
	for base, guards := range map[string][]expr.Any{chainPrerouting: nil, chainOutput: c.onlyICMP(f)} {
		rules := append(equal(&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: firstRegister}, byte(f.netlink())), guards...)
		v := view{direct, f}
		rules = append(rules, v.destination().load(firstRegister), vmap(name))
		c.chains[base].rules = append(c.chains[base].rules, newRule(rules...))
	}
}

// onlyICMP is for what this machine sends itself: errors about packets of targets that it could not forward.
func (c *classifier) onlyICMP(f family) []expr.Any {
	protocol, _, _, _ := f.icmp()
	return equal(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: firstRegister}, protocol)
}

// nobody is the member of a range of VIPs that no flow has.
const nobody = -1

func flowsOf(s span) []int {
	return slices.DeleteFunc(slices.Clone(s.members), func(i int) bool { return i == nobody })
}

func addressSet(f family, data nftables.SetDatatype) nftables.Set {
	s := nftables.Set{Interval: true, KeyType: nftables.TypeIPAddr}
	if f == ipv6 {
		s.KeyType = nftables.TypeIP6Addr
	}
	if data == nftables.TypeVerdict {
		s.IsMap, s.DataType = true, data
	}
	return s
}

// vmap looks up a verdict for what is in the first register.
func vmap(set string) expr.Any {
	return &expr.Lookup{SourceRegister: firstRegister, DestRegister: unix.NFT_REG_VERDICT, IsDestRegSet: true, SetName: set}
}

// in holds if the first register is in a set.
func in(set string) expr.Any { return &expr.Lookup{SourceRegister: firstRegister, SetName: set} }

// once makes a chain that is made of the same things only once.
func (c *classifier) once(kind string, of any, make func() string) string {
	key := fmt.Sprint(kind, of)
	if name, ok := c.known[key]; ok {
		return name
	}
	name := make()
	c.known[key] = name
	return name
}

// vipChain tells protocols apart.
func (c *classifier) vipChain(f family, flows []int) string {
	return c.once("vip", []any{f, flows}, func() string {
		v := view{direct, f}
		protocol, _, _, _ := f.icmp()
		rules := append(c.byProtocol(v, flows), newRule(append(
			equal(v.protocol(firstRegister), protocol), goTo(c.icmpChain(f, flows)))...), c.drop("no-flow"))
		return c.addDigested("v"+string('0'+byte(f)), rules...)
	})
}

// byProtocol leads to the ports of each protocol that a flow has.
func (c *classifier) byProtocol(v view, flows []int) []rule {
	var elements []nftables.SetElement
	for _, p := range Protocols {
		if has := c.with(p, flows, v); len(has) > 0 {
			elements = append(elements, nftables.SetElement{Key: []byte{byte(p)}, VerdictData: goTo(c.portChain(v, p, has))})
		}
	}
	if len(elements) == 0 {
		return nil
	}
	name := c.addSet("protocols", nftables.Set{IsMap: true, KeyType: nftables.TypeInetProto, DataType: nftables.TypeVerdict}, elements)
	return []rule{newRule(v.protocol(firstRegister), vmap(name))}
}

// with are the flows that can match a protocol in a view. Bytes of a layer 4 header say nothing about a quoted packet, which goes the
// other way, so flows that compare them get no ICMP errors. Sources of one family only match that family.
func (c *classifier) with(p Protocol, flows []int, v view) []int {
	return slices.DeleteFunc(slices.Clone(flows), func(i int) bool {
		f := c.flows[i]
		return !slices.Contains(f.protocols(), p) || len(f.ByteMatches) > 0 && !f.comparesOnly(p, v) || !f.sourcesAllow(v.family)
	})
}

// comparesOnly says whether all byte matches of the flow can be tried on a protocol in a view.
func (f *Flow) comparesOnly(p Protocol, v view) bool {
	return v.kind == direct && !slices.ContainsFunc(f.ByteMatches, func(m ByteMatch) bool { return m.Protocol != p })
}

func (f *Flow) sourcesAllow(fam family) bool {
	return len(f.Sources) == 0 || len(fam.only(f.Sources)) > 0
}

// portChain tells destination ports apart.
func (c *classifier) portChain(v view, p Protocol, flows []int) string {
	return c.once("port", []any{v, p, flows}, func() string {
		var spans []span
		for _, i := range flows {
			for _, r := range orAny(c.flows[i].DestinationPorts) {
				spans = append(spans, portSpan(r, i))
			}
		}
		flat := flatten(spans)
		if everything(flat, "\x00\x00") {
			return c.flowList(v, flat[0].members)
		}
		name := c.addSet("ports", nftables.Set{
			IsMap: true, Interval: true, KeyType: nftables.TypeInetService, DataType: nftables.TypeVerdict,
		}, intervals(flat, func(s span) *expr.Verdict { return goTo(c.flowList(v, s.members)) }))
		return c.addDigested("p"+v.prefix(), newRule(v.destinationPort().load(firstRegister), vmap(name)), c.drop("no-flow"))
	})
}

func orAny(ranges []PortRange) []PortRange {
	if len(ranges) == 0 {
		return []PortRange{{0, 65535}}
	}
	return ranges
}

// flowList tries flows in order of priority, as far as the first that has no more conditions.
func (c *classifier) flowList(v view, flows []int) string {
	return c.once("list", []any{v, flows}, func() string {
		var rules []rule
		for _, i := range flows {
			conditions := c.conditions(v, c.flows[i])
			if len(conditions) == 0 {
				if len(rules) == 0 {
					return c.flowChain(v, c.flows[i])
				}
				return c.addDigested("l"+v.prefix(), append(rules, newRule(goTo(c.flowChain(v, c.flows[i]))))...)
			}
			rules = append(rules, newRule(append(conditions, goTo(c.flowChain(v, c.flows[i])))...))
		}
		return c.addDigested("l"+v.prefix(), append(rules, c.drop("no-flow"))...)
	})
}

// conditions are those of a flow beyond VIP, protocol and destination port.
func (c *classifier) conditions(v view, f *Flow) []expr.Any {
	var out []expr.Any
	var sources []span
	for _, p := range v.family.only(f.Sources) {
		sources = append(sources, prefixSpan(p, 0))
	}
	if flat := flatten(sources); len(flat) > 0 && !everything(flat, string(make([]byte, v.family.size()))) {
		name := c.addSet("sources"+string('0'+byte(v.family)), addressSet(v.family, nftables.TypeInvalid), intervals(flat, nil))
		out = append(out, v.source().load(firstRegister), in(name))
	}
	if v.kind == echo { // a ping has no ports, and any flow of its VIP takes it, as in Meridio 1.x
		return out
	}
	var ports []span
	for _, r := range f.SourcePorts {
		ports = append(ports, portSpan(r, 0))
	}
	if flat := flatten(ports); len(flat) > 0 && !everything(flat, "\x00\x00") {
		name := c.addSet("source-ports", nftables.Set{Interval: true, KeyType: nftables.TypeInetService}, intervals(flat, nil))
		out = append(out, v.sourcePort().load(firstRegister), in(name))
	}
	for _, m := range f.ByteMatches {
		out = append(out, m.condition()...)
	}
	return out
}

func (m ByteMatch) condition() []expr.Any {
	load := transport(m.Offset, m.Length).load(firstRegister)
	if mask := m.bytes(m.Mask); !bytes.Equal(mask, m.bytes(^uint32(0))) {
		return masked(load, mask, m.bytes(m.Value))
	}
	return equal(load, m.bytes(m.Value)...)
}

// flowChain counts and hands over to the stream.
func (c *classifier) flowChain(v view, f *Flow) string {
	return c.once("flow", []any{v, f.Name}, func() string {
		return c.addDigested("f"+v.prefix()+"."+f.Name, newRule(c.counter("flow."+f.Name), goTo(streamChain(v, f.Stream))))
	})
}

// icmpChain tells errors, pings and the rest apart.
func (c *classifier) icmpChain(f family, flows []int) string {
	_, errors, echoes, neighbours := f.icmp()
	var elements []nftables.SetElement
	to := func(types []byte, v *expr.Verdict) {
		for _, t := range types {
			elements = append(elements, nftables.SetElement{Key: []byte{t}, VerdictData: v})
		}
	}
	to(errors, goTo(c.errorChain(view{quoted, f}, flows)))
	v := view{echo, f}
	to(echoes, goTo(c.flowList(v, slices.DeleteFunc(slices.Clone(flows), func(i int) bool { return !c.flows[i].sourcesAllow(f) }))))
	to(neighbours, &expr.Verdict{Kind: expr.VerdictAccept})
	name := c.addSet("icmp", nftables.Set{IsMap: true, KeyType: nftables.TypeICMPType, DataType: nftables.TypeVerdict}, elements)
	return c.addDigested("c"+string('0'+byte(f)), newRule(transport(0, 1).load(firstRegister), vmap(name)), c.drop("icmp"))
}

// errorChain classifies by the packet that an error quotes.
func (c *classifier) errorChain(v view, flows []int) string {
	rules := c.byProtocol(v, flows)
	for i, r := range rules {
		rules[i] = newRule(append(v.quotedGuards(), r.exprs...)...)
	}
	return c.addDigested("e"+string('0'+byte(v.family)), append(rules, c.drop("icmp"))...)
}
