package iface

import (
	"maps"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Whatever there is, the steps lead to what is wanted, touch no address that others made, leave no moment at which a VIP is there
// without its way out, and need no second go.
func TestSteps(t *testing.T) {
	p := plan{gateways: []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")}, table: 110, priority: 110, secondary: 1, vips: 2, loopback: 2}
	some := rapid.SliceOfDistinct(rapid.SampledFrom(prefixList("20.0.0.1/32", "20.0.0.2/32", "30.0.0.0/28", "2000::1/128", "2000::/64")), rapid.ID[netip.Prefix])
	rapid.Check(t, func(t *rapid.T) {
		before, after := p, p
		before.table = rapid.SampledFrom([]int{110, 200}).Draw(t, "table before")
		before.gateways = p.gateways[:rapid.IntRange(0, 2).Draw(t, "gateways before")]
		have := before.layout(some.Draw(t, "before"))
		want := after.layout(some.Draw(t, "after"))
		made := map[netip.Prefix]bool{}
		foreign := layout{}
		for i := range have {
			if i.kind == address {
				made[i.prefix] = rapid.Bool().Draw(t, "made "+i.prefix.String())
				foreign[i] = !made[i.prefix]
			}
		}
		partial := rapid.Bool().Draw(t, "partial")
		todo := steps(have, want, made, partial)
		k := &fakeKernel{journal: &journal{}, has: maps.Clone(have)}
		for _, s := range todo {
			require.NoError(t, k.apply(s))
			for i := range k.has {
				if i.kind == rule && want[i] {
					require.True(t, hasRoute(k.has, i), "%v has no way out", i)
				}
			}
		}
		for i := range want {
			require.True(t, k.has[i], i)
		}
		for i := range k.has {
			require.True(t, want[i] || foreign[i] || partial, i)
		}
		for i, is := range foreign {
			require.True(t, !is || k.has[i], i)
		}
		require.Empty(t, steps(k.has, want, made, partial))
	})
}

func hasRoute(l layout, of item) bool {
	for i := range l {
		if i.kind == route && i.table == of.table && i.prefix == all(of.prefix.Addr()) {
			return true
		}
	}
	return false
}

// Gateways of a route are a set, of one family.
func TestVia(t *testing.T) {
	p := plan{gateways: []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::1"), netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")}}
	require.Equal(t, "10.0.0.1,10.0.0.2", p.via(netip.MustParseAddr("20.0.0.1")))
	require.Equal(t, p.gateways[1:2], item{via: p.via(netip.MustParseAddr("2000::1"))}.gateways())
	require.Empty(t, plan{}.via(netip.MustParseAddr("2000::1")))
}
