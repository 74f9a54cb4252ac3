package pool

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestUnmetPorts(t *testing.T) {
	web, dns := Port{Protocol: "TCP", Number: 80, Target: 8080}, Port{Protocol: "UDP", Number: 53}
	for name, tc := range map[string]struct {
		flows []Flow
		unmet []string
	}{
		"no flows":           {nil, nil},
		"everything":         {[]Flow{{Name: "any"}}, nil},
		"by number":          {[]Flow{{Protocols: []string{"tcp"}, Ports: []string{"80"}}, {Protocols: []string{"udp"}, Ports: []string{"50-60"}}}, nil},
		"by the pod's port":  {[]Flow{{Protocols: []string{"tcp"}, Ports: []string{"8080"}}, {Protocols: []string{"udp"}}}, nil},
		"other protocol":     {[]Flow{{Protocols: []string{"tcp"}, Ports: []string{"0-65535"}}}, []string{"UDP 53"}},
		"other port":         {[]Flow{{Protocols: []string{"tcp", "udp"}, Ports: []string{"81-90", "1000"}}}, []string{"TCP 80", "UDP 53"}},
		"not one by halves":  {[]Flow{{Protocols: []string{"udp"}, Ports: []string{"80"}}, {Protocols: []string{"tcp"}, Ports: []string{"53"}}}, []string{"TCP 80", "UDP 53"}},
		"range not readable": {[]Flow{{Ports: []string{"any"}}}, nil},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tc.unmet, Unmet([]Port{web, dns}, tc.flows)) })
	}
	require.Empty(t, Unmet(nil, []Flow{{Ports: []string{"1"}}}))
}

// One more flow never makes a port unmet.
func TestMoreFlowsMeetMore(t *testing.T) {
	flow := rapid.Custom(func(t *rapid.T) Flow {
		return Flow{
			Protocols: rapid.SliceOfN(rapid.SampledFrom([]string{"tcp", "UDP", "sctp"}), 0, 2).Draw(t, "protocols"),
			Ports:     rapid.SliceOfN(rapid.SampledFrom([]string{"1", "1-3", "3-2", "x", "-", "4-9"}), 0, 2).Draw(t, "ports"),
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		flows := rapid.SliceOfN(flow, 1, 4).Draw(t, "flows")
		p := []Port{{Protocol: "TCP", Number: rapid.Uint16Range(0, 10).Draw(t, "number"), Target: rapid.Uint16Range(0, 10).Draw(t, "target")}}
		require.GreaterOrEqual(t, len(Unmet(p, flows)), len(Unmet(p, append(flows, flow.Draw(t, "another")))))
	})
}
