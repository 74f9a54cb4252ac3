package server

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/feed"
	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// RelayRegistry is what the server needs of the registry to serve trench processes.
type RelayRegistry interface {
	Registry
	// Withdraw unregisters unless the entry is another one than was seen, or was registered since.
	Withdraw(ctx context.Context, t registry.Target, seen registry.Seen) error
	// Restore stores entries as they were where there are none.
	Restore(ctx context.Context, restored []registry.Restored) error
	// Registrations counts the calls of Register in this run.
	Registrations() uint64
}

// relay serves trench processes.
type relay struct {
	targetpoolv1.UnimplementedRelayServer
	server *Server
}

func (r *relay) registry() RelayRegistry { return r.server.cfg.Relay }

// Position implements targetpoolv1.RelayServer.
func (r *relay) Position(
	ctx context.Context, req *targetpoolv1.RelayPositionRequest,
) (*targetpoolv1.RelayPositionResponse, error) {
	p, err := r.position(ctx, req.GetTrench())
	return &targetpoolv1.RelayPositionResponse{Position: p}, err
}

// position is asked for after what it has to cover: the registry answers its callers when the engine has published.
func (r *relay) position(ctx context.Context, trench string) (*targetpoolv1.Position, error) {
	topic, err := r.topic(ctx, trench)
	if err != nil {
		return nil, err
	}
	return r.positionAt(topic.Revision()), nil
}

func (r *relay) positionAt(revision uint64) *targetpoolv1.Position {
	return &targetpoolv1.Position{
		Version:       &targetpoolv1.Version{Epoch: r.server.cfg.Epoch, Revision: revision},
		Registrations: r.registry().Registrations(),
	}
}

func (r *relay) topic(ctx context.Context, trench string) (*engine.Topic, error) {
	if trench == "" {
		return nil, invalid("the trench is not named")
	}
	if err := mayRelay(auth.From(ctx), trench); err != nil {
		return nil, err
	}
	topic, err := r.server.cfg.Engine.Scope(ctx, trench)
	if err != nil {
		return nil, fmt.Errorf("relaying trench %q: %w", trench, err)
	}
	return topic, nil
}

// Register implements targetpoolv1.RelayServer.
func (r *relay) Register(
	ctx context.Context, req *targetpoolv1.RelayRegisterRequest,
) (*targetpoolv1.RelayRegisterResponse, error) {
	t, err := r.target(ctx, req.GetTrench(), req.GetRegistration())
	if err != nil {
		return nil, err
	}
	if err := r.registry().Register(ctx, t, callerAt(req.GetPeer(), req.GetProven())); err != nil {
		return nil, fmt.Errorf("registering for trench %q: %w", req.GetTrench(), err)
	}
	p, err := r.position(ctx, req.GetTrench())
	return &targetpoolv1.RelayRegisterResponse{Position: p}, err
}

// Unregister implements targetpoolv1.RelayServer.
func (r *relay) Unregister(
	ctx context.Context, req *targetpoolv1.RelayUnregisterRequest,
) (*targetpoolv1.RelayUnregisterResponse, error) {
	t, err := r.target(ctx, req.GetTrench(), req.GetRegistration())
	if err != nil {
		return nil, err
	}
	if seen := req.GetSeen(); seen != nil {
		known := registry.Seen{ID: seen.GetId()}
		if p := seen.GetPosition(); p.GetVersion().GetEpoch() == r.server.cfg.Epoch {
			known.Registrations = p.GetRegistrations()
		}
		err = r.registry().Withdraw(ctx, t, known)
	} else {
		err = r.registry().Unregister(ctx, t, callerAt(req.GetPeer(), req.GetProven()))
	}
	if err != nil {
		return nil, fmt.Errorf("unregistering for trench %q: %w", req.GetTrench(), err)
	}
	p, err := r.position(ctx, req.GetTrench())
	return &targetpoolv1.RelayUnregisterResponse{Position: p}, err
}

// Restore implements targetpoolv1.RelayServer.
func (r *relay) Restore(
	ctx context.Context, req *targetpoolv1.RelayRestoreRequest,
) (*targetpoolv1.RelayRestoreResponse, error) {
	var all []registry.Restored
	for _, one := range req.GetRegistrations() {
		t, err := r.target(ctx, req.GetTrench(), one.GetRegistration())
		if err != nil {
			return nil, err
		}
		if one.GetBlocked() {
			t.Status = registry.Enabled
		}
		all = append(all, registry.Restored{
			Target: t, Caller: callerAt(one.GetPeer(), one.GetProven()), Reserved: one.GetReserved(),
		})
	}
	if err := r.registry().Restore(ctx, all); err != nil {
		return nil, fmt.Errorf("restoring registrations of trench %q: %w", req.GetTrench(), err)
	}
	p, err := r.position(ctx, req.GetTrench())
	return &targetpoolv1.RelayRestoreResponse{Position: p}, err
}

// target is what is registered. A trench process speaks for its own trench, whatever its callers say.
func (r *relay) target(ctx context.Context, trench string, reg *targetpoolv1.Registration) (registry.Target, error) {
	if trench == "" {
		return registry.Target{}, invalid("the trench is not named")
	}
	if err := mayRelay(auth.From(ctx), trench); err != nil {
		return registry.Target{}, err
	}
	st := reg.GetStream()
	if t := st.GetTrench(); t != "" && t != trench {
		return registry.Target{}, auth.Deny(auth.OtherTrench,
			"the registration is of trench %q and came through the NSP of trench %q", t, trench)
	}
	own := r.server.cfg.Namespace
	return registry.Target{
		Scope:  trench,
		Type:   registry.Type(reg.GetType()),
		Status: registry.Status(reg.GetStatus()),
		Stream: stream.Key{
			Namespace: cmp.Or(st.GetNamespace(), own), Trench: st.GetTrench(), Conduit: st.GetConduit(), Name: st.GetName(),
		},
		IPs:     reg.GetIps(),
		Context: reg.GetContext(),
	}, nil
}

// callerAt is who called the trench process. What is no address proves nothing.
func callerAt(peer string, proven *targetpoolv1.ProvenPod) registry.Caller {
	c := registry.Caller{PodUID: proven.GetUid()}
	if a, err := netip.ParseAddr(peer); err == nil {
		c.Peer = a.Unmap().WithZone("")
	}
	return c
}

// Watch implements targetpoolv1.RelayServer.
func (r *relay) Watch(
	req *targetpoolv1.RelayWatchRequest, ss grpc.ServerStreamingServer[targetpoolv1.RelayWatchResponse],
) error {
	topic, err := r.topic(ss.Context(), req.GetTrench())
	if err != nil {
		return err
	}
	defer r.server.audience.receives(&recipient{
		kind: targetpoolv1.ReceiverInfo_KIND_RELAY, caller: auth.From(ss.Context()),
		conduit: &targetpoolv1.Conduit{Namespace: r.server.cfg.Namespace, Trench: req.GetTrench()},
	})()
	w := &relayWatch{relay: r, cursor: topic.Follow(), send: ss.Send}
	if v := req.GetResume(); v != nil && v.GetEpoch() == r.server.cfg.Epoch {
		w.cursor, w.told = topic.Resume(v.GetRevision()), true
	}
	return r.server.watch(ss.Context(), w)
}

// relayWatch is one trench process's watch.
type relayWatch struct {
	relay  *relay
	cursor *feed.Cursor[uint64, engine.Item]
	send   func(*targetpoolv1.RelayWatchResponse) error
	// told is set once the receiver has committed something.
	told bool
}

func (w *relayWatch) next() (bool, <-chan struct{}, error) {
	batch, ok, more := w.cursor.Next()
	if !ok {
		return false, more, nil
	}
	w.told = true
	w.relay.server.slow.coalesced.Add(uint64(batch.Coalesced))
	return true, more, w.sendBatch(batch)
}

// sendBatch sends a batch in pieces, the last of which commits.
func (w *relayWatch) sendBatch(batch feed.Batch[uint64, engine.Item]) error {
	piece := &targetpoolv1.RelayWatchResponse{Kind: targetpoolv1.RelayWatchResponse_KIND_DELTA}
	if batch.Snapshot {
		piece.Kind = targetpoolv1.RelayWatchResponse_KIND_SNAPSHOT
	}
	size := 0
	for _, c := range batch.Changes {
		part := relayPart(c)
		n := proto.Size(part)
		if size > 0 && size+n > maxPiece {
			if err := w.send(piece); err != nil {
				return err
			}
			piece, size = &targetpoolv1.RelayWatchResponse{Kind: piece.GetKind()}, 0
		}
		piece.Changes, piece.Sources = append(piece.Changes, part.GetChanges()...), append(piece.Sources, part.GetSources()...)
		size += n
	}
	piece.Commit, piece.Position = true, w.relay.positionAt(batch.Revision)
	return w.send(piece)
}

func (w *relayWatch) heartbeat() error {
	beat := &targetpoolv1.RelayWatchResponse{Kind: targetpoolv1.RelayWatchResponse_KIND_HEARTBEAT}
	if w.told {
		beat.Position = w.relay.positionAt(w.cursor.Revision())
	}
	return w.send(beat)
}

// relayPart is what a change adds to a message.
func relayPart(c feed.Change[uint64, engine.Item]) *targetpoolv1.RelayWatchResponse {
	if a := c.Value.Access; a != nil {
		return &targetpoolv1.RelayWatchResponse{Sources: []*targetpoolv1.StreamSources{wireSources(a)}}
	}
	return &targetpoolv1.RelayWatchResponse{Changes: []*targetpoolv1.RelayChange{relayChange(c)}}
}

func relayChange(c feed.Change[uint64, engine.Item]) *targetpoolv1.RelayChange {
	out := &targetpoolv1.RelayChange{Id: c.Key}
	if c.Gone {
		return out
	}
	row, e := c.Value.Row, c.Value.Row.Entry
	out.Row = &targetpoolv1.RelayRow{
		Registration: &targetpoolv1.Registration{
			Type:    int32(e.Type),
			Status:  int32(e.Status),
			Stream:  &targetpoolv1.Stream{Trench: e.Stream.Trench, Conduit: e.Stream.Conduit, Name: e.Stream.Name},
			Ips:     e.IPs,
			Context: e.Context,
		},
		Blocked:  e.Blocked,
		Reserved: e.Reserved,
		State:    state(row.State),
		Reason:   row.Reason,
		Pod:      row.Pod,

		ProvenPodUid: e.Caller.PodUID,
	}
	if !row.Caused.IsZero() {
		out.Row.Caused = timestamppb.New(row.Caused)
	}
	return out
}
