package server

import (
	"slices"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	"github.com/nordix/meridio-nsp/pkg/config"
)

// resources are a configuration in the terms of nsp.v1: each resource bears its parents and what it refers to, complete.
// References to what does not exist, and what names another trench, are left out, as in Meridio 1.x.
type resources struct {
	trench     *nspv1.Trench // nil where there is no configuration
	conduits   []*nspv1.Conduit
	streams    []*nspv1.Stream
	flows      []*nspv1.Flow
	vips       []*nspv1.Vip
	attractors []*nspv1.Attractor
	gateways   []*nspv1.Gateway
	// unread has the kinds that cannot be told, because they are, or refer to, what was never read well.
	unread map[kind]bool
}

// resolve is pure. A nil configuration gives nothing of each kind.
func resolve(c *config.Config) *resources {
	if c == nil {
		return &resources{}
	}
	r := &resources{trench: &nspv1.Trench{Name: c.Trench.Name}, unread: unreadKinds(c)}
	r.vips = r.resolveVips(c.Vips)
	r.conduits = r.resolveConduits(c.Conduits)
	r.streams = r.resolveStreams(c.Streams)
	r.flows = r.resolveFlows(c.Flows)
	r.gateways = r.resolveGateways(c.Gateways)
	r.attractors = r.resolveAttractors(c.Attractors)
	return r
}

// keyOf is the key of the ConfigMap that has the resources of a kind.
var keyOf = map[kind]string{
	kindTrench: config.KeyTrench, kindConduit: config.KeyConduits, kindStream: config.KeyStreams, kindFlow: config.KeyFlows,
	kindVip: config.KeyVips, kindAttractor: config.KeyAttractors, kindGateway: config.KeyGateways,
}

// unreadKinds follows the references, parents first: leaving them out would say that what they name is gone.
func unreadKinds(c *config.Config) map[kind]bool {
	unread := make(map[kind]bool, len(keyOf))
	for k, key := range keyOf {
		unread[k] = !c.IsRead(key)
	}
	refer := func(from, to kind, refers bool) { unread[from] = unread[from] || refers && unread[to] }
	for _, k := range []kind{kindVip, kindGateway, kindConduit, kindAttractor} {
		refer(k, kindTrench, true)
	}
	refer(kindConduit, kindVip, slices.ContainsFunc(c.Conduits, func(c config.Conduit) bool {
		return slices.ContainsFunc(c.DestinationPortNats, func(p config.PortNat) bool { return len(p.Vips) > 0 })
	}))
	refer(kindStream, kindConduit, len(c.Streams) > 0)
	refer(kindFlow, kindStream, len(c.Flows) > 0)
	refer(kindFlow, kindVip, slices.ContainsFunc(c.Flows, func(f config.Flow) bool { return len(f.Vips) > 0 }))
	refer(kindAttractor, kindVip, slices.ContainsFunc(c.Attractors, func(a config.Attractor) bool { return len(a.Vips) > 0 }))
	refer(kindAttractor, kindGateway, slices.ContainsFunc(c.Attractors, func(a config.Attractor) bool { return len(a.Gateways) > 0 }))
	return unread
}

func (r *resources) resolveVips(items []config.Vip) []*nspv1.Vip {
	var out []*nspv1.Vip
	for _, v := range items {
		if v.Trench == r.trench.GetName() {
			out = append(out, &nspv1.Vip{Name: v.Name, Address: v.Address, Trench: r.trench})
		}
	}
	return out
}

func (r *resources) resolveConduits(items []config.Conduit) []*nspv1.Conduit {
	vips := byName(r.vips)
	var out []*nspv1.Conduit
	for _, c := range items {
		if c.Trench != r.trench.GetName() {
			continue
		}
		conduit := &nspv1.Conduit{Name: c.Name, Trench: r.trench}
		for _, p := range c.DestinationPortNats {
			conduit.DestinationPortNats = append(conduit.DestinationPortNats, &nspv1.Conduit_PortNat{
				Port: uint32(p.Port), TargetPort: uint32(p.TargetPort), Vips: named(p.Vips, vips), Protocol: p.Protocol,
			})
		}
		out = append(out, conduit)
	}
	return out
}

func (r *resources) resolveStreams(items []config.Stream) []*nspv1.Stream {
	conduits := byName(r.conduits)
	var out []*nspv1.Stream
	for _, s := range items {
		if c, ok := conduits[s.Conduit]; ok {
			out = append(out, &nspv1.Stream{Name: s.Name, Conduit: c, MaxTargets: s.MaxTargets})
		}
	}
	return out
}

func (r *resources) resolveFlows(items []config.Flow) []*nspv1.Flow {
	streams, vips := byName(r.streams), byName(r.vips)
	var out []*nspv1.Flow
	for _, f := range items {
		s, ok := streams[f.Stream]
		if !ok {
			continue
		}
		out = append(out, &nspv1.Flow{
			Name: f.Name, SourceSubnets: f.SourceSubnets, DestinationPortRanges: f.DestinationPortRanges,
			SourcePortRanges: f.SourcePortRanges, Protocols: f.Protocols, Priority: f.Priority, Stream: s,
			Vips: named(f.Vips, vips), ByteMatches: f.ByteMatches,
		})
	}
	return out
}

func (r *resources) resolveGateways(items []config.Gateway) []*nspv1.Gateway {
	var out []*nspv1.Gateway
	for _, g := range items {
		if g.Trench != r.trench.GetName() {
			continue
		}
		gateway := &nspv1.Gateway{
			Name: g.Name, Address: g.Address, IpFamily: g.IPFamily, Protocol: g.Protocol, RemoteASN: g.RemoteASN,
			LocalASN: g.LocalASN, RemotePort: uint32(g.RemotePort), LocalPort: uint32(g.LocalPort), HoldTime: uint32(g.HoldTime),
			Bfd: g.BFD, Trench: r.trench,
		}
		if g.BFD {
			gateway.BfdSpec = &nspv1.Gateway_BfdSpec{
				MinTx: uint32(g.MinTx), MinRx: uint32(g.MinRx), Multiplier: uint32(g.Multiplier),
			}
		}
		if g.BGPAuth != nil {
			gateway.BgpAuth = &nspv1.Gateway_BgpAuth{KeyName: g.BGPAuth.Key, KeySource: g.BGPAuth.Source}
		}
		out = append(out, gateway)
	}
	return out
}

func (r *resources) resolveAttractors(items []config.Attractor) []*nspv1.Attractor {
	vips, gateways := byName(r.vips), byName(r.gateways)
	var out []*nspv1.Attractor
	for _, a := range items {
		if a.Trench == r.trench.GetName() {
			out = append(out, &nspv1.Attractor{
				Name: a.Name, Trench: r.trench, Vips: named(a.Vips, vips), Gateways: named(a.Gateways, gateways),
			})
		}
	}
	return out
}

// byName finds resources by name; of several with one name the last counts.
func byName[T interface{ GetName() string }](items []T) map[string]T {
	out := make(map[string]T, len(items))
	for _, item := range items {
		out[item.GetName()] = item
	}
	return out
}

// named are the resources of those names that exist.
func named[T any](names []string, all map[string]T) []T {
	var out []T
	for _, name := range names {
		if item, ok := all[name]; ok {
			out = append(out, item)
		}
	}
	return out
}
