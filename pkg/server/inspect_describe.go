package server

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// NamespaceState is how far a namespace of the cluster is read.
type NamespaceState struct {
	Name   string
	Synced bool
	// Age is the time since the API server last said anything of it.
	Age time.Duration
	// Err is what keeps it from being read, or nil.
	Err error
}

// Describe implements targetpoolv1.InspectorServer.
func (i *inspector) Describe(
	ctx context.Context, req *targetpoolv1.DescribeRequest,
) (*targetpoolv1.DescribeResponse, error) {
	cfg := &i.server.cfg
	o, err := cfg.Engine.Overview(ctx)
	if err != nil {
		return nil, fmt.Errorf("describing the process: %w", err)
	}
	out := &targetpoolv1.DescribeResponse{
		Namespace: cfg.Namespace, Cluster: cfg.Cluster, Epoch: cfg.Epoch, Authorisation: string(cfg.Auth),
		Answering: o.Answering, Rebuilding: o.Rebuilding, Stale: o.Stale,
		Receivers: i.server.audience.receiverInfos(),
	}
	if cfg.Namespaces != nil {
		for _, n := range cfg.Namespaces() {
			out.Namespaces = append(out.Namespaces, namespaceInfo(n))
		}
	}
	for _, t := range o.Trenches {
		out.Trenches = append(out.Trenches, trenchInfo(t))
	}
	for _, c := range o.Conduits {
		out.Conduits = append(out.Conduits, &targetpoolv1.ConduitInfo{
			Conduit: wireConduit(c.Conduit), Open: c.Open, Revision: c.Revision, Targets: uint32(c.Targets),
		})
	}
	for _, w := range o.Waiting {
		out.Waiting = append(out.Waiting, &targetpoolv1.WaitingInfo{
			Stream: wireStream(w.Stream), Ips: w.IPs, Pod: w.Pod, PodUid: w.PodUID, Preferred: w.Preferred,
		})
	}
	for _, a := range o.Limited {
		out.Sources = append(out.Sources, wireSources(a))
	}
	if w := req.GetWorkload(); w.GetNamespace() != "" {
		is, err := i.watchesOf(ctx, w)
		if err != nil {
			return nil, err
		}
		out.Sidecars = i.server.audience.sidecarInfos(is)
	}
	return out, nil
}

// watchesOf selects the watches of a pod or of all pods of a namespace, those that name an address included.
func (i *inspector) watchesOf(ctx context.Context, w *targetpoolv1.Workload) (func(engine.Workload) bool, error) {
	pools, err := i.server.cfg.Engine.Pools(ctx, w.GetNamespace())
	if err != nil {
		return nil, fmt.Errorf("describing the process: %w", err)
	}
	fits := func(pod string) bool { return w.GetPod() == "" || w.GetPod() == pod }
	addresses := make(map[engine.Workload]bool)
	for _, p := range pools {
		for _, m := range p.Members {
			if m.Member == nil || !fits(m.Name) {
				continue
			}
			for _, a := range m.Member.Addrs {
				addresses[engine.Workload{Addr: a}] = true
			}
		}
	}
	return func(x engine.Workload) bool {
		return addresses[x] || x.Namespace == w.GetNamespace() && fits(x.Pod)
	}, nil
}

func namespaceInfo(n NamespaceState) *targetpoolv1.NamespaceInfo {
	out := &targetpoolv1.NamespaceInfo{Name: n.Name, Synced: n.Synced, Age: durationpb.New(n.Age)}
	if n.Err != nil {
		out.Error = n.Err.Error()
	}
	return out
}

func trenchInfo(t engine.TrenchDetail) *targetpoolv1.TrenchInfo {
	out := &targetpoolv1.TrenchInfo{Name: t.Name, Read: t.Read}
	for _, k := range slices.SortedFunc(maps.Keys(t.MaxTargets), stream.Compare) {
		out.Limits = append(out.Limits, &targetpoolv1.StreamLimit{Stream: wireStream(k), MaxTargets: t.MaxTargets[k]})
	}
	return out
}

func wireConduit(c stream.Conduit) *targetpoolv1.Conduit {
	return &targetpoolv1.Conduit{Namespace: c.Namespace, Trench: c.Trench, Name: c.Name}
}

// listReceiver is who watches nsp.v1 as a load balancer of Meridio 1.x does.
func (s *Server) listReceiver(f engine.Filter) *recipient {
	return &recipient{
		kind:    targetpoolv1.ReceiverInfo_KIND_LIST,
		conduit: &targetpoolv1.Conduit{Namespace: s.cfg.Namespace, Trench: f.Trench, Name: f.Conduit},
		stream:  f.Stream,
	}
}
