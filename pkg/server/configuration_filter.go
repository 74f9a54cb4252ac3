package server

import (
	"google.golang.org/protobuf/proto"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
)

// kind is a kind of resource.
type kind uint8

const (
	kindTrench kind = iota
	kindConduit
	kindStream
	kindFlow
	kindVip
	kindAttractor
	kindGateway
)

// query is the filter of one watch as far as it counts: the names, from the resource's own up to that of its trench. It is
// comparable; equal queries share one answer.
type query struct {
	kind kind
	// whole is set where all parents are there, be it without a name. Without it nothing matches.
	whole bool
	names [4]string
}

func queryTrench(t *nspv1.Trench) query {
	return query{kindTrench, true, [4]string{t.GetName()}}
}

func queryConduit(c *nspv1.Conduit) query {
	return query{kindConduit, c.GetTrench() != nil, [4]string{c.GetName(), c.GetTrench().GetName()}}.settled()
}

func queryStream(s *nspv1.Stream) query {
	c := queryConduit(s.GetConduit())
	return query{kindStream, c.whole, [4]string{s.GetName(), c.names[0], c.names[1]}}.settled()
}

func queryFlow(f *nspv1.Flow) query {
	s := queryStream(f.GetStream())
	return query{kindFlow, s.whole, [4]string{f.GetName(), s.names[0], s.names[1], s.names[2]}}.settled()
}

func queryVip(v *nspv1.Vip) query {
	return query{kindVip, v.GetTrench() != nil, [4]string{v.GetName(), v.GetTrench().GetName()}}.settled()
}

func queryAttractor(a *nspv1.Attractor) query {
	return query{kindAttractor, a.GetTrench() != nil, [4]string{a.GetName(), a.GetTrench().GetName()}}.settled()
}

func queryGateway(g *nspv1.Gateway) query {
	return query{kindGateway, g.GetTrench() != nil, [4]string{g.GetName(), g.GetTrench().GetName()}}.settled()
}

// settled makes all queries of a kind equal that match nothing.
func (q query) settled() query {
	if !q.whole {
		q.names = [4]string{}
	}
	return q
}

// matches tells whether the resource that item is the query of matches: a name that is missing on either side is equal to any.
func (q query) matches(item query) bool {
	if !q.whole {
		return false
	}
	for i, want := range q.names {
		if have := item.names[i]; want != "" && have != "" && want != have {
			return false
		}
	}
	return true
}

// matching are the items that match, in their order. of makes the query that names an item exactly.
func matching[T any](items []T, q query, of func(T) query) []T {
	var out []T
	for _, item := range items {
		if q.matches(of(item)) {
			out = append(out, item)
		}
	}
	return out
}

// answer is the response to a query. The name of a trench, other than all else, must be equal, also where it is empty.
func (r *resources) answer(q query) proto.Message {
	switch q.kind {
	case kindConduit:
		return &nspv1.ConduitResponse{Conduits: matching(r.conduits, q, queryConduit)}
	case kindStream:
		return &nspv1.StreamResponse{Streams: matching(r.streams, q, queryStream)}
	case kindFlow:
		return &nspv1.FlowResponse{Flows: matching(r.flows, q, queryFlow)}
	case kindVip:
		return &nspv1.VipResponse{Vips: matching(r.vips, q, queryVip)}
	case kindAttractor:
		return &nspv1.AttractorResponse{Attractors: matching(r.attractors, q, queryAttractor)}
	case kindGateway:
		return &nspv1.GatewayResponse{Gateways: matching(r.gateways, q, queryGateway)}
	default:
		if r.trench != nil && r.trench.GetName() == q.names[0] {
			return &nspv1.TrenchResponse{Trench: r.trench}
		}
		return &nspv1.TrenchResponse{}
	}
}
