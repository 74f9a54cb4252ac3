package nft

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Packet is what Trace follows.
type Packet struct {
	Source, Destination         netip.Addr
	Protocol                    Protocol
	SourcePort, DestinationPort uint16
	// Start makes it the first of a connection: a TCP SYN, an SCTP INIT.
	Start bool
	// Header replaces the layer 4 header from its fifth byte on, for flows that compare bytes.
	Header []byte
	// Quoted makes it the ICMP error about the answer to this packet.
	Quoted bool
}

// headers are the bytes that rules look at.
type headers struct {
	family             family
	protocol           byte
	network, transport []byte
	mark               uint32
}

func (p Packet) headers() (headers, error) {
	src, dst := p.Source.Unmap(), p.Destination.Unmap()
	if !src.IsValid() || !dst.IsValid() || src.Is4() != dst.Is4() {
		return headers{}, fmt.Errorf("source %v and destination %v are not of one family", p.Source, p.Destination)
	}
	h := headers{family: ipv4, protocol: byte(p.Protocol)}
	if src.Is6() {
		h.family = ipv6
	}
	h.transport = p.layer4()
	h.network = networkHeader(h.family, src, dst, h.protocol)
	if p.Quoted {
		h = h.quotedIn(p)
	}
	return h, nil
}

// layer4 is a header long enough for what rules read of it.
func (p Packet) layer4() []byte {
	b := make([]byte, 20)
	binary.BigEndian.PutUint16(b, p.SourcePort)
	binary.BigEndian.PutUint16(b[2:], p.DestinationPort)
	switch {
	case p.Protocol == TCP && p.Start:
		b[13] = tcpSYN
	case p.Protocol == TCP:
		b[13] = tcpACK
	case p.Protocol == SCTP && p.Start:
		b[12] = sctpINIT
	}
	return append(b[:4], append(p.Header, b[min(4+len(p.Header), len(b)):]...)...)
}

func networkHeader(f family, src, dst netip.Addr, protocol byte) []byte {
	if f == ipv4 {
		b := make([]byte, 20)
		b[0], b[8], b[9] = 0x45, 64, protocol
		copy(b[12:], src.AsSlice())
		copy(b[16:], dst.AsSlice())
		return b
	}
	b := make([]byte, 40)
	b[0], b[6], b[7] = 0x60, protocol, 64
	copy(b[8:], src.AsSlice())
	copy(b[24:], dst.AsSlice())
	return b
}

// quotedIn is an error sent to the VIP because the answer did not get through.
func (h headers) quotedIn(p Packet) headers {
	answer := Packet{
		Source: p.Destination, Destination: p.Source, Protocol: p.Protocol, SourcePort: p.DestinationPort, DestinationPort: p.SourcePort,
	}
	protocol, errors, _, _ := h.family.icmp()
	icmp := make([]byte, quotedPacket)
	icmp[0] = errors[0]
	icmp = append(icmp, networkHeader(h.family, p.Destination.Unmap(), p.Source.Unmap(), byte(p.Protocol))...)
	icmp = append(icmp, answer.layer4()...)
	return headers{
		family: h.family, protocol: protocol, transport: icmp,
		network: networkHeader(h.family, p.Source.Unmap(), p.Destination.Unmap(), protocol),
	}
}

func (h headers) nfproto() byte {
	if h.family == ipv4 {
		return unix.NFPROTO_IPV4
	}
	return unix.NFPROTO_IPV6
}
