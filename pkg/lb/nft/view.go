package nft

import (
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Registers of 4 bytes: a key is loaded from firstRegister on, what is looked up with it comes into the one after it.
const firstRegister = 8 // NFT_REG32_00

// kind is where a packet keeps the addresses and ports of its connection.
type kind byte

const (
	// direct is an ordinary packet from the client.
	direct kind = 's'
	// quoted is an ICMP error, sent by whoever could not forward a packet of the target. The packet is quoted in it, so source
	// and destination are the other way round.
	quoted kind = 'e'
	// echo is a ping.
	echo kind = 'i'
)

// view is how to read a packet.
type view struct {
	kind   kind
	family family
}

// prefix begins the names of chains for this view.
func (v view) prefix() string { return string(v.kind) + string('0'+byte(v.family)) }

// field is where something is in a packet.
type field struct {
	base        expr.PayloadBase
	offset, len uint32
}

func network(offset, len uint32) field   { return field{expr.PayloadBaseNetworkHeader, offset, len} }
func transport(offset, len uint32) field { return field{expr.PayloadBaseTransportHeader, offset, len} }

// Offsets from the start of an ICMP header to the packet that it quotes, and on to what follows that packet's header (RFC 792, RFC 4443). A
// quoted IPv4 header with options is not read: see quotedGuards.
const (
	quotedPacket    = 8
	quotedTransport = quotedPacket + 20
	quotedV6        = quotedPacket + 40
)

// source is the client's address.
func (v view) source() field {
	switch {
	case v.kind == quoted && v.family == ipv4:
		return transport(quotedPacket+16, 4)
	case v.kind == quoted:
		return transport(quotedPacket+24, 16)
	case v.family == ipv4:
		return network(12, 4)
	}
	return network(8, 16)
}

// destination is the VIP.
func (v view) destination() field {
	switch {
	case v.kind == quoted && v.family == ipv4:
		return transport(quotedPacket+12, 4)
	case v.kind == quoted:
		return transport(quotedPacket+8, 16)
	case v.family == ipv4:
		return network(16, 4)
	}
	return network(24, 16)
}

// quotedHeader is where the quoted layer 4 header begins.
func (v view) quotedHeader() uint32 {
	if v.family == ipv4 {
		return quotedTransport
	}
	return quotedV6
}

func (v view) sourcePort() field {
	switch v.kind {
	case quoted:
		return transport(v.quotedHeader()+2, 2)
	case echo:
		return transport(4, 2) // the identifier, which stays the same for one ping
	}
	return transport(0, 2)
}

func (v view) destinationPort() field {
	switch v.kind {
	case quoted:
		return transport(v.quotedHeader(), 2)
	case echo:
		return transport(4, 2)
	}
	return transport(2, 2)
}

// protocol loads the protocol of layer 4.
func (v view) protocol(register uint32) expr.Any {
	switch {
	case v.kind == quoted && v.family == ipv4:
		return transport(quotedPacket+9, 1).load(register)
	case v.kind == quoted:
		return transport(quotedPacket+6, 1).load(register)
	}
	return &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register}
}

func (f field) load(register uint32) expr.Any {
	return &expr.Payload{DestRegister: register, Base: f.base, Offset: f.offset, Len: f.len}
}

// key loads what is hashed: addresses, protocol and ports, each from a register of its own. It returns the length in bytes and
// the register after it.
func (v view) key() (exprs []expr.Any, length, next uint32) {
	at := uint32(firstRegister)
	words := v.family.size() / 4
	exprs = append(exprs, v.source().load(at), v.destination().load(at+words))
	at += 2 * words
	exprs = append(exprs, v.protocol(at), v.sourcePort().load(at+1), v.destinationPort().load(at+2))
	return exprs, 4 * (2*words + 3), at + 3
}

// equal compares one byte that an expression has loaded into the first register.
func equal(load expr.Any, value ...byte) []expr.Any {
	return []expr.Any{load, &expr.Cmp{Op: expr.CmpOpEq, Register: firstRegister, Data: value}}
}

// masked compares after a mask.
func masked(load expr.Any, mask, value []byte) []expr.Any {
	return []expr.Any{load, &expr.Bitwise{
		SourceRegister: firstRegister, DestRegister: firstRegister, Len: uint32(len(mask)), Mask: mask, Xor: make([]byte, len(mask)),
	}, &expr.Cmp{Op: expr.CmpOpEq, Register: firstRegister, Data: value}}
}

// quotedGuards hold for ICMP errors that can be read: the quoted packet is IPv4 without options and has a layer 4 header. Of IPv6 those
// without extension headers are found by their protocol.
func (v view) quotedGuards() []expr.Any {
	if v.family == ipv6 {
		return nil
	}
	return append(equal(transport(quotedPacket, 1).load(firstRegister), 0x45),
		masked(transport(quotedPacket+6, 2).load(firstRegister), []byte{0x1f, 0xff}, []byte{0, 0})...)
}

// ICMP types: errors, echo requests, and what IPv6 needs to find neighbours (RFC 4861).
func (f family) icmp() (protocol byte, errors, echoes, neighbours []byte) {
	if f == ipv4 {
		return unix.IPPROTO_ICMP, []byte{3, 11, 12}, []byte{8}, nil
	}
	return unix.IPPROTO_ICMPV6, []byte{1, 2, 3, 4}, []byte{128}, []byte{133, 134, 135, 136, 137}
}
