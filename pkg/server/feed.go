package server

import (
	"cmp"
	"fmt"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/feed"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// maxPiece bounds the changes in one message, in bytes: far below the 4 MiB that a gRPC client accepts by default.
const maxPiece = 512 << 10

// targetFeed tells load balancers what changes.
type targetFeed struct {
	targetpoolv1.UnimplementedTargetFeedServer
	server *Server
}

// Watch implements targetpoolv1.TargetFeedServer.
func (t *targetFeed) Watch(
	req *targetpoolv1.TargetFeedWatchRequest, ss grpc.ServerStreamingServer[targetpoolv1.TargetFeedWatchResponse],
) error {
	conduit, err := t.conduit(req.GetConduit())
	if err != nil {
		return err
	}
	if err := t.server.cfg.mayFeed(auth.From(ss.Context()), conduit); err != nil {
		return fmt.Errorf("watching conduit %s: %w", conduit, err)
	}
	topic, err := t.server.cfg.Engine.Feed(ss.Context(), conduit)
	if err != nil {
		return fmt.Errorf("watching conduit %s: %w", conduit, err)
	}
	who := &recipient{kind: targetpoolv1.ReceiverInfo_KIND_FEED, conduit: wireConduit(conduit), caller: auth.From(ss.Context())}
	defer t.server.audience.receives(who)()
	w := &feedWatch{server: t.server, cursor: topic.Follow(), send: ss.SendMsg, sent: &who.sent}
	switch v := req.GetResume(); {
	case v == nil:
	case v.GetEpoch() == t.server.cfg.Epoch:
		w.cursor, w.told = topic.Resume(v.GetRevision()), true
		w.sent.Store(v.GetRevision())
	default:
		t.server.cfg.Log.InfoContext(ss.Context(), "resume with a version of another run; a snapshot follows",
			"conduit", conduit.String(), "peer", auth.From(ss.Context()).Addr, "epoch", brief(v.GetEpoch()), "revision", v.GetRevision())
	}
	return t.server.watch(ss.Context(), w)
}

func (t *targetFeed) conduit(c *targetpoolv1.Conduit) (stream.Conduit, error) {
	own := t.server.cfg.Namespace
	key := stream.Conduit{Namespace: cmp.Or(c.GetNamespace(), own), Trench: c.GetTrench(), Name: c.GetName()}
	if err := key.Validate(); err != nil {
		return key, fmt.Errorf("the conduit to watch: %w", err)
	}
	if key.Namespace != own {
		return key, fmt.Errorf("%w: conduit %s is of another namespace; this NSP serves %s", errMismatch, key, own)
	}
	return key, nil
}

// feedWatch is one load balancer's watch.
type feedWatch struct {
	server *Server
	cursor *feed.Cursor[uint64, engine.Item]
	send   func(any) error
	// told is set once the receiver has committed something, so that a heartbeat has a version to name.
	told bool
	// sent is the revision of the last batch that was sent, for people who look in.
	sent *atomic.Uint64
}

func (w *feedWatch) next() (bool, <-chan struct{}, error) {
	batch, ok, more := w.cursor.Next()
	if !ok {
		return false, more, nil
	}
	w.told = true
	w.server.slow.coalesced.Add(uint64(batch.Coalesced))
	err := w.sendBatch(batch)
	if err == nil {
		w.sent.Store(batch.Revision)
	}
	return true, more, err
}

// sendBatch sends a batch in pieces, the last of which commits.
func (w *feedWatch) sendBatch(batch feed.Batch[uint64, engine.Item]) error {
	kind := targetpoolv1.TargetFeedWatchResponse_KIND_DELTA
	if batch.Snapshot {
		kind = targetpoolv1.TargetFeedWatchResponse_KIND_SNAPSHOT
	}
	var piece frame
	size := 0
	for _, c := range batch.Changes {
		el := changeElement(c)
		if size > 0 && size+len(el) > maxPiece {
			if err := w.sendPiece(&targetpoolv1.TargetFeedWatchResponse{Kind: kind}, piece); err != nil {
				return err
			}
			piece, size = nil, 0
		}
		piece = append(piece, el)
		size += len(el)
	}
	return w.sendPiece(&targetpoolv1.TargetFeedWatchResponse{
		Kind: kind, Version: w.version(batch.Revision), Commit: true, Stale: w.server.cfg.Engine.Stale(),
	}, piece)
}

// sendPiece sends a message that consists of a head and encoded elements.
func (w *feedWatch) sendPiece(head *targetpoolv1.TargetFeedWatchResponse, changes frame) error {
	b, err := proto.Marshal(head)
	if err != nil {
		return fmt.Errorf("encoding a message of the feed: %w", err)
	}
	return w.send(append(frame{b}, changes...))
}

func (w *feedWatch) heartbeat() error {
	beat := &targetpoolv1.TargetFeedWatchResponse{
		Kind:  targetpoolv1.TargetFeedWatchResponse_KIND_HEARTBEAT,
		Stale: w.server.cfg.Engine.Stale(),
	}
	if w.told {
		beat.Version = w.version(w.cursor.Revision())
	}
	return w.sendPiece(beat, nil)
}

func (w *feedWatch) version(rev uint64) *targetpoolv1.Version {
	return &targetpoolv1.Version{Epoch: w.server.cfg.Epoch, Revision: rev}
}

// size is the length of the frame in bytes.
func (f frame) size() int {
	n := 0
	for _, piece := range f {
		n += len(piece)
	}
	return n
}
