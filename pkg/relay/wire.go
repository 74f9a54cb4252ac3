package relay

import (
	"fmt"
	"time"

	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

func positionOf(p *targetpoolv1.Position) position {
	v := p.GetVersion()
	return position{Epoch: v.GetEpoch(), Revision: v.GetRevision(), Registrations: p.GetRegistrations()}
}

func peerOf(c registry.Caller) string {
	if !c.Peer.IsValid() {
		return ""
	}
	return c.Peer.String()
}

func registrationOf(t registry.Target) *targetpoolv1.Registration {
	return &targetpoolv1.Registration{
		Type:   int32(t.Type),
		Status: int32(t.Status),
		Stream: &targetpoolv1.Stream{
			Namespace: t.Stream.Namespace, Trench: t.Stream.Trench, Conduit: t.Stream.Conduit, Name: t.Stream.Name,
		},
		Ips:     t.IPs,
		Context: t.Context,
	}
}

func restoredOf(r registry.Restored) *targetpoolv1.Restored {
	return &targetpoolv1.Restored{
		Registration: registrationOf(r.Target), Peer: peerOf(r.Caller), Proven: provenOf(r.Caller, auth.Pod{}), Reserved: r.Reserved,
	}
}

// provenOf is the pod that a caller has proven to be; how it is called is left out where it is not the caller's.
func provenOf(c registry.Caller, pod auth.Pod) *targetpoolv1.ProvenPod {
	switch c.PodUID {
	case "":
		return nil
	case pod.UID:
		return &targetpoolv1.ProvenPod{Namespace: pod.Namespace, Name: pod.Name, Uid: pod.UID}
	}
	return &targetpoolv1.ProvenPod{Uid: c.PodUID}
}

func seenOf(w *withdrawal) *targetpoolv1.Seen {
	return &targetpoolv1.Seen{Id: w.entry.ID, Position: &targetpoolv1.Position{
		Version:       &targetpoolv1.Version{Epoch: w.seen.Epoch, Revision: w.seen.Revision},
		Registrations: w.seen.Registrations,
	}}
}

// changeOf reads one change of the trench's registrations.
func changeOf(c *targetpoolv1.RelayChange, trench, namespace string) (change, error) {
	out := change{id: c.GetId()}
	if c.GetRow() == nil {
		return out, nil
	}
	row := c.GetRow()
	reg, st := row.GetRegistration(), row.GetRegistration().GetStream()
	e, err := registry.EntryOf(registry.Target{
		Scope:  trench,
		Type:   registry.Type(reg.GetType()),
		Status: registry.Status(reg.GetStatus()),
		Stream: stream.Key{
			Namespace: namespace, Trench: st.GetTrench(), Conduit: st.GetConduit(), Name: st.GetName(),
		},
		IPs:     reg.GetIps(),
		Context: reg.GetContext(),
	}, registry.Caller{PodUID: row.GetProvenPodUid()}, namespace)
	if err != nil {
		return out, fmt.Errorf("%w: registration %d: %w", errStep, c.GetId(), err)
	}
	e.ID, e.Blocked, e.Reserved = c.GetId(), row.GetBlocked(), row.GetReserved()
	out.row = &engine.Row{
		Entry: &e, State: engine.State(row.GetState()), Reason: row.GetReason(), Pod: row.GetPod(), Caused: causedOf(row),
	}
	return out, nil
}

func causedOf(row *targetpoolv1.RelayRow) time.Time {
	if row.GetCaused() == nil {
		return time.Time{}
	}
	return row.GetCaused().AsTime()
}
