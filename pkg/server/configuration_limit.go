package server

import (
	"net/netip"
	"strconv"

	"google.golang.org/protobuf/proto"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	"github.com/nordix/meridio-nsp/pkg/sources"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// The load balancers of Meridio 1.x hand the source subnets of a flow to nfqlb, which refuses a flow with more of them, or with a
// longer text (MAX_CIDRS in src/lib/flow.c, MAX_ARG_LEN in src/nfqlb/nfqlb.h of Nordix/nfqueue-loadbalancer). The flow would stay as
// it was then, so one that needs more becomes several.
const (
	maxSubnets     = 32
	maxSubnetsText = 1000
)

// streamName names a stream within its trench.
type streamName struct{ conduit, name string }

// AwaitLimits says that it will be told by Limit who may use which stream: before that no flow is told. It comes before all else.
func (c *Configuration) AwaitLimits() { c.awaiting = true }

// Limit replaces from where streams may be used, by the policies for them; their namespace and trench do not count. Streams that
// are not named are as configured.
func (c *Configuration) Limit(limits map[stream.Key]*sources.Set) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.awaiting = false
	c.limits = make(map[streamName]*sources.Set, len(limits))
	for k, set := range limits {
		c.limits[streamName{k.Conduit, k.Name}] = set
	}
	c.publishAll()
}

// limited narrows the source subnets of flows. The flow stays where nobody may use its stream: TAPAs of Meridio 1.x have their VIPs
// from flows, and a load balancer needs one to be healthy.
func limited(flows []*nspv1.Flow, limits map[streamName]*sources.Set) []*nspv1.Flow {
	if len(limits) == 0 {
		return flows
	}
	var out []*nspv1.Flow
	for _, f := range flows {
		set, is := limits[streamName{f.GetStream().GetConduit().GetName(), f.GetStream().GetName()}]
		if !is {
			out = append(out, f)
			continue
		}
		// A subnet that is not understood lets nobody in, here as in a load balancer.
		subnets, _ := sources.ParseAll(f.GetSourceSubnets())
		for i, part := range parts(set.Limit(subnets)) {
			narrow := proto.CloneOf(f)
			narrow.SourceSubnets = part
			if i > 0 {
				narrow.Name += "/" + strconv.Itoa(i+1) // no object of Kubernetes is called that
			}
			out = append(out, narrow)
		}
	}
	return out
}

// parts cuts subnets into lists that nfqlb takes.
func parts(subnets []netip.Prefix) (all [][]string) {
	length := 0
	var part []string
	for _, text := range texts(subnets) {
		if len(part) == maxSubnets || length+len(text) > maxSubnetsText {
			all, part, length = append(all, part), nil, 0
		}
		part, length = append(part, text), length+len(text)+1
	}
	return append(all, part)
}

// texts spells the prefix of all addresses of a family as two: where a flow has nothing but such, 1.x takes it for one of all
// families.
func texts(subnets []netip.Prefix) (all []string) {
	for _, p := range subnets {
		switch {
		case p.Bits() > 0:
			all = append(all, p.String())
		case p.Addr().Is4():
			all = append(all, "0.0.0.0/1", "128.0.0.0/1")
		default:
			all = append(all, "::/1", "8000::/1")
		}
	}
	return all
}
