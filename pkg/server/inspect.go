package server

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/types/known/timestamppb"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/pool"
)

// inspector lets people look in.
type inspector struct {
	targetpoolv1.UnimplementedInspectorServer
	server *Server
}

// ListPools implements targetpoolv1.InspectorServer.
func (i *inspector) ListPools(
	ctx context.Context, req *targetpoolv1.ListPoolsRequest,
) (*targetpoolv1.ListPoolsResponse, error) {
	pools, err := i.server.cfg.Engine.Pools(ctx, req.GetNamespace())
	if err != nil {
		return nil, fmt.Errorf("listing pools: %w", err)
	}
	out := &targetpoolv1.ListPoolsResponse{}
	for _, p := range pools {
		out.Pools = append(out.Pools, poolInfo(p))
	}
	return out, nil
}

// ListTargets implements targetpoolv1.InspectorServer.
func (i *inspector) ListTargets(
	ctx context.Context, req *targetpoolv1.ListTargetsRequest,
) (*targetpoolv1.ListTargetsResponse, error) {
	k := req.GetStream()
	rows, err := i.server.cfg.Engine.Targets(ctx, engine.Filter{
		Trench: k.GetTrench(), Conduit: k.GetConduit(), Stream: k.GetName(),
	})
	if err != nil {
		return nil, fmt.Errorf("listing targets: %w", err)
	}
	out := &targetpoolv1.ListTargetsResponse{}
	for _, r := range rows {
		out.Targets = append(out.Targets, targetInfo(r))
	}
	return out, nil
}

func poolInfo(d engine.PoolDetail) *targetpoolv1.PoolInfo {
	p := d.Pool
	out := &targetpoolv1.PoolInfo{
		Namespace:      p.Namespace,
		Name:           p.Name,
		Uid:            p.UID,
		Accepted:       p.Accepted,
		Reason:         p.Reason,
		Message:        p.Message,
		Assignment:     string(p.Assignment),
		Draining:       "remove",
		PanicThreshold: uint32(p.PanicThreshold), // 0..100
		Panic:          p.Panic,
		Problems:       p.Problems,
	}
	if p.KeepDrain {
		out.Draining = "keep"
	}
	if p.Stream.Name != "" {
		out.Stream = wireStream(p.Stream)
	}
	for _, s := range d.Slices {
		out.Slices = append(out.Slices, &targetpoolv1.SliceInfo{Name: s.Name, ResourceVersion: s.Version})
	}
	for _, m := range d.Members {
		out.Members = append(out.Members, memberInfo(m))
	}
	return out
}

var (
	conditions = map[pool.Condition]string{pool.NotReady: "NotReady", pool.Draining: "Draining", pool.Ready: "Ready"}
	states     = map[pool.State]string{pool.Inactive: "INACTIVE", pool.DrainingState: "DRAINING", pool.Active: "ACTIVE"}
)

func memberInfo(m engine.MemberDetail) *targetpoolv1.MemberInfo {
	out := &targetpoolv1.MemberInfo{
		Namespace: m.Key.Namespace,
		Pod:       m.Name,
		Uid:       m.Key.UID,
		Condition: conditions[m.Condition],
		State:     states[m.State],
		Assigned:  m.Assigned,
		Withheld:  m.Withheld,
		Watched:   m.Watched,

		ExternalTarget: m.PoolMember.Target,
		Component:      wireComponent(m.Component),
	}
	if m.Member != nil {
		for _, a := range m.Member.Addrs {
			out.Addresses = append(out.Addresses, a.String())
		}
	}
	return out
}

func targetInfo(r *engine.Row) *targetpoolv1.TargetInfo {
	e := r.Entry
	out := &targetpoolv1.TargetInfo{
		Id:         e.ID,
		Type:       nspv1.Target_Type(e.Type).String(),
		Stream:     wireStream(e.Stream),
		Ips:        e.IPs,
		Identifier: e.Context["identifier"],
		Status:     nspv1.Target_Status(e.Status).String(),
		Blocked:    e.Blocked,
		State:      state(r.State),
		Reason:     r.Reason,
		Pod:        r.Pod,
		PodUid:     r.PodUID,
		Binding:    string(r.Binding),
		Listed:     r.Listed,
		Components: wireComponents(r.Components),
	}
	if e.Caller.Peer.IsValid() {
		out.Peer = e.Caller.Peer.String()
	}
	if !r.Caused.IsZero() {
		out.Caused = timestamppb.New(r.Caused)
	}
	return out
}
