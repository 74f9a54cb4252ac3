package nft

import (
	"encoding/binary"
	"fmt"
	"regexp"
	"slices"
	"strconv"
)

// maxByteOffset is how far from the start of the layer 4 header the kernel compares: an offset is 8 bits wide on the way to it
// in older kernels.
const maxByteOffset = 255

// ByteMatch compares 1, 2 or 4 bytes of the layer 4 header, in network order.
type ByteMatch struct {
	Protocol Protocol
	Offset   uint32
	Length   uint32
	Mask     uint32
	Value    uint32
}

var byteMatchPattern = regexp.MustCompile(`^(sctp|tcp|udp)\[([0-9]+) *: *([124])\]( *& *(0x[0-9a-f]+))? *= *([0-9]+|0x[0-9a-f]+)$`)

// ParseByteMatch reads what Meridio accepts: "tcp[4:2] & 0xff00 = 0x1200".
func ParseByteMatch(s string) (ByteMatch, error) {
	parts := byteMatchPattern.FindStringSubmatch(s)
	if parts == nil {
		return ByteMatch{}, fmt.Errorf("the byte match %q is not written as tcp[4:2] & 0xff00 = 0x1200", s)
	}
	protocol, err := ParseProtocol(parts[1])
	if err != nil {
		return ByteMatch{}, err
	}
	m := ByteMatch{Protocol: protocol}
	m.Length = uint32(parts[3][0] - '0')
	m.Mask = uint32(1<<(8*m.Length) - 1)
	for _, n := range []struct {
		text string
		base int
		to   *uint32
	}{{parts[2], 10, &m.Offset}, {parts[5], 0, &m.Mask}, {parts[6], 0, &m.Value}} {
		if n.text == "" {
			continue
		}
		v, err := strconv.ParseUint(n.text, n.base, 32)
		if err != nil {
			return ByteMatch{}, fmt.Errorf("the number %s of the byte match %q: %w", n.text, s, err)
		}
		*n.to = uint32(v)
	}
	return m, nil
}

// String is how Meridio writes it.
func (m ByteMatch) String() string {
	return fmt.Sprintf("%v[%d:%d] & 0x%x = 0x%x", m.Protocol, m.Offset, m.Length, m.Mask, m.Value)
}

// check says why a match cannot be programmed for the protocols of its flow.
func (m ByteMatch) check(protocols []Protocol) error {
	largest := uint64(1)<<(8*m.Length) - 1
	switch {
	case m.Length != 1 && m.Length != 2 && m.Length != 4:
		return fmt.Errorf("the byte match %v compares %d bytes: 1, 2 and 4 can be", m, m.Length)
	case m.Offset+m.Length > maxByteOffset:
		return fmt.Errorf("the byte match %v is beyond byte %d", m, maxByteOffset)
	case uint64(m.Mask) > largest || uint64(m.Value) > largest:
		return fmt.Errorf("the byte match %v has a number of more than %d bytes", m, m.Length)
	case !slices.Contains(protocols, m.Protocol):
		return fmt.Errorf("the byte match %v can never hold, as %v is no protocol of the flow", m, m.Protocol)
	}
	return nil
}

// bytes is a number as it is in the header.
func (m ByteMatch) bytes(v uint32) []byte {
	return binary.BigEndian.AppendUint32(nil, v)[4-m.Length:]
}
