package conformance

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
)

// crowd are clients that write and watch at random while their server is killed now and then.
type crowd struct {
	*testing.T
	target Target
	*recorder
	writes atomic.Int64
	// killing is set while the server is down or about to go: then a watch may break.
	kills atomic.Int64
}

// How much a crowd does.
const (
	writers      = 8
	writesEach   = 40
	killEvery    = writers * writesEach / 4
	standing     = 5 // watches
	readsPerTurn = 3 // one in so many writes is followed by a short watch
)

// testHistories lets a crowd loose and checks what it saw.
func testHistories(t *testing.T, target Target) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	c := &crowd{T: t, target: target, recorder: newRecorder()}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var watching, writing sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	for _, f := range []WatchRecord{
		{Status: nspv1.Target_ANY}, {Status: nspv1.Target_ANY, Stream: "stream-a"}, {Status: nspv1.Target_ENABLED, Stream: "stream-a"},
		{Status: nspv1.Target_ENABLED, Stream: "stream-b"}, {Status: nspv1.Target_DISABLED, Stream: "stream-b"},
	} {
		watching.Go(func() { c.stand(ctx, f) })
	}
	for i := range writers {
		writing.Go(func() { c.write(ctx, i, rand.New(rand.NewPCG(seed, uint64(i)))) })
	}
	writing.Go(func() { c.killNowAndThen(ctx) })
	writing.Wait()
	settled := await(c.settled)
	var violations []Violation
	c.change(func() { violations = Check(c.history) })
	require.Empty(t, violations)
	require.True(t, settled, "not every watch is open again")
	require.GreaterOrEqual(t, c.kills.Load(), int64(2))
}

// settled tells whether every standing watch is open and has got the last state.
func (c *crowd) settled() (all bool) {
	c.change(func() {
		open := 0
		for _, w := range c.history.Watches {
			if w.Open {
				open++
			}
		}
		all = open == standing && len(Check(c.history)) == 0
	})
	return all
}

// killNowAndThen kills the server and starts it again, each time after so many writes.
func (c *crowd) killNowAndThen(ctx context.Context) {
	for next := int64(killEvery); next < writers*writesEach; next += killEvery {
		for c.writes.Load() < next {
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Millisecond):
			}
		}
		c.kills.Add(1)
		c.target.Kill()
		if err := c.target.Start(ctx); err != nil {
			c.Errorf("starting again: %v", err)
			return
		}
	}
}

// write registers and unregisters one target, over a connection of its own.
func (c *crowd) write(ctx context.Context, number int, random *rand.Rand) {
	conn, err := c.target.Dial()
	if err != nil {
		c.Errorf("dialling: %v", err)
		return
	}
	defer conn.Close()
	registry := nspv1.NewTargetRegistryClient(conn)
	key := keyOfNumber(number)
	for i := range writesEach {
		last := i == writesEach-1
		w := &Write{Status: nspv1.Target_ENABLED}
		switch random.IntN(5) {
		case 0:
			w.Absent = true
		case 1:
			w.Status = nspv1.Target_DISABLED
		}
		for done := false; !done; {
			done = c.writeOnce(ctx, registry, number, key, w) || !last && random.IntN(2) == 0
			w = &Write{Status: w.Status, Absent: w.Absent}
		}
		c.writes.Add(1)
		if random.IntN(readsPerTurn) == 0 {
			c.glance(ctx, registry, WatchRecord{Status: nspv1.Target_ANY})
		}
	}
}

// writeOnce does a write and tells whether it was acknowledged.
func (c *crowd) writeOnce(ctx context.Context, r nspv1.TargetRegistryClient, number int, key string, w *Write) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	target := &nspv1.Target{
		Ips: []string{fmt.Sprintf("172.16.0.%d/24", number+1)}, Status: w.Status, Type: nspv1.Target_DEFAULT,
		Stream: Stream("trench-a", "conduit-a", streamOfKey(key)),
		Context: map[string]string{
			"identifier": strconv.Itoa(number/2 + 1), "key": key, "version": strconv.Itoa(c.begin(key, w)),
		},
	}
	call := r.Register
	if w.Absent {
		call = r.Unregister
	}
	_, err := call(ctx, target, grpc.WaitForReady(true))
	c.end(w, err == nil)
	return err == nil
}

// keyOfNumber names a target; streamOfKey is its stream.
func keyOfNumber(number int) string {
	return fmt.Sprintf("stream-%c/%d", 'a'+rune(number%2), number)
}

func streamOfKey(key string) string {
	s, _, _ := strings.Cut(key, "/")
	return s
}

// stand watches, and begins again where the watch breaks.
func (c *crowd) stand(ctx context.Context, f WatchRecord) {
	conn, err := c.target.Dial()
	if err != nil {
		c.Errorf("dialling: %v", err)
		return
	}
	defer conn.Close()
	for ctx.Err() == nil {
		c.follow(ctx, nspv1.NewTargetRegistryClient(conn), f, 0)
	}
}

// glance takes the first list of a watch.
func (c *crowd) glance(ctx context.Context, r nspv1.TargetRegistryClient, f WatchRecord) {
	c.follow(ctx, r, f, 1)
}

// follow is one watch, until it breaks or has brought so many lists; 0 is no limit.
func (c *crowd) follow(ctx context.Context, r nspv1.TargetRegistryClient, f WatchRecord, limit int) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	filter := &nspv1.Target{Status: f.Status, Type: nspv1.Target_DEFAULT}
	if f.Stream != "" {
		filter.Stream = Stream("trench-a", "conduit-a", f.Stream)
	}
	w := &WatchRecord{Status: f.Status, Stream: f.Stream}
	c.open(w)
	c.change(func() { w.Open = limit == 0 })
	before := c.kills.Load()
	watch, err := r.Watch(ctx, filter, grpc.WaitForReady(true))
	for err == nil && (limit == 0 || len(w.Views) < limit) {
		var list *nspv1.TargetResponse
		if list, err = watch.Recv(); err == nil {
			c.view(w, shownIn(list.GetTargets()))
		}
	}
	if err == nil {
		return
	}
	c.change(func() { w.Broken, w.Open = true, ctx.Err() != nil && w.Open })
	if ctx.Err() == nil && c.kills.Load() == before && before == 0 {
		c.Errorf("a watch ends without a kill: %v", err)
	}
}

func shownIn(list []*nspv1.Target) map[string]Shown {
	out := make(map[string]Shown)
	for _, t := range list {
		version, _ := strconv.Atoi(t.GetContext()["version"])
		out[t.GetContext()["key"]] = Shown{Version: version, Status: t.GetStatus(), Stream: t.GetStream().GetName()}
	}
	return out
}
