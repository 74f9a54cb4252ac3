package nft

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/nordix/meridio-nsp/pkg/lb/maglev"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// seed of all hashes. It is the same on every load balancer, so that all send a connection to the same target; the kernel's library
// leaves out a seed of 0, and the kernel would draw one.
const seed = 0x6d61676c

// setTargets has the mark of each target, with a counter.
const setTargets = "targets"

// streamChain is the name of the chain that picks a target.
func streamChain(v view, stream string) string { return v.prefix() + "." + stream }

// slotsName is the name of a table of a stream. Its size is part of it: tables of another size are another map.
func slotsName(f family, stream string, size int, old bool) string {
	prefix := "slots"
	if old {
		prefix = "before"
	}
	return prefix + string('0'+byte(f)) + "." + strconv.Itoa(size) + "." + stream
}

// learnedName is the name of the map of connections that began while targets drained.
func learnedName(f family) string { return "learned" + string('0'+byte(f)) }

// share is who of a stream takes packets of one family.
type share struct {
	active, draining []uint32
}

// balancer makes the chains and tables of streams.
type balancer struct {
	*Program
	learn time.Duration
	// marks of the targets of a stream, by identifier.
	marks func(stream string, identifier uint32) uint32
	table func(size int, members []member) []uint32
}

// balance adds a stream; shares are those of its targets that can be reached.
func (b *balancer) balance(s *Stream, shares map[family]share) {
	size := maglev.Size(cmp.Or(s.MaxTargets, stream.DefaultMaxTargets))
	for _, f := range families {
		who := shares[f]
		slots := slotsName(f, s.Name, size, false)
		b.slots[slots] = b.slotsOf(s, size, who.active)
		before := ""
		if len(who.draining) > 0 {
			before = slotsName(f, s.Name, size, true)
			b.slots[before] = b.slotsOf(s, size, slices.Concat(who.active, who.draining))
		}
		for _, k := range []kind{direct, quoted, echo} {
			v := view{k, f}
			b.add(streamChain(v, s.Name), nil, b.pick(v, s.Name, size, slots, before)...)
		}
	}
}

func (b *balancer) slotsOf(s *Stream, size int, identifiers []uint32) slotMap {
	members := make([]member, len(identifiers))
	for i, id := range identifiers {
		members[i] = member{id, b.marks(s.Name, id)}
	}
	return slotMap{b.table(size, members)}
}

// pick are the rules that choose a target. While targets drain, TCP and SCTP connections that began before go by the table in which
// those still count.
func (b *balancer) pick(v view, stream string, size int, slots, before string) []rule {
	now := newRule(append(b.hash(v, size, slots), setMark(v), goTo(chainForward))...)
	if before == "" || v.kind == echo {
		return []rule{now, b.drop("no-target." + stream)}
	}
	var rules []rule
	if v.kind == direct {
		rules = b.begin(v, stream, size, slots, now)
	}
	notUDP := []expr.Any{v.protocol(firstRegister), &expr.Cmp{Op: expr.CmpOpNeq, Register: firstRegister, Data: []byte{byte(UDP)}}}
	return append(rules,
		newRule(append(notUDP, b.recall(v)...)...),
		newRule(&expr.Meta{Key: expr.MetaKeyMARK, Register: firstRegister}, in(setTargets), &expr.Verdict{Kind: expr.VerdictAccept}),
		newRule(slices.Concat(notUDP, b.hash(v, size, before), []expr.Any{setMark(v), goTo(chainForward)})...),
		now, b.drop("no-target."+stream))
}

// begin are the rules for packets that start a connection: they go by the table of now, and what comes after them too. Learning can fail
// where the map is full, which must not keep the packet from its target.
func (b *balancer) begin(v view, stream string, size int, slots string, now rule) []rule {
	var rules []rule
	for _, starts := range [][]expr.Any{
		append(equal(v.protocol(firstRegister), byte(TCP)), masked(transport(13, 1).load(firstRegister), []byte{tcpSYN | tcpACK}, []byte{tcpSYN})...),
		append(equal(v.protocol(firstRegister), byte(SCTP)), equal(transport(12, 1).load(firstRegister), sctpINIT)...),
	} {
		rules = append(rules,
			newRule(slices.Concat(starts, b.hash(v, size, slots), []expr.Any{b.remember(v)})...),
			newRule(slices.Concat(starts, now.exprs)...),
			newRule(slices.Concat(starts, b.drop("no-target."+stream).exprs)...))
	}
	return rules
}

// Flags of TCP and the type of the first chunk of SCTP.
const (
	tcpSYN, tcpACK = 0x02, 0x10
	sctpINIT       = 1
)

// hash leaves the mark of the packet's slot in the register after the key. The rule ends where the slot is nobody's.
func (b *balancer) hash(v view, size int, slots string) []expr.Any {
	key, length, next := v.key()
	return append(key,
		&expr.Hash{
			SourceRegister: firstRegister, DestRegister: next, Length: length, Modulus: uint32(size), Seed: seed, Type: expr.HashTypeJenkins,
		},
		&expr.Lookup{SourceRegister: next, DestRegister: next, IsDestRegSet: true, SetName: slots})
}

// setMark marks the packet with what hash found.
func setMark(v view) expr.Any {
	_, _, next := v.key()
	return &expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: next}
}

// remember keeps key and mark, which are in registers, for a while.
func (b *balancer) remember(v view) expr.Any {
	_, _, next := v.key()
	return &expr.Dynset{
		SrcRegKey: firstRegister, SrcRegData: next, SetName: learnedName(v.family), Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: b.learn,
	}
}

// recall marks the packet of a connection that was learned, and keeps that for another while.
func (b *balancer) recall(v view) []expr.Any {
	out, _, next := v.key()
	out = append(out, &expr.Lookup{SourceRegister: firstRegister, DestRegister: next, IsDestRegSet: true, SetName: learnedName(v.family)}, setMark(v))
	if v.kind == direct {
		out = append(out, b.remember(v))
	}
	return out
}

// learnedLimit bounds the memory that connections can take while targets drain.
const learnedLimit = 1 << 18

// learnedSet is filled by the kernel.
func learnedSet(f family, timeout time.Duration) *set {
	address := nftables.TypeIPAddr
	if f == ipv6 {
		address = nftables.TypeIP6Addr
	}
	return &set{Set: nftables.Set{
		Name: learnedName(f), IsMap: true, Dynamic: true, HasTimeout: true, Timeout: timeout, Concatenation: true, Size: learnedLimit,
		KeyType:  nftables.MustConcatSetType(address, address, nftables.TypeInetProto, nftables.TypeInetService, nftables.TypeInetService),
		DataType: nftables.TypeMark,
	}}
}
