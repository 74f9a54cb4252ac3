package sources

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func prefixes(texts ...string) (out []netip.Prefix) {
	for _, text := range texts {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

func TestNeighboursBecomeOne(t *testing.T) {
	require.Equal(t, []string{"192.0.2.0/30", "192.0.2.6/32", "2001:db8::/31"}, Of(prefixes(
		"192.0.2.6/32", "192.0.2.0/32", "192.0.2.1/32", "192.0.2.2/31", "192.0.2.3/32", "2001:db9::/32", "2001:db8::/32", "::ffff:10.0.0.0/120",
	)...).Strings())
	require.True(t, (*Set)(nil).Equal(Of()))
	require.True(t, Union(Of(prefixes("10.0.0.0/9")...), nil, Of(prefixes("10.128.0.0/9")...)).Equal(Of(prefixes("10.0.0.0/8")...)))
}

func TestLimit(t *testing.T) {
	for name, tc := range map[string]struct{ set, subnets, want []netip.Prefix }{
		"no subnets are all":     {prefixes("10.0.0.0/8", "2001:db8::/32"), nil, prefixes("10.0.0.0/8", "2001:db8::/32")},
		"narrower":               {prefixes("10.0.0.0/8"), prefixes("10.1.0.0/16", "0.0.0.0/8"), prefixes("10.1.0.0/16")},
		"of the other family":    {prefixes("2001:db8::/32"), prefixes("0.0.0.0/0"), []netip.Prefix{Nothing}},
		"nobody":                 {nil, prefixes("0.0.0.0/0"), []netip.Prefix{Nothing}},
		"nobody, and no subnets": {nil, nil, []netip.Prefix{Nothing}},
		"all subnets are bad":    {prefixes("10.0.0.0/8"), []netip.Prefix{{}}, []netip.Prefix{Nothing}},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tc.want, Of(tc.set...).Limit(tc.subnets)) })
	}
}

// Against all 256 addresses of a small world, in which prefixes overlap and touch each other.
func TestLimitIsTheIntersection(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		allowed, subnets := drawn(t, "allowed"), drawn(t, "subnets")
		set := Of(allowed...)
		got := set.Limit(subnets)
		again := Of(got...)
		require.True(t, slices.Equal(again.Prefixes(), got), "%v are not as few as can be", got)
		for _, base := range []netip.Addr{netip.MustParseAddr("10.0.0.0"), netip.MustParseAddr("2001:db8::")} {
			addr := base
			for range 256 {
				in := covers(allowed, addr) && (len(subnets) == 0 || covers(subnets, addr))
				require.Equal(t, in, covers(got, addr), "%v", addr)
				require.Equal(t, covers(allowed, addr), covers(set.Prefixes(), addr), "%v", addr)
				addr = addr.Next()
			}
		}
	})
}

func covers(all []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Contains(a) })
}

func drawn(t *rapid.T, label string) []netip.Prefix {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) netip.Prefix {
		last, bits := byte(rapid.Uint8().Draw(t, "last")), rapid.IntRange(0, 8).Draw(t, "bits")
		if rapid.Bool().Draw(t, "IPv6") {
			a := netip.MustParseAddr("2001:db8::").As16()
			a[15] = last
			return netip.PrefixFrom(netip.AddrFrom16(a), 120+bits).Masked()
		}
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, last}), 24+bits).Masked()
	}), 0, 12).Draw(t, label)
}
