package lb

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
)

// A policy decides from where packets get to the targets of its stream, within what the flow says; without it, the flow decides.
func TestPolicyDecidesWhoGetsThrough(t *testing.T) {
	net, nsp := newNetwork(t, 1), startFake(t)
	nsp.configure()
	nsp.target(1, active, address(1)+"/24")
	b, _ := net.balance(nsp)
	net.eventually("1")
	allow := func(prefixes ...string) {
		nsp.set(func() {
			nsp.sources = []*targetpoolv1.StreamSources{{Stream: &targetpoolv1.Stream{Name: "stream-a"}, Prefixes: prefixes}}
		})
	}
	allow("192.0.2.0/24") // the client is 10.0.0.2
	net.eventually("nobody")
	require.Contains(t, b.Status().StreamOf, "flow-a", "the flow is there, for nobody")
	allow("10.0.0.2/32", "192.0.2.0/24")
	net.eventually("1")
	allow()
	net.eventually("nobody")
	nsp.set(func() { nsp.sources = nil })
	net.eventually("1")

	nsp.set(func() { nsp.flows[0].SourceSubnets = []string{"10.0.0.0/24"} })
	allow("10.0.0.3/32", "nonsense")
	net.eventually("nobody")
	allow("10.0.0.0/8")
	net.eventually("1")
	require.Eventually(t, func() bool { return len(b.Status().Refused) == 0 }, time.Minute, time.Millisecond)
}

// What a trench process makes of a policy, for load balancers of Meridio 1.x, means the same to this one: a flow in several parts, and
// one that nothing matches.
func TestLimitedFlowsOfATrenchProcess(t *testing.T) {
	net, nsp := newNetwork(t, 1), startFake(t)
	nsp.configure()
	nsp.target(1, active, address(1)+"/24")
	part := func(name string, subnets ...string) *nspv1.Flow {
		f := nsp.flows[0]
		return &nspv1.Flow{Name: name, Stream: f.Stream, Vips: f.Vips, Protocols: f.Protocols, DestinationPortRanges: f.DestinationPortRanges, SourceSubnets: subnets}
	}
	b, _ := net.balance(nsp, func(c *Config) { c.Feed = "" })
	nsp.set(func() {
		nsp.legacy = []*nspv1.Target{{Ips: []string{address(1) + "/24"}, Context: map[string]string{"identifier": "1"}, Stream: &nspv1.Stream{Name: "stream-a"}}}
		nsp.flows = []*nspv1.Flow{part("flow-a", "192.0.2.0/24"), part("flow-a/2", "10.0.0.0/31", "10.0.0.2/32")}
	})
	net.eventually("1")
	require.Empty(t, b.Status().Refused)
	nsp.set(func() { nsp.flows = []*nspv1.Flow{part("flow-a", "::1/128")} })
	net.eventually("nobody")
	require.Empty(t, b.Status().Refused)
}
