package play

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
)

// LegacyTAPAConfig says whose TAPA one of Meridio 1.x is.
type LegacyTAPAConfig struct {
	// Conn is its one connection to the NSP.
	Conn            grpc.ClientConnInterface
	Trench, Conduit string
	// Addresses are those of the secondary network, as CIDRs.
	Addresses []string
	// Refresh is how often it refreshes; default 60 s.
	Refresh time.Duration
	// MaxTargets bounds identifiers, by stream, where the NSP serves no configuration; nil: the configuration is watched.
	MaxTargets map[string]int
	// Draw picks one of the free identifiers; nil at random.
	Draw func(stream string, free []uint32) uint32
	// OnEvent, if set, is told what it does.
	OnEvent func(TAPAEvent)
}

// LegacyTAPA is a TAPA of Meridio 1.x as far as the NSP sees one: its application opens and closes streams, and it holds those that are
// configured.
type LegacyTAPA struct {
	cfg  LegacyTAPAConfig
	wake chan struct{}

	mu         sync.Mutex
	wanted     map[string]bool
	configured map[string]int
	addresses  []string
	held       map[string]*holding
}

// holding is one stream that a TAPA holds or tries to.
type holding struct {
	registrations *Registrations
	leave         context.CancelCauseFunc
	left          chan struct{}
}

// errLeave tells a holding to unregister; where its context ends for another cause, it goes without a word.
var errLeave = errors.New("the stream is left")

// NewLegacyTAPA makes a TAPA that holds nothing yet.
func NewLegacyTAPA(cfg LegacyTAPAConfig) *LegacyTAPA {
	if cfg.Refresh == 0 {
		cfg.Refresh = time.Minute
	}
	return &LegacyTAPA{
		cfg: cfg, wake: make(chan struct{}, 1), wanted: make(map[string]bool), configured: cfg.MaxTargets,
		addresses: cfg.Addresses, held: make(map[string]*holding),
	}
}

// Open is what an application asks for: a stream of the conduit.
func (t *LegacyTAPA) Open(stream string) { t.change(func() { t.wanted[stream] = true }) }

// Close is the opposite.
func (t *LegacyTAPA) Close(stream string) { t.change(func() { delete(t.wanted, stream) }) }

// SetAddresses is what happens when the network gives others. Another order is no change.
func (t *LegacyTAPA) SetAddresses(addresses []string) {
	t.change(func() {
		if sameAddresses(addresses, t.addresses) {
			for _, h := range t.held {
				h.registrations.reorder(addresses)
			}
		}
		t.addresses = addresses
	})
}

func (t *LegacyTAPA) change(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f()
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// Identifier is that of an open stream, 0 of others.
func (t *LegacyTAPA) Identifier(stream string) uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if h := t.held[stream]; h != nil {
		return h.registrations.Identifier(name(t.stream(stream)))
	}
	return 0
}

// Run holds streams until ctx ends. Then it leaves without a word, as a killed pod does.
func (t *LegacyTAPA) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stopWatching := func() {}
	watching := false
	for {
		if busy := t.reconcile(ctx, &running); busy != watching && t.cfg.MaxTargets == nil {
			if watching = busy; watching {
				stopWatching = t.watchConfiguration(ctx, &running)
			} else {
				stopWatching()
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.wake:
		}
	}
}

// reconcile leaves and enters streams, and tells whether any is wanted.
func (t *LegacyTAPA) reconcile(ctx context.Context, running *sync.WaitGroup) (busy bool) {
	t.mu.Lock()
	var leaving []*holding
	for s, h := range t.held {
		if _, ok := t.configured[s]; !ok || !t.wanted[s] || !sameAddresses(h.registrations.current(), t.addresses) {
			h.leave(errLeave)
			leaving = append(leaving, h)
			delete(t.held, s)
		}
	}
	busy = len(t.wanted) > 0
	t.mu.Unlock()
	for _, h := range leaving {
		<-h.left
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for s := range t.wanted {
		most, ok := t.configured[s]
		if !ok {
			t.say(Undefined, s)
		} else if t.held[s] == nil {
			t.held[s] = t.hold(ctx, running, s, most)
		}
	}
	return busy
}

func (t *LegacyTAPA) hold(ctx context.Context, running *sync.WaitGroup, stream string, maxTargets int) *holding {
	var draw func([]uint32) uint32
	if t.cfg.Draw != nil {
		draw = func(free []uint32) uint32 { return t.cfg.Draw(stream, free) }
	}
	h := &holding{registrations: NewRegistrations(t.cfg.Conn, t.addresses, draw), left: make(chan struct{})}
	ctx, h.leave = context.WithCancelCause(ctx)
	running.Go(func() {
		defer close(h.left)
		s := t.stream(stream)
		t.keep(ctx, h.registrations, s, maxTargets)
		if errors.Is(context.Cause(ctx), errLeave) && h.registrations.Close(context.WithoutCancel(ctx), s) == nil {
			t.say(Closed, stream)
		}
		h.leave(nil)
	})
	return h
}

// keep opens a stream, tries again every second where that fails, and refreshes it.
func (t *LegacyTAPA) keep(ctx context.Context, r *Registrations, s *targetpoolv1.Stream, maxTargets int) {
	wait := time.Duration(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		var err error
		if open := r.Identifier(name(s)) != 0; open {
			err = r.Refresh(ctx, s, maxTargets)
		} else if err = r.Open(ctx, s, maxTargets); err == nil {
			t.say(Opened, s.GetName())
		}
		wait = t.cfg.Refresh
		if err != nil && ctx.Err() == nil {
			t.say("failed: "+err.Error(), s.GetName())
			wait = time.Second
		}
	}
}

// watchConfiguration watches the streams, and the flows for their VIPs, until the returned function is called.
func (t *LegacyTAPA) watchConfiguration(ctx context.Context, running *sync.WaitGroup) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	c := nspv1.NewConfigurationManagerClient(t.cfg.Conn)
	of := legacyStream(t.stream("")).GetConduit()
	running.Go(func() {
		again(ctx, func() {
			watch, err := c.WatchStream(ctx, &nspv1.Stream{Conduit: of}, grpc.WaitForReady(true))
			for err == nil {
				var list *nspv1.StreamResponse
				if list, err = watch.Recv(); err == nil {
					t.configure(list.GetStreams())
				}
			}
		})
	})
	running.Go(func() {
		again(ctx, func() {
			watch, err := c.WatchFlow(ctx, &nspv1.Flow{Stream: &nspv1.Stream{Conduit: of}}, grpc.WaitForReady(true))
			for err == nil {
				_, err = watch.Recv()
			}
		})
	})
	return func() {
		cancel()
		t.mu.Lock()
		defer t.mu.Unlock()
		t.configured = nil
	}
}

// again repeats f, with half a second in between, until ctx ends.
func again(ctx context.Context, f func()) {
	for ctx.Err() == nil {
		f()
		select {
		case <-ctx.Done():
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// configure takes in which streams there are. One without max-targets has room for 100.
func (t *LegacyTAPA) configure(list []*nspv1.Stream) {
	t.change(func() {
		t.configured = make(map[string]int)
		for _, s := range list {
			t.configured[s.GetName()] = int(s.GetMaxTargets())
		}
	})
}

// configures tells whether a stream is configured, and whether that is known yet.
func (t *LegacyTAPA) configures(stream string) (configured, known bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, configured = t.configured[stream]
	return configured, t.configured != nil
}

func (t *LegacyTAPA) stream(s string) *targetpoolv1.Stream {
	return &targetpoolv1.Stream{Trench: t.cfg.Trench, Conduit: t.cfg.Conduit, Name: s}
}

func (t *LegacyTAPA) say(what, stream string) {
	if t.cfg.OnEvent != nil {
		t.cfg.OnEvent(TAPAEvent{Time: time.Now(), What: what, Stream: stream})
	}
}
