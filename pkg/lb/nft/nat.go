package nft

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// afterPick lets the picking of a target see the ports that the client sent to.
var afterPick = nftables.ChainPriorityRef(*nftables.ChainPriorityMangle + 1)

// addNATs adds the rules that rewrite ports. Nothing is tracked: what goes to a VIP and the port gets the other one, and what
// comes from the VIP and the other port gets it back.
func (p *Program) addNATs(desired *Desired, refused Refused) {
	var rules []rule
	seen := map[string]bool{}
	for _, n := range desired.NATs {
		name := fmt.Sprintf("port nat %v %d", n.Protocol, n.Port)
		if err := n.check(); err != nil {
			refused[name] = err
			continue
		}
		vips := n.VIPs
		if len(vips) == 0 {
			vips = desired.VIPs
		}
		for _, f := range families {
			var spans []span
			for _, vip := range f.only(vips) {
				spans = append(spans, prefixSpan(vip, 0))
			}
			if len(spans) == 0 {
				continue
			}
			set := p.addSet("nat"+string('0'+byte(f)), addressSet(f, nftables.TypeInvalid), intervals(flatten(spans), nil))
			if key := fmt.Sprint(f, n.Protocol, n.Port, set); !seen[key] {
				rules = append(rules, n.rules(view{direct, f}, set)...)
				seen[key] = true
			}
		}
	}
	p.add(chainNAT, &hook{nftables.ChainTypeFilter, nftables.ChainHookPrerouting, afterPick}, rules...)
}

func (n PortNAT) check() error {
	switch {
	case !slices.Contains(Protocols, n.Protocol):
		return fmt.Errorf("%v has no ports", n.Protocol)
	case n.Port == 0 || n.TargetPort == 0:
		return fmt.Errorf("port 0 cannot be rewritten")
	}
	return nil
}

// rules are the way to the target, the way back, and the errors about packets on the way back, which quote the port that the client
// knows and are for a target that knows the other one. Each is the last for its packet: a port is rewritten once.
func (n PortNAT) rules(v view, vips string) []rule {
	out := append(n.way(v.destination(), v.destinationPort(), n.Port, n.TargetPort, v, vips),
		n.way(v.source(), v.sourcePort(), n.TargetPort, n.Port, v, vips)...)
	q := view{quoted, v.family}
	icmp, errors, _, _ := v.family.icmp()
	for _, t := range errors {
		out = append(out, newRule(slices.Concat(
			equal(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: firstRegister}, icmp), equal(transport(0, 1).load(firstRegister), t),
			q.quotedGuards(), equal(q.protocol(firstRegister), byte(n.Protocol)),
			[]expr.Any{q.destination().load(firstRegister), in(vips)},
			equal(q.destinationPort().load(firstRegister), port16(n.Port)...),
			write(q.destinationPort().offset, n.TargetPort, expr.CsumTypeInet, 2))...))
	}
	return out
}

// udpChecksum is 0 where the sender computed none (RFC 768): then there is nothing to mend, and mending would make it wrong.
var udpChecksum = transport(6, 2)

// way rewrites one of the ports.
func (n PortNAT) way(address, port field, from, into uint16, v view, vips string) []rule {
	matches := slices.Concat(
		equal(v.protocol(firstRegister), byte(n.Protocol)), equal(port.load(firstRegister), port16(from)...),
		[]expr.Any{address.load(firstRegister), in(vips)})
	mended := newRule(slices.Concat(matches, n.rewrite(port.offset, into))...)
	if n.Protocol != UDP {
		return []rule{mended}
	}
	without := newRule(slices.Concat(matches, equal(udpChecksum.load(firstRegister), 0, 0), write(port.offset, into, expr.CsumTypeNone, 0))...)
	return []rule{without, mended}
}

func port16(p uint16) []byte { return binary.BigEndian.AppendUint16(nil, p) }

// csumSCTP has the kernel compute the CRC32c of SCTP anew (NFT_PAYLOAD_CSUM_SCTP, Linux 5.11).
const csumSCTP expr.PayloadCsumType = 2

// rewrite writes a port and mends the checksum.
func (n PortNAT) rewrite(offset uint32, port uint16) []expr.Any {
	switch n.Protocol {
	case UDP:
		return write(offset, port, expr.CsumTypeInet, 6)
	case SCTP:
		return write(offset, port, csumSCTP, 8)
	}
	return write(offset, port, expr.CsumTypeInet, 16)
}

func write(offset uint32, port uint16, kind expr.PayloadCsumType, checksum uint32) []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: firstRegister, Data: port16(port)},
		&expr.Payload{
			OperationType: expr.PayloadWrite, SourceRegister: firstRegister, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2,
			CsumType: kind, CsumOffset: checksum,
		},
		&expr.Verdict{Kind: expr.VerdictAccept},
	}
}
