package main

import (
	"context"
	"slices"

	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/explain"
	"github.com/nordix/meridio-nsp/pkg/pool"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// processFacts asks the NSP. Of a target it finds out the namespace of its pod.
func (c *connection) processFacts(ctx context.Context, s *explain.Subject, f *explain.ProcessFacts) error {
	return c.inspect(ctx, func(ctx context.Context, client targetpoolv1.InspectorClient) error {
		targets, err := client.ListTargets(ctx, &targetpoolv1.ListTargetsRequest{})
		if err != nil {
			return err
		}
		for _, t := range targets.GetTargets() {
			if t.GetType() == "DEFAULT" {
				f.Targets = append(f.Targets, targetFacts(t))
			}
		}
		if s.Kind == explain.Target {
			s.Namespace = namespaceOfTarget(*s, f.Targets)
		}
		pools, err := client.ListPools(ctx, &targetpoolv1.ListPoolsRequest{})
		if err != nil {
			return err
		}
		for _, p := range pools.GetPools() {
			f.Pools = append(f.Pools, poolFacts(p))
		}
		w := &targetpoolv1.Workload{Namespace: s.Namespace}
		if s.Kind == explain.Pod {
			w.Pod = s.Name
		}
		d, err := client.Describe(ctx, &targetpoolv1.DescribeRequest{Workload: w})
		if err != nil {
			return err
		}
		describe(d, f)
		return nil
	})
}

// namespaceOfTarget is that of the pod whose registration has the address; without one it stays.
func namespaceOfTarget(s explain.Subject, targets []explain.TargetFacts) string {
	for _, t := range targets {
		if ns, _, ok := cutPod(t.Pod); ok && slices.ContainsFunc(t.Addresses, func(a string) bool { return bears(a, s.Addr) }) {
			return ns
		}
	}
	return s.Namespace
}

func describe(d *targetpoolv1.DescribeResponse, f *explain.ProcessFacts) {
	f.Namespace, f.Cluster, f.Authorisation = d.GetNamespace(), d.GetCluster(), d.GetAuthorisation()
	f.Answering, f.Rebuilding, f.Stale = d.GetAnswering(), d.GetRebuilding(), d.GetStale()
	f.Namespaces = make(map[string]explain.NamespaceFacts)
	for _, n := range d.GetNamespaces() {
		f.Namespaces[n.GetName()] = explain.NamespaceFacts{Synced: n.GetSynced(), Err: n.GetError(), Age: n.GetAge().AsDuration()}
	}
	f.Trenches = make(map[string]explain.TrenchState)
	for _, t := range d.GetTrenches() {
		limits := make(map[stream.Key]uint32)
		for _, l := range t.GetLimits() {
			limits[keyOf(l.GetStream())] = l.GetMaxTargets()
		}
		f.Trenches[t.GetName()] = explain.TrenchState{Read: t.GetRead(), MaxTargets: limits}
	}
	f.Conduits = make(map[stream.Conduit]explain.ConduitState)
	for _, c := range d.GetConduits() {
		key := stream.Conduit{Namespace: c.GetConduit().GetNamespace(), Trench: c.GetConduit().GetTrench(), Name: c.GetConduit().GetName()}
		f.Conduits[key] = explain.ConduitState{Open: c.GetOpen(), Revision: c.GetRevision(), Targets: int(c.GetTargets())}
	}
	f.Prefixes = make(map[stream.Key]int)
	for _, s := range d.GetSources() {
		f.Prefixes[keyOf(s.GetStream())] = len(s.GetPrefixes())
	}
	for _, r := range d.GetReceivers() {
		f.Receivers = append(f.Receivers, explain.Receiver{
			Kind: receiverKinds[r.GetKind()], Trench: r.GetConduit().GetTrench(), Conduit: r.GetConduit().GetName(), Stream: r.GetStream(),
			Peer: r.GetPeer(), Since: r.GetSince().AsTime(), Revision: r.GetRevision(),
		})
	}
	for _, w := range d.GetWaiting() {
		f.Waiting = append(f.Waiting, explain.Waiting{
			Stream: keyOf(w.GetStream()), Addresses: w.GetIps(), Pod: w.GetPod(), PodUID: w.GetPodUid(), Preferred: w.GetPreferred(),
		})
	}
	for _, s := range d.GetSidecars() {
		f.Sidecars = append(f.Sidecars, explain.Sidecar{
			Pod: s.GetWorkload().GetPod(), PodUID: s.GetWorkload().GetPodUid(), Address: s.GetWorkload().GetAddress(),
			External: s.GetWorkload().GetExternalTarget(), Peer: s.GetPeer(),
			Since: s.GetSince().AsTime(), Proven: s.GetProven(), Told: s.GetTold(), Streams: keysOf(s.GetStreams()),
			Addresses: s.GetAddresses(), Owners: s.GetOwners(), Application: keysOf(s.GetApplication()),
		})
	}
}

var receiverKinds = map[targetpoolv1.ReceiverInfo_Kind]explain.ReceiverKind{
	targetpoolv1.ReceiverInfo_KIND_FEED: explain.ByFeed, targetpoolv1.ReceiverInfo_KIND_LIST: explain.ByList,
	targetpoolv1.ReceiverInfo_KIND_RELAY: explain.ByRelay,
}

func keyOf(s *targetpoolv1.Stream) stream.Key {
	return stream.Key{Namespace: s.GetNamespace(), Trench: s.GetTrench(), Conduit: s.GetConduit(), Name: s.GetName()}
}

func keysOf(all []*targetpoolv1.Stream) (keys []stream.Key) {
	for _, s := range all {
		keys = append(keys, keyOf(s))
	}
	return keys
}

func poolFacts(p *targetpoolv1.PoolInfo) explain.PoolFacts {
	f := explain.PoolFacts{
		Ref: pool.Ref{Namespace: p.GetNamespace(), Name: p.GetName()}, UID: p.GetUid(), Accepted: p.GetAccepted(), Reason: p.GetReason(),
		Message: p.GetMessage(), Assignment: p.GetAssignment(), Panic: p.GetPanic(), Problems: p.GetProblems(),
		Slices: make(map[string]uint64),
	}
	if p.GetStream() != nil {
		f.Stream = keyOf(p.GetStream())
	}
	for _, s := range p.GetSlices() {
		f.Slices[s.GetName()] = s.GetResourceVersion()
	}
	for _, m := range p.GetMembers() {
		f.Members = append(f.Members, explain.MemberFacts{
			Namespace: m.GetNamespace(), Pod: m.GetPod(), UID: m.GetUid(), External: m.GetExternalTarget(), Addresses: m.GetAddresses(), Condition: m.GetCondition(),
			State: m.GetState(), Assigned: m.GetAssigned(), Withheld: m.GetWithheld(), Watched: m.GetWatched(),
		})
	}
	return f
}

func targetFacts(t *targetpoolv1.TargetInfo) explain.TargetFacts {
	f := explain.TargetFacts{
		ID: t.GetId(), Stream: keyOf(t.GetStream()), Addresses: t.GetIps(), Identifier: t.GetIdentifier(), Status: t.GetStatus(),
		Blocked: t.GetBlocked(), Reason: t.GetReason(), Pod: t.GetPod(), PodUID: t.GetPodUid(), Binding: t.GetBinding(),
		Listed: t.GetListed(), Peer: t.GetPeer(),
	}
	if t.GetState() != targetpoolv1.Target_STATE_UNSPECIFIED {
		f.State = stateName(t.GetState())
	}
	if t.GetCaused() != nil {
		f.Caused = t.GetCaused().AsTime()
	}
	return f
}
