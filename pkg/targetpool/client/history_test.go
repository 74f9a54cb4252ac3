package client

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"pgregory.net/rapid"

	pb "github.com/nordix/meridio-nsp/api/targetpool/v1"
)

// historian is a server with a random history. It remembers every state that was true.
type historian struct {
	epoch   int
	commits [][]*pb.Change // Of this epoch; the revision is their number.
	now     model
	truth   map[Version]map[Key]string
	call    *feedCall // The stream, while there is one.
	told    uint64    // The revision that the stream was told, or should have been.
}

func (h *historian) version() *pb.Version {
	return version(fmt.Sprint("E", h.epoch), uint64(len(h.commits)))
}

func (h *historian) commit(changes []*pb.Change) {
	h.now.apply(changes)
	h.commits = append(h.commits, changes)
	h.truth[versionOf(h.version())] = h.now.byKey()
}

// restart loses the stream and numbers everything anew.
func (h *historian) restart(t *rapid.T) {
	h.cut()
	h.epoch++
	h.commits = nil
	var all []*pb.Change
	ids := slices.Sorted(maps.Keys(h.now))
	shift := rapid.IntRange(0, 3).Draw(t, "shift")
	for i, id := range ids {
		all = append(all, set(uint64(i+1+shift), h.now[id]))
	}
	h.now = model{}
	h.commit(all)
}

func (h *historian) cut() {
	if h.call != nil {
		h.call.finish(status.Error(codes.Unavailable, "cut"))
		h.call = nil
	}
}

// tell sends changes in pieces; the stream may be cut before the last one.
func (h *historian) tell(t *rapid.T, kind pb.TargetFeedWatchResponse_Kind, changes []*pb.Change) {
	for {
		n := rapid.IntRange(0, len(changes)).Draw(t, "piece")
		piece := &pb.TargetFeedWatchResponse{Kind: kind, Changes: changes[:n]}
		changes = changes[n:]
		if len(changes) == 0 {
			piece.Commit, piece.Version = true, h.version()
		}
		if rapid.IntRange(0, 9).Draw(t, "luck") == 0 {
			h.cut()
			return
		}
		require.NoError(t, h.call.send(piece))
		if piece.Commit {
			h.told = uint64(len(h.commits))
			return
		}
	}
}

// accept answers a stream that was opened, as its resume asks.
func (h *historian) accept(t *rapid.T, c *feedCall) {
	h.call = c
	resume := (<-c.requests).GetResume()
	if resume.GetEpoch() != h.version().GetEpoch() || rapid.IntRange(0, 4).Draw(t, "gap") == 0 {
		var all []*pb.Change
		for id, target := range h.now {
			all = append(all, set(id, target))
		}
		slices.SortFunc(all, func(a, b *pb.Change) int { return int(a.GetId()) - int(b.GetId()) })
		h.tell(t, pb.TargetFeedWatchResponse_KIND_SNAPSHOT, all)
		return
	}
	missed := h.commits[resume.GetRevision():]
	h.told = uint64(len(h.commits))
	if len(missed) > 0 {
		h.tell(t, pb.TargetFeedWatchResponse_KIND_DELTA, slices.Concat(missed...))
	}
}

// receiver is a handler that believes its updates.
type receiver struct {
	have map[Key]string
	// wrong are complaints; the goroutine of Run may not end the test.
	wrong []string
}

func (r *receiver) Errorf(format string, args ...any) {
	r.wrong = append(r.wrong, fmt.Sprintf(format, args...))
}

func (r *receiver) FailNow() {}

func (r *receiver) handle(h *historian) func(Update) {
	return func(u Update) {
		replay(r, r.have, difference{set: u.Set, removed: u.Removed})
		require.Equal(r, h.truth[u.Version], r.have, "told at %v", u.Version)
	}
}

// timeless hides Deadline, which may not be called with a fake clock.
type timeless struct{ testing.TB }

// Whatever the server went through and wherever streams broke: the receiver always has a state that was true, the one
// of the version it names, and once a stream is complete the latest one.
func TestReceiverHasStatesThatWereTrue(t *testing.T) { // P9 P12
	synctest.Test(t, func(t *testing.T) {
		f, l := newFake(), bufconn.Listen(1<<20)
		stop := f.serve(l)
		defer stop()
		client, err := New(inMemory(l))
		require.NoError(t, err)
		rapid.Check(timeless{t}, func(t *rapid.T) { runHistory(t, f, client) })
	})
}

func runHistory(t *rapid.T, f *fake, client *Client) {
	h := &historian{now: model{}, truth: map[Version]map[Key]string{{}: {}}}
	h.commit(nil)
	r := &receiver{have: map[Key]string{}}
	feed, err := client.WatchFeed(FeedConfig{Conduit: testConduit, Handler: r.handle(h)})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- feed.Run(ctx) }()
	defer func() {
		cancel()
		require.NoError(t, <-done)
		synctest.Wait()
		for len(f.feeds) > 0 { // Streams of this run that nobody took.
			<-f.feeds
		}
	}()
	t.Repeat(h.actions(f, feed, r))
}

func (h *historian) actions(f *fake, feed *Feed, r *receiver) map[string]func(*rapid.T) {
	live := func(t *rapid.T) {
		if h.call == nil {
			t.Skip("no stream")
		}
	}
	return map[string]func(*rapid.T){
		"change": func(t *rapid.T) {
			changes := drawChanges(t)
			h.commit(changes)
			if h.call != nil && h.told == uint64(len(h.commits))-1 {
				h.tell(t, pb.TargetFeedWatchResponse_KIND_DELTA, changes)
			}
		},
		"lose": func(t *rapid.T) { // The server believes that the stream was told.
			live(t)
			h.commit(drawChanges(t))
			require.NoError(t, h.call.send(heartbeat(h.version())))
			h.call = nil // The receiver gives the stream up.
		},
		"cut":     func(t *rapid.T) { live(t); h.cut() },
		"restart": h.restart,
		"accept": func(t *rapid.T) {
			if h.call != nil {
				t.Skip("there is a stream")
			}
			time.Sleep(DefaultBackoffMax)
			synctest.Wait()
			require.NotEmpty(t, f.feeds, "nobody reconnects")
			for len(f.feeds) > 1 { // Given up meanwhile as silent.
				<-f.feeds
			}
			h.accept(t, <-f.feeds)
		},
		"": func(t *rapid.T) {
			synctest.Wait()
			require.Empty(t, r.wrong)
			require.Equal(t, h.truth[feed.Version()], faces(feed.Targets()))
			require.Equal(t, h.truth[feed.Version()], r.have)
			if h.call != nil {
				require.Equal(t, versionOf(h.version()), feed.Version())
			}
		},
	}
}
