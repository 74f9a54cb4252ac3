package client

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"google.golang.org/grpc"

	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
)

// Version orders the commits of one feed; revisions compare within one epoch only.
type Version struct {
	Epoch    string
	Revision uint64
}

func versionOf(v *targetpoolv1.Version) Version {
	return Version{Epoch: v.GetEpoch(), Revision: v.GetRevision()}
}

// Update is what one commit changed. Apply Removed before Set: an identifier may pass from one target to another.
type Update struct {
	// First marks the first commit of this Feed. It may be empty: then the conduit has no targets.
	First bool
	// Set are new targets and those of which identifier, state, reason or pod changed, sorted by key.
	Set []*Target
	// Removed are the targets that left, as they were, sorted by key.
	Removed []*Target
	// Sources are the streams from whose use other sources are kept than before, sorted by name: those that are limited anew or
	// otherwise, and as unlimited those that are as configured again. Whoever forwards traffic has to apply them.
	Sources []*targetpoolv1.StreamSources
	// Stale says that the server runs on what it stored before its restart, because the cluster has not answered yet.
	Stale   bool
	Version Version
	// Received is when the commit came out of the stream.
	Received time.Time
}

// FeedConfig says what to watch and whom to tell.
type FeedConfig struct {
	Conduit *targetpoolv1.Conduit
	// Handler is called for the first commit and for every later one that changed something.
	Handler func(Update)
}

// Feed keeps the targets of one conduit up to date.
type Feed struct {
	*line
	conduit *targetpoolv1.Conduit
	handler func(Update)

	// Used by Run only.
	began  bool // A commit was applied.
	resync bool // The next stream must start with a snapshot.
	stale  bool

	mu      sync.RWMutex // Guards against Targets, Sources and Version; only Run writes.
	version Version
	table   *table
	limits  limits
}

// WatchFeed makes a Feed; its Run does the work.
func (c *Client) WatchFeed(config FeedConfig) (*Feed, error) {
	switch {
	case config.Handler == nil:
		return nil, errors.New("target feed: the handler is missing")
	case config.Conduit.GetTrench() == "" || config.Conduit.GetName() == "":
		return nil, errors.New("target feed: trench or name of the conduit is empty")
	}
	f := &Feed{conduit: config.Conduit, handler: config.Handler, table: newTable()}
	f.line = &line{
		client:  c,
		log:     c.config.Log.With("watch", "feed", "trench", config.Conduit.GetTrench(), "conduit", config.Conduit.GetName()),
		attempt: f.receive,
	}
	return f, nil
}

// Run watches until ctx ends, which is no error, and a running handler returns. After that it can run again and resumes. Two runs at a time are an error.
func (f *Feed) Run(ctx context.Context) error { return f.run(ctx) }

// Targets returns the targets as of the last commit, in a map that belongs to the caller. It can be called at any time.
func (f *Feed) Targets() map[Key]*Target {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return maps.Clone(f.table.held)
}

// Sources returns the streams whose sources are limited as of the last commit, by name, in a map that belongs to the caller. It can be
// called at any time.
func (f *Feed) Sources() map[string]*targetpoolv1.StreamSources {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return maps.Clone(f.limits)
}

// Version returns the version of the last commit; it is zero before the first. It can be called at any time.
func (f *Feed) Version() Version {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.version
}

// pieces are what has come of a snapshot or delta that is not committed yet.
type pieces struct {
	kind    targetpoolv1.TargetFeedWatchResponse_Kind
	changes []*targetpoolv1.Change
	sources []*targetpoolv1.StreamSources
}

func (f *Feed) receive(ctx context.Context, conn grpc.ClientConnInterface, p *pulse) error {
	stream, err := targetpoolv1.NewTargetFeedClient(conn).Watch(ctx, &targetpoolv1.TargetFeedWatchRequest{
		Conduit: f.conduit,
		Resume:  f.resume(),
	})
	if err != nil {
		return err
	}
	var pending pieces
	for {
		m, err := receive(p, stream.Recv)
		if err == nil {
			err = f.take(m, &pending, p)
		}
		if err != nil {
			return err
		}
	}
}

// resume is nil where a snapshot is wanted.
func (f *Feed) resume() *targetpoolv1.Version {
	if !f.began || f.resync || f.version.Epoch == "" {
		return nil
	}
	return &targetpoolv1.Version{Epoch: f.version.Epoch, Revision: f.version.Revision}
}

func (f *Feed) take(m *targetpoolv1.TargetFeedWatchResponse, pending *pieces, p *pulse) error {
	var err error
	switch m.GetKind() {
	case targetpoolv1.TargetFeedWatchResponse_KIND_HEARTBEAT:
		err = f.heartbeat(m, p)
	case targetpoolv1.TargetFeedWatchResponse_KIND_SNAPSHOT, targetpoolv1.TargetFeedWatchResponse_KIND_DELTA:
		err = f.piece(m, pending, p)
	default:
		// A kind of a later API: whoever needs it asks for it, and the heartbeat tells whether it brought a change.
	}
	if err != nil {
		f.resync = true
	}
	return err
}

func (f *Feed) heartbeat(m *targetpoolv1.TargetFeedWatchResponse, p *pulse) error {
	if m.GetVersion() == nil {
		return nil
	}
	claimed := versionOf(m.GetVersion())
	if !f.began || claimed != f.version {
		return lostf("the heartbeat says %v, the last commit was %v", claimed, f.version)
	}
	p.committed() // Resumed, and nothing was missing.
	if m.GetStale() != f.stale {
		f.tell(m, difference{}, time.Now())
	}
	return nil
}

func (f *Feed) piece(m *targetpoolv1.TargetFeedWatchResponse, pending *pieces, p *pulse) error {
	switch {
	case pending.kind != targetpoolv1.TargetFeedWatchResponse_KIND_UNSPECIFIED && pending.kind != m.GetKind():
		return lostf("a %v began within a %v", m.GetKind(), pending.kind)
	case m.GetKind() == targetpoolv1.TargetFeedWatchResponse_KIND_DELTA && (!f.began || f.resync):
		return lostf("a delta came before the snapshot")
	}
	pending.kind = m.GetKind()
	pending.changes = append(pending.changes, m.GetChanges()...)
	pending.sources = append(pending.sources, m.GetSources()...)
	if !m.GetCommit() {
		return nil
	}
	done := *pending
	*pending = pieces{}
	return f.finish(m, done, p)
}

// finish applies what the last piece completes.
func (f *Feed) finish(m *targetpoolv1.TargetFeedWatchResponse, done pieces, p *pulse) error {
	received, next := time.Now(), versionOf(m.GetVersion())
	var d difference
	before := f.limits
	if done.kind == targetpoolv1.TargetFeedWatchResponse_KIND_SNAPSHOT {
		d = f.apply(next, f.table.replace, done)
	} else {
		if next.Epoch != f.version.Epoch || next.Revision < f.version.Revision {
			return lostf("a delta leads to %v, the last commit was %v", next, f.version)
		}
		d = f.apply(next, f.table.change, done)
	}
	d.sources = f.limits.since(before)
	f.resync = false
	p.committed()
	f.tell(m, d, received)
	return nil
}

func (f *Feed) apply(next Version, how func([]*targetpoolv1.Change) difference, done pieces) difference {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.version = next
	f.limits = f.limits.after(done.kind == targetpoolv1.TargetFeedWatchResponse_KIND_SNAPSHOT, done.sources)
	return how(done.changes)
}

// tell calls the handler, if there is anything to tell.
func (f *Feed) tell(m *targetpoolv1.TargetFeedWatchResponse, d difference, received time.Time) {
	first := !f.began
	if !first && len(d.set) == 0 && len(d.removed) == 0 && len(d.sources) == 0 && m.GetStale() == f.stale {
		return
	}
	f.began, f.stale = true, m.GetStale()
	f.handler(Update{
		First: first, Set: d.set, Removed: d.removed, Sources: d.sources,
		Stale: f.stale, Version: f.version, Received: received,
	})
}
