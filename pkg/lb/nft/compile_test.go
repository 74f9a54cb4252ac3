package nft

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Small domains, so that flows overlap and packets hit.
var (
	somePrefixes = prefixes("20.0.0.0/24", "20.0.0.1/32", "20.0.0.128/25", "0.0.0.0/0", "255.255.255.255/32", "2000::1/128", "2000::/64", "::/0")
	someSources  = prefixes("10.0.0.0/24", "10.0.0.2/32", "0.0.0.0/0", "fd00:10::/64", "::/0", "fd00:10::2/128")
	someVIPs     = []string{"20.0.0.1", "20.0.0.200", "30.0.0.1", "255.255.255.255", "2000::1", "2000::2", "3000::1"}
	someClients  = []string{"10.0.0.2", "10.0.0.3", "11.0.0.1", "fd00:10::2", "fd00:11::1"}
	somePorts    = []uint16{0, 1, 79, 80, 81, 90, 443, 65534, 65535}
)

func drawRanges(t *rapid.T, label string) []PortRange {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) PortRange {
		a, b := rapid.SampledFrom(somePorts).Draw(t, "from"), rapid.SampledFrom(somePorts).Draw(t, "to")
		return PortRange{min(a, b), max(a, b)}
	}), 0, 3).Draw(t, label)
}

func drawFlow(t *rapid.T, name string, streams int) Flow {
	f := Flow{
		Name: name, Stream: fmt.Sprintf("s%d", rapid.IntRange(0, streams).Draw(t, "stream")),
		Priority:         int32(rapid.IntRange(0, 3).Draw(t, "priority")),
		VIPs:             rapid.SliceOfN(rapid.SampledFrom(somePrefixes), 0, 3).Draw(t, "vips"),
		Sources:          rapid.SliceOfN(rapid.SampledFrom(someSources), 0, 2).Draw(t, "sources"),
		Protocols:        rapid.SliceOfNDistinct(rapid.SampledFrom(Protocols), 0, 3, rapid.ID).Draw(t, "protocols"),
		DestinationPorts: drawRanges(t, "destination ports"), SourcePorts: drawRanges(t, "source ports"),
	}
	if rapid.IntRange(0, 5).Draw(t, "bytes") == 0 {
		f.ByteMatches = []ByteMatch{{Protocol: rapid.SampledFrom(Protocols).Draw(t, "of"), Offset: 4, Length: 2, Mask: 0x0ff0, Value: 0x0120}}
	}
	return f
}

func drawDesired(t *rapid.T) *Desired {
	d := &Desired{VIPs: rapid.SliceOfN(rapid.SampledFrom(somePrefixes[:3]), 0, 2).Draw(t, "vips")}
	streams := rapid.IntRange(1, 3).Draw(t, "streams")
	for i := range streams {
		s := Stream{Name: fmt.Sprintf("s%d", i), MaxTargets: 1}
		for _, id := range rapid.SliceOfNDistinct(rapid.Uint32Range(1, 5), 0, 3, rapid.ID).Draw(t, "targets") {
			s.Targets = append(s.Targets, Target{Identifier: id, Draining: rapid.IntRange(0, 3).Draw(t, "draining") == 0})
		}
		d.Streams = append(d.Streams, s)
	}
	for i := range rapid.IntRange(0, 6).Draw(t, "flows") {
		d.Flows = append(d.Flows, drawFlow(t, fmt.Sprintf("f%d", i), streams))
	}
	return d
}

func drawPacket(t *rapid.T) Packet {
	p := Packet{
		Source:      netip.MustParseAddr(rapid.SampledFrom(someClients).Draw(t, "client")),
		Destination: netip.MustParseAddr(rapid.SampledFrom(someVIPs).Draw(t, "vip")),
		Protocol:    rapid.SampledFrom(Protocols).Draw(t, "protocol"),
		SourcePort:  rapid.SampledFrom(somePorts).Draw(t, "source port"), DestinationPort: rapid.SampledFrom(somePorts).Draw(t, "destination port"),
		Start: rapid.Bool().Draw(t, "start"), Quoted: rapid.Bool().Draw(t, "quoted"),
	}
	if rapid.Bool().Draw(t, "header") {
		p.Header = []byte{0xf1, 0x2f}
	}
	return p
}

// shareAll lets every target be reached by both families, and marks them by stream and identifier.
func shareAll(d *Desired) (map[string]map[family]share, func(string, uint32) uint32) {
	shares := map[string]map[family]share{}
	for _, s := range d.Streams {
		var all share
		for _, t := range s.Targets {
			all = all.with(t)
		}
		shares[s.Name] = map[family]share{ipv4: all, ipv6: all}
	}
	return shares, func(stream string, id uint32) uint32 { return 1000*uint32(stream[1]-'0'+1) + id }
}

func within(a netip.Addr, prefixes []netip.Prefix) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}

func inRanges(p uint16, ranges []PortRange) bool {
	return len(ranges) == 0 || slices.ContainsFunc(ranges, func(r PortRange) bool { return r.From <= p && p <= r.To })
}

// matches is what nsp.v1.Flow means, said plainly.
func (f *Flow) matches(p Packet) bool {
	ok := within(p.Destination, f.VIPs) && (len(f.Sources) == 0 || within(p.Source, f.Sources)) &&
		slices.Contains(f.protocols(), p.Protocol) && inRanges(p.DestinationPort, f.DestinationPorts) && inRanges(p.SourcePort, f.SourcePorts)
	for _, m := range f.ByteMatches {
		value := binary.BigEndian.Uint16(p.layer4()[m.Offset:])
		ok = ok && !p.Quoted && m.Protocol == p.Protocol && uint32(value)&m.Mask == m.Value
	}
	return ok
}

// The compiled program takes the same flow as a plain walk through the flows does, and the target is one of the stream.
func TestProgramMatchesPlainFlows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawDesired(t)
		shares, marks := shareAll(d)
		c := compiler{learn: time.Minute}
		program, refused := c.compile(d, shares, marks)
		for range 10 {
			checkPacket(t, d, program, refused, drawPacket(t))
		}
	})
}

func checkPacket(t *rapid.T, d *Desired, program *Program, refused Refused, p Packet) {
	if p.Source.Is4() != p.Destination.Is4() {
		return
	}
	got, err := follow(program, p)
	require.NoError(t, err)
	flows := slices.Clone(d.Flows)
	slices.SortFunc(flows, func(a, b Flow) int { return byPriority(&a, &b) })
	i := slices.IndexFunc(flows, func(f Flow) bool { return refused["flow "+f.Name] == nil && f.matches(p) })
	if i < 0 {
		require.False(t, got.Forwarded, "%+v: %+v", p, got)
		require.Empty(t, got.Flow)
		return
	}
	require.Equal(t, flows[i].Name, got.Flow, "%+v", p)
	s := d.Streams[slices.IndexFunc(d.Streams, func(s Stream) bool { return s.Name == flows[i].Stream })]
	starts := p.Start && p.Protocol != UDP || p.Protocol == UDP
	can := slices.DeleteFunc(slices.Clone(s.Targets), func(t Target) bool { return t.Draining && starts && !(p.Quoted && p.Protocol != UDP) })
	require.Equal(t, len(can) > 0, got.Forwarded, "%+v: %+v", p, got)
	if got.Forwarded {
		require.Equal(t, s.Name, got.Stream)
		require.True(t, slices.ContainsFunc(can, func(t Target) bool { return t.Identifier == got.Identifier }))
	}
}

// An error about an answer goes to the target that sent it.
func TestQuotedGoesWhereThePacketWent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawDesired(t)
		for i := range d.Flows {
			d.Flows[i].ByteMatches = nil
		}
		shares, marks := shareAll(d)
		c := compiler{learn: time.Minute}
		program, _ := c.compile(d, shares, marks)
		p := drawPacket(t)
		if p.Source.Is4() != p.Destination.Is4() {
			return
		}
		p.Quoted, p.Start = false, false
		direct, err := follow(program, p)
		require.NoError(t, err)
		p.Quoted = true
		quoted, err := follow(program, p)
		require.NoError(t, err)
		require.Equal(t, direct.Mark, quoted.Mark)
	})
}

func TestFlowsAreRefusedByName(t *testing.T) {
	good := Flow{Name: "good", Stream: "s", VIPs: allVIPs}
	bad := func(change func(*Flow)) Flow {
		f := good
		f.Name = "bad"
		change(&f)
		return f
	}
	for why, f := range map[string]Flow{
		"does not exist":  bad(func(f *Flow) { f.Stream = "t" }),
		"has no VIP":      bad(func(f *Flow) { f.VIPs = nil }),
		"no prefix":       bad(func(f *Flow) { f.Sources = []netip.Prefix{{}} }),
		"cannot be":       bad(func(f *Flow) { f.Protocols = []Protocol{1} }),
		"can never hold":  bad(func(f *Flow) { f.Protocols = []Protocol{UDP}; f.ByteMatches = []ByteMatch{{TCP, 0, 1, 0xff, 0}} }),
		"beyond byte 255": bad(func(f *Flow) { f.ByteMatches = []ByteMatch{{TCP, 300, 1, 0xff, 0}} }),
		"another one":     good,
	} {
		d := &Desired{VIPs: allVIPs, Streams: []Stream{{Name: "s", Targets: []Target{{Identifier: 1}}}}, Flows: []Flow{good, f}}
		c := compiler{}
		program, refused := c.compile(d, map[string]map[family]share{"s": {ipv4: {active: []uint32{1}}}}, func(string, uint32) uint32 { return 1 })
		require.Len(t, refused, 1, why)
		require.ErrorContains(t, refused["flow "+f.Name], why)
		got, err := follow(program, Packet{Source: netip.MustParseAddr(client4), Destination: netip.MustParseAddr(vip4), Protocol: TCP})
		require.NoError(t, err)
		require.Equal(t, "good", got.Flow)
		require.True(t, got.Forwarded)
	}
}

func TestStreamsAreRefusedByName(t *testing.T) {
	c := compiler{}
	_, refused := c.compile(&Desired{Streams: []Stream{{Name: "s"}, {Name: "s"}, {Name: ""}, {Name: "big", MaxTargets: 1e6}}}, nil, nil)
	require.Len(t, refused, 3)
}
