package nft

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestParsePortRange(t *testing.T) {
	for text, want := range map[string]PortRange{"80": {80, 80}, "90-95": {90, 95}, "any": {0, 65535}, "1 - 2": {1, 2}, "0-65535": {0, 65535}} {
		r, err := ParsePortRange(text)
		require.NoError(t, err, text)
		require.Equal(t, want, r)
	}
	for _, text := range []string{"", "-", "1-", "-1", "2-1", "65536", "a", "1-2-3", "+1"} {
		_, err := ParsePortRange(text)
		require.Error(t, err, text)
	}
}

func TestParseByteMatch(t *testing.T) {
	for text, want := range map[string]ByteMatch{
		"tcp[4:2] & 0xff00 = 0x1200": {TCP, 4, 2, 0xff00, 0x1200},
		"sctp[0 : 4] = 7":            {SCTP, 0, 4, 0xffffffff, 7},
		"udp[10:1]=0xff":             {UDP, 10, 1, 0xff, 0xff},
	} {
		m, err := ParseByteMatch(text)
		require.NoError(t, err, text)
		require.Equal(t, want, m)
	}
	for _, text := range []string{"", "icmp[0:1] = 1", "tcp[0:3] = 1", "tcp[0:1]", "tcp[99999999999:1] = 1", "TCP[0:1] = 1"} {
		_, err := ParseByteMatch(text)
		require.Error(t, err, text)
	}
}

func FuzzParseByteMatch(f *testing.F) {
	f.Add("tcp[4:2] & 0xff00 = 0x1200")
	f.Fuzz(func(t *testing.T, text string) {
		m, err := ParseByteMatch(text)
		if err != nil {
			return
		}
		again, err := ParseByteMatch(m.String())
		require.NoError(t, err)
		require.Equal(t, m, again)
	})
}

func FuzzParsePortRange(f *testing.F) {
	f.Add("90-95")
	f.Fuzz(func(t *testing.T, text string) {
		if r, err := ParsePortRange(text); err == nil {
			require.LessOrEqual(t, r.From, r.To)
		}
	})
}

// Ranges that were flattened are disjoint, in order, and cover each key with the members that covered it before.
func TestFlatten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var spans []span
		for i, r := range drawRanges(t, "ranges") {
			spans = append(spans, portSpan(r, i))
		}
		flat := flatten(spans)
		for i := 1; i < len(flat); i++ {
			require.True(t, flat[i-1].hi != "" && flat[i-1].hi <= flat[i].lo)
		}
		covered := func(key string, s span) bool { return s.lo <= key && (s.hi == "" || key < s.hi) }
		for _, p := range somePorts {
			key := string(binary.BigEndian.AppendUint16(nil, p))
			var want, got []int
			for _, s := range spans {
				if covered(key, s) {
					want = append(want, s.members...)
				}
			}
			for _, s := range flat {
				if covered(key, s) {
					got = append(got, s.members...)
				}
			}
			require.Equal(t, want, got)
		}
	})
}
