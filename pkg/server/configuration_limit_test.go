package server

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	"github.com/nordix/meridio-nsp/pkg/config"
	"github.com/nordix/meridio-nsp/pkg/sources"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

func setOf(prefixes ...string) *sources.Set {
	all, _ := sources.ParseAll(prefixes)
	return sources.Of(all...)
}

// onlyFrom limits the stream of configured.
func onlyFrom(prefixes ...string) map[stream.Key]*sources.Set {
	return map[stream.Key]*sources.Set{{Namespace: own, Trench: "t", Conduit: "conduit-a", Name: "stream-a"}: setOf(prefixes...)}
}

func flowsTold(t require.TestingT, c *Configuration) (flows []*nspv1.Flow) {
	w := c.watch(everything()[kindFlow])
	defer w.Close()
	wire, _, ok, _ := w.Next()
	require.True(t, ok)
	var m nspv1.FlowResponse
	require.NoError(t, proto.Unmarshal(wire, &m))
	return m.GetFlows()
}

// A limit narrows the flows of its stream, and wakes the watches of flows and no others. Nobody may use a stream whose limit is empty,
// but the flow is there with its VIPs, from which TAPAs have theirs.
func TestFlowsAreLimited(t *testing.T) {
	configured := func() *config.Config {
		c := configured()
		c.Streams = append(c.Streams, config.Stream{Name: "stream-b", Conduit: "conduit-a"})
		c.Flows[0].SourceSubnets = []string{"10.0.0.0/8", "nonsense"}
		c.Flows = append(c.Flows, config.Flow{Name: "flow-b", Stream: "stream-b", SourceSubnets: []string{"10.0.0.1/8"}})
		return c
	}
	c := NewConfiguration()
	watches := watchAll(t, c)
	c.Set(configured())
	require.Equal(t, allKinds, told(watches))
	for _, test := range []struct {
		limits map[stream.Key]*sources.Set
		want   []string
	}{
		{onlyFrom("10.1.0.0/16", "192.0.2.0/24", "::/0"), []string{"10.1.0.0/16"}},
		{onlyFrom("192.0.2.0/24"), []string{"::1/128"}},
		{onlyFrom(), []string{"::1/128"}},
		{onlyFrom("0.0.0.0/0"), []string{"10.0.0.0/8"}},
		{nil, []string{"10.0.0.0/8", "nonsense"}},
	} {
		before := flowsTold(t, c)
		c.Limit(test.limits)
		flows := flowsTold(t, c)
		require.Len(t, flows, 2)
		require.Equal(t, test.want, flows[0].GetSourceSubnets())
		require.Equal(t, []string{"10.0.0.1/8"}, flows[1].GetSourceSubnets(), "as configured")
		require.Equal(t, "20.0.0.1/32", flows[0].GetVips()[0].GetAddress())
		if slices.Equal(before[0].GetSourceSubnets(), test.want) {
			require.Empty(t, told(watches))
		} else {
			require.Equal(t, []kind{kindFlow}, told(watches))
		}
	}
	c.Limit(onlyFrom("10.2.0.0/16"))
	c.Set(configured())
	require.Equal(t, []string{"10.2.0.0/16"}, flowsTold(t, c)[0].GetSourceSubnets(), "the limit outlives a change of the configuration")
}

// A flow that is told too early would let everybody in.
func TestFlowsWaitForLimits(t *testing.T) {
	c := NewConfiguration()
	c.AwaitLimits()
	watches := watchAll(t, c)
	c.Set(configured())
	require.NotContains(t, told(watches), kindFlow)
	c.Limit(nil)
	require.Equal(t, []kind{kindFlow}, told(watches))
}

// However many subnets there are: the parts of a flow are what nfqlb takes, bear distinct names, and have together just what is left.
func TestLimitedFlowsAreWhatNfqlbTakes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var allowed []string
		for i := range rapid.IntRange(0, 100).Draw(t, "IPv4") {
			allowed = append(allowed, fmt.Sprintf("10.0.%d.%d/32", i/100, 2*i%256))
		}
		for i := range rapid.IntRange(0, 60).Draw(t, "IPv6") {
			allowed = append(allowed, fmt.Sprintf("2001:db8:1111:2222:3333:4444:5555:%x/128", 0xf000+2*i))
		}
		if rapid.Bool().Draw(t, "all") {
			allowed = append(allowed, rapid.SampledFrom([]string{"0.0.0.0/0", "::/0"}).Draw(t, "family"))
		}
		c := NewConfiguration()
		c.Set(configured())
		c.Limit(onlyFrom(allowed...))
		var got []netip.Prefix
		names := map[string]bool{}
		for _, f := range flowsTold(t, c) {
			subnets := f.GetSourceSubnets()
			require.NotEmpty(t, subnets)
			require.LessOrEqual(t, len(subnets), 32)
			require.LessOrEqual(t, len(strings.Join(subnets, ",")), 1000)
			require.False(t, names[f.GetName()])
			names[f.GetName()] = true
			for _, s := range subnets {
				require.False(t, strings.HasSuffix(s, "/0"))
				p, err := netip.ParsePrefix(s)
				require.NoError(t, err)
				got = append(got, p)
			}
		}
		require.True(t, names["flow-a"])
		if len(allowed) == 0 {
			require.Equal(t, []netip.Prefix{sources.Nothing}, got)
			return
		}
		require.True(t, sources.Of(got...).Equal(setOf(allowed...)), "%v", got)
	})
}
