package relay

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/registry/memory"
)

const (
	t1, t2, t3 = "172.16.0.1/24", "172.16.0.2/24", "172.16.0.3/24"
)

// What was acknowledged is in the next watch, at whichever process it was said.
func TestReadYourWrites(t *testing.T) {
	n := newNSP(t).start()
	p := n.relay(memory.New()).live()
	for i := 1; i <= 50; i++ {
		require.NoError(t, p.Register(t.Context(), as(target(i), registry.Disabled), from(i)))
		require.Len(t, p.read(registered), i)
	}
	for i := 1; i <= 50; i++ {
		require.NoError(t, n.registry.Register(t.Context(), target(i), from(i)))
		require.Len(t, p.read(active), i, "said to the namespace process itself")
	}
	for i := 1; i <= 50; i++ {
		require.NoError(t, p.Unregister(t.Context(), target(i), from(i)))
		require.Len(t, p.read(registered), 50-i)
	}
}

// A frontend has no stream; the trench is stamped on it, and other trenches do not see it.
func TestFrontendsPass(t *testing.T) {
	n := newNSP(t).start()
	p := n.relay(memory.New()).live()
	other := n.relay(memory.New(), func(c *Config) { c.Trench = "trench-b" })
	n.post(engine.TrenchConfigured{Trench: "trench-b"})
	other.live()
	require.NoError(t, p.Unregister(t.Context(), frontend("fe-1"), from(1)), "nobody was there")
	require.NoError(t, p.Register(t.Context(), frontend("fe-1"), from(1)))
	require.Equal(t, []string{"fe-1!"}, p.read(frontends))
	require.NoError(t, p.Register(t.Context(), frontend("fe-1"), from(1)))
	require.Equal(t, []string{"fe-1"}, p.read(frontends))
	require.Empty(t, other.read(frontends))
	require.NoError(t, p.Unregister(t.Context(), frontend("fe-1"), from(1)))
	require.Empty(t, p.read(frontends))
}

func TestAnotherTrenchIsRefused(t *testing.T) {
	n := newNSP(t).start()
	p := n.relay(memory.New()).live()
	stranger := target(1)
	stranger.Stream.Trench = "trench-b"
	for _, err := range []error{p.Register(t.Context(), stranger, from(1)), p.Unregister(t.Context(), stranger, from(1))} {
		require.ErrorIs(t, err, auth.ErrDenied)
		refusal, ok := errors.AsType[*auth.Refusal](err)
		require.True(t, ok, "what has no reason is not counted")
		require.Equal(t, auth.OtherTrench, refusal.Reason)
	}
	_, err := p.liveLine().register(t.Context(), stranger, from(1))
	require.Equal(t, codes.PermissionDenied, status.Code(err), "the namespace process does not rely on it")
	require.ErrorIs(t, p.Register(t.Context(), registry.Target{Stream: x1}, from(1)), registry.ErrInvalid)
	require.NoError(t, p.Unregister(t.Context(), registry.Target{Stream: x1}, from(1)))
}

// An old load balancer on the trench process has readiness, and an old TAPA notices nothing of it.
func TestReadinessReachesOldLoadBalancers(t *testing.T) {
	n := newNSP(t).start()
	p := n.relay(memory.New()).live()
	n.post(pods(1, true, 1, 2)...)
	p.open(1, 2)
	require.Equal(t, []string{t1, t2}, p.read(active))
	n.post(pods(2, false, 1)...)
	p.until("pod 1 is out", func() bool { return len(p.read(active)) == 0 })
	require.NoError(t, p.Register(t.Context(), target(1), from(1)), "a refresh")
	require.Empty(t, p.read(active), "a refresh does not bring it back")
	require.Equal(t, []string{t1, t2}, p.read(registered), "and the TAPA reads that all is well")
	n.post(pods(3, true, 1, 2)...)
	p.until("both are in", func() bool { return len(p.read(active)) == 2 })
}

// The namespace process dies and comes back: nobody sees an empty list, and what happened meanwhile is made good.
func TestNamespaceProcessRestarts(t *testing.T) {
	n := newNSP(t).start()
	p := n.relay(memory.New()).live()
	p.open(1, 2, 3)
	require.NoError(t, p.Register(t.Context(), frontend("fe-1"), from(9)))
	lists, fronts := p.follow(active), p.follow(frontends)
	for range 3 {
		n.kill()
		p.away()
		require.Equal(t, []string{t1, t2, t3}, p.read(active), "served from the mirror")
		require.Equal(t, []string{"fe-1!"}, p.read(frontends))
		require.NoError(t, p.Register(t.Context(), target(1), from(1)), "a refresh that changes nothing")
		n.start()
		p.live()
	}
	n.kill()
	p.away()
	require.NoError(t, p.Unregister(t.Context(), target(2), from(2)))
	require.Equal(t, []string{t1, t3}, p.read(active), "removed at once")
	n.start()
	p.live()
	require.Equal(t, []string{t1, t3}, p.read(active), "and not brought back")
	stored, err := n.store.Load(t.Context())
	require.NoError(t, err)
	require.Len(t, stored.Entries, 3, "two targets and the frontend")
	require.Equal(t, [][]string{{t1, t2, t3}, {t1, t3}}, lists(), "only differences are seen")
	require.Equal(t, [][]string{{"fe-1!"}}, fronts())
}

func TestNewRegistrationsWaitForTheNamespaceProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNSP(t).start()
		p := n.relay(memory.New()).live()
		p.open(1)
		n.kill()
		p.away()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		err := p.Register(ctx, target(2), from(2))
		require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
		require.NoError(t, ctx.Err(), "the answer comes before the caller gives up")
		changed := target(1)
		changed.Context = map[string]string{"identifier": "7"}
		require.Equal(t, codes.Unavailable, status.Code(p.Register(ctx, changed, from(1))))

		done := make(chan error)
		go func() { done <- p.Register(t.Context(), target(2), from(2)) }()
		n.start()
		require.NoError(t, <-done)
		require.Equal(t, []string{t1, t2 + "!"}, p.read(registered))
		require.NoError(t, p.Unregister(t.Context(), target(9), from(9)), "unknown")
		p.stop()
		n.stop()
	})
}

// A removal that is told late is void where the registration is alive again.
func TestLateRemovalIsVoid(t *testing.T) {
	n := newNSP(t).start()
	p := n.relay(memory.New()).live()
	p.open(1, 2)
	n.partition(true)
	p.away()
	require.NoError(t, p.Unregister(t.Context(), target(1), from(1)))
	require.NoError(t, p.Unregister(t.Context(), target(2), from(2)))
	require.Empty(t, p.read(registered))
	require.NoError(t, n.registry.Register(t.Context(), target(1), from(1)), "refreshed on another way")
	n.partition(false)
	p.live()
	require.Equal(t, []string{t1}, p.read(registered))
	require.Empty(t, p.mirror.withdrawn)
}

// A namespace process that was alive behind a broken network let go what was refreshed here: it comes back as it was.
func TestRefreshedHereExpiredThere(t *testing.T) {
	n := newNSP(t).start()
	p := n.relay(memory.New()).live()
	p.open(1, 2)
	lists := p.follow(active)
	n.partition(true)
	p.away()
	require.NoError(t, p.Register(t.Context(), target(1), from(1)))
	require.NoError(t, n.registry.Unregister(t.Context(), target(1), from(1)), "its lease ends")
	require.NoError(t, n.registry.Unregister(t.Context(), target(2), from(2)))
	n.partition(false)
	p.live()
	require.Equal(t, []string{t1}, p.read(active))
	require.Equal(t, [][]string{{t1, t2}, {t1}}, lists())
	require.NoError(t, p.Unregister(t.Context(), target(1), from(1)))
	require.Empty(t, p.read(registered))
}

// The namespace process lost its store: what was registered here in this run comes back as it was.
func TestNamespaceProcessForgets(t *testing.T) {
	n := newNSP(t).start()
	p := n.relay(memory.New()).live()
	p.open(1, 2)
	lists := p.follow(active)
	n.kill()
	n.store = memory.New()
	n.start()
	p.until("another run", func() bool { return p.Live() && p.mirror.at.Epoch == "run 2" })
	require.Equal(t, []string{t1, t2}, p.read(active))
	require.Equal(t, [][]string{{t1, t2}}, lists())
}

// An identifier that was reserved is not given to another when the namespace process lost its store, also where the trench process
// was restarted meanwhile.
func TestReservationsComeBack(t *testing.T) {
	for name, restart := range map[string]bool{"kept in mind": false, "kept in the store": true} {
		t.Run(name, func(t *testing.T) {
			n, store := newNSP(t).start(), memory.New()
			p := n.relay(store).live()
			reserve := func(i int) uint32 {
				n.registry.SetLimits(trench, nil)
				id, err := n.registry.Reserve(t.Context(), target(i), from(i), false)
				require.NoError(t, err)
				return id
			}
			require.EqualValues(t, 1, reserve(1))
			refresh := func() { require.NoError(t, p.Register(t.Context(), as(target(1), registry.Disabled), from(1))) }
			refresh()
			n.kill()
			p.away()
			if restart {
				p.stop()
				p = n.relay(store)
				refresh()
			}
			n.store = memory.New()
			n.start()
			p.live()
			require.EqualValues(t, 2, reserve(2), "1 is taken")
		})
	}
}

// The trench process is restarted while the namespace process is away.
func TestTrenchProcessRestarts(t *testing.T) {
	n := newNSP(t).start()
	store := memory.New()
	p := n.relay(store).live()
	n.post(pods(1, false, 3)...)
	p.open(1, 2, 3)
	require.NoError(t, p.Register(t.Context(), frontend("fe-1"), from(9)))
	n.kill()
	p.away()
	require.NoError(t, p.Unregister(t.Context(), target(2), from(2)))
	p.stop()

	p = n.relay(store)
	require.Equal(t, []string{t1}, p.read(active), "effective states are kept too")
	require.Equal(t, []string{t1, t3}, p.read(registered))
	require.Equal(t, []string{"fe-1!"}, p.read(frontends))
	require.NoError(t, p.Register(t.Context(), target(1), from(1)))
	lists := p.follow(registered)
	n.start()
	p.live()
	require.Equal(t, []string{t1, t3}, p.read(registered), "the removal survived")
	require.Equal(t, [][]string{{t1, t3}}, lists())
}

// Nothing is answered by a process that never knew anything.
func TestNothingKnownNothingSaid(t *testing.T) {
	n := newNSP(t)
	p := n.relay(memory.New())
	w, err := p.List(t.Context(), registered)
	require.NoError(t, err)
	defer w.Close()
	_, _, ok, more := w.Next()
	require.False(t, ok)
	n.start()
	<-more
	l, _, ok, _ := w.Next()
	require.True(t, ok)
	require.Empty(t, shown(l))
}

// alone is a stand-alone registry on the store of a trench process.
func alone(t *testing.T, store registry.Store) (*registry.Registry, *engine.Engine, func()) {
	sink := &late{}
	r := registry.New(registry.Config{Store: store, Sink: sink, Namespace: own, Timeout: time.Hour})
	saved, err := r.Load(t.Context())
	require.NoError(t, err)
	if _, ok := saved.Documents[Document]; ok {
		r.SaveDocument(Document, nil)
	}
	sink.Engine = engine.New(engine.Config{Namespace: own, Remember: r.Remember}, saved.Entries)
	sink.Engine.Post(engine.TrenchConfigured{Trench: trench})
	stopEngine, stopRegistry := background(sink.Engine.Run), background(r.Run)
	return r, sink.Engine, func() {
		require.NoError(t, stopRegistry())
		require.NoError(t, stopEngine())
	}
}

func listOf(t *testing.T, e *engine.Engine, f engine.Filter) []string {
	w, err := e.List(t.Context(), f)
	require.NoError(t, err)
	defer w.Close()
	for {
		l, _, ok, more := w.Next()
		if ok {
			return shown(l)
		}
		<-more
	}
}

// The relay is switched on and off: the registry goes along, both ways, twice.
func TestRelayIsSwitchedOnAndOff(t *testing.T) {
	n := newNSP(t)
	store := memory.New()
	r, _, stop := alone(t, store)
	for i := 1; i <= 2; i++ {
		require.NoError(t, r.Register(t.Context(), as(target(i), registry.Disabled), from(i)))
	}
	require.NoError(t, r.Register(t.Context(), target(1), from(1)))
	require.NoError(t, r.Register(t.Context(), frontend("fe-1"), from(9)))
	stop()

	p := n.relay(store)
	require.Equal(t, []string{t1, t2 + "!"}, p.read(registered), "served before the namespace process is there")
	require.Equal(t, []string{t1}, p.read(active))
	require.Equal(t, []string{"fe-1!"}, p.read(frontends))
	lists := p.follow(registered)
	n.start()
	p.live()
	require.Equal(t, []string{t1, t2 + "!"}, p.read(registered))
	require.Equal(t, []string{t1}, p.read(active), "status kept")
	require.Equal(t, []string{"fe-1!"}, p.read(frontends))
	require.NoError(t, p.Register(t.Context(), frontend("fe-1"), from(9)))
	p.open(3)
	n.post(pods(1, false, 1)...)
	p.until("pod 1 is out", func() bool { return len(p.read(active)) == 1 })
	p.stop()
	got := lists()
	require.Equal(t, []string{t1, t2 + "!"}, got[0])
	require.Equal(t, []string{t1, t2 + "!", t3}, got[len(got)-1])
	require.LessOrEqual(t, len(got), 3, "nothing else in between than target 3 before it is enabled: %v", got)

	r, e, stop := alone(t, store)
	require.Equal(t, []string{t1, t2 + "!", t3}, listOf(t, e, registered))
	require.Equal(t, []string{t1, t3}, listOf(t, e, active), "without pools the registration counts")
	require.NoError(t, r.Unregister(t.Context(), target(3), from(3)))
	require.NoError(t, r.Register(t.Context(), as(target(4), registry.Disabled), from(4)))
	stop()

	p = n.relay(store)
	p.live()
	require.Contains(t, p.read(registered), "172.16.0.4/24!", "handed over once more")
}

// Leases are watched over here while the namespace process is away, for what is refreshed here.
func TestLeasesEndWhileAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNSP(t)
		n.timeout = time.Minute
		n.start()
		p := n.relay(memory.New(), func(c *Config) { c.Timeout = time.Minute }).live()
		p.open(1, 2)
		require.NoError(t, n.registry.Register(t.Context(), target(3), from(3)), "registered elsewhere")
		require.Equal(t, []string{t1, t2, t3 + "!"}, p.read(registered))
		n.kill()
		p.away()
		for range 4 {
			time.Sleep(20 * time.Second)
			require.NoError(t, p.Register(t.Context(), target(1), from(1)))
		}
		require.Equal(t, []string{t1, t3 + "!"}, p.read(registered), "2 was not refreshed, 3 is not refreshed here")
		n.start()
		p.live()
		require.Equal(t, []string{t1, t3 + "!"}, p.read(registered), "the end of the lease is told")
		p.stop()
		n.stop()
	})
}

// While the namespace process is there it watches over the leases alone.
func TestLeasesAreTheNamespaceProcessWhileItIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNSP(t).start()
		p := n.relay(memory.New(), func(c *Config) { c.Timeout = time.Minute }).live()
		p.open(1)
		time.Sleep(2 * time.Minute)
		require.Equal(t, []string{t1}, p.read(registered))
		n.kill()
		p.away()
		time.Sleep(2 * time.Minute)
		require.Equal(t, []string{t1}, p.read(registered), "it may be refreshed elsewhere")
		p.stop()
	})
}

// A namespace process that hangs is away after three heartbeats, and a refresh does not wait for that long.
func TestSilentNamespaceProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNSP(t).start()
		p := n.relay(memory.New()).live()
		p.open(1)
		n.hang(true)
		began := time.Now()
		require.NoError(t, p.Register(t.Context(), target(1), from(1)))
		require.LessOrEqual(t, time.Since(began), 3*time.Second)
		p.away()
		require.LessOrEqual(t, time.Since(began), 16*time.Second)
		require.Equal(t, []string{t1}, p.read(registered))
		n.hang(false)
		p.live()
		p.stop()
		n.stop()
	})
}

// Thousands come in one snapshot of several pieces, and again after a restart.
func TestManyRegistrations(t *testing.T) {
	const count = 5000
	n := newNSP(t).start()
	for i := range count {
		tg := target(1)
		tg.IPs = []string{fmt.Sprintf("10.%d.%d.1/24", i>>8, i&0xff)}
		tg.Context["padding"] = fmt.Sprintf("%0300d", i)
		require.NoError(t, n.registry.Register(t.Context(), tg, from(1)))
	}
	p := n.relay(memory.New()).live()
	require.Len(t, p.read(registered), count)
	n.kill()
	p.away()
	n.start()
	p.live()
	require.Len(t, p.read(registered), count)
}

// A namespace process that rebuilds a lost registry has nothing to say for a while: what is here goes on, and is told.
func TestNamespaceProcessRebuilds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNSP(t).start()
		p := n.relay(memory.New()).live()
		p.open(1, 2, 3)
		lists := p.follow(active)
		n.kill()
		n.store, n.rebuilding = memory.New(), true
		n.start()
		time.Sleep(10 * time.Second)
		require.False(t, p.Live())
		require.Equal(t, []string{t1, t2, t3}, p.read(active))
		require.NoError(t, p.Register(t.Context(), target(1), from(1)))
		require.NoError(t, p.Unregister(t.Context(), target(2), from(2)))
		time.Sleep(10 * time.Second)
		stored, err := n.store.Load(t.Context())
		require.NoError(t, err)
		require.Len(t, stored.Entries, 2, "what was registered here is there again, but for what was unregistered")
		n.engine.Post(engine.Rebuilt{})
		p.live()
		require.Equal(t, []string{t1, t3}, p.read(active))
		require.Equal(t, [][]string{{t1, t2, t3}, {t1, t3}}, lists())
		p.stop()
		n.stop()
	})
}
