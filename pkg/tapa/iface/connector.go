package iface

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/nordix/meridio-nsp/pkg/stream"
	"github.com/nordix/meridio-nsp/pkg/tapa"
)

// callTimeout bounds one call to the NSP.
const callTimeout = 15 * time.Second

// backoff is the wait between attempts at anything.
var backoff = tapa.Backoff{Base: 200 * time.Millisecond, Max: 5 * time.Second}

// Connector implements tapa.Connector. Its Run does the work.
type Connector struct {
	cfg           Config
	log           *slog.Logger
	kernel        kernel
	registry      registry
	configuration configuration

	// plumbing is held while the kernel is changed; it comes before mu.
	plumbing sync.Mutex

	workers sync.WaitGroup

	mu       sync.Mutex
	ctx      context.Context // that of Run; nil before it
	sessions map[stream.Key]*session
	trenches map[string]*trench
	made     map[netip.Prefix]bool
	// refused is what was said last of VIPs that cannot be used.
	refused string
	unsaved bool
	changed chan struct{}
}

// trench is one that has sessions, or had.
type trench struct {
	// settings are the last known ones; nil where none are.
	settings *settings
	// stop ends their watch; nil where there is none.
	stop context.CancelFunc
}

// New makes a connector of what the state file has; what was open then counts as open. It connects when it runs.
func New(cfg Config) (*Connector, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	k, err := openKernel(cfg.Netns)
	if err != nil {
		return nil, err
	}
	r, err := newNSP(cfg)
	if err != nil {
		k.close()
		return nil, err
	}
	c, err := newConnector(cfg, k, r, &manager{cfg.trenchServer, cfg.Credentials, cfg.PerRPC})
	if err != nil {
		k.close()
	}
	return c, err
}

func newConnector(cfg Config, k kernel, r registry, m configuration) (*Connector, error) {
	saved, damaged, err := readState(cfg.StateFile)
	if err != nil {
		return nil, err
	}
	if damaged != nil {
		cfg.Log.Error("what is open is learned anew; VIPs that are on the link now will stay there", "error", damaged)
	}
	c := &Connector{
		cfg: cfg, log: cfg.Log, kernel: k, registry: r, configuration: m, changed: make(chan struct{}),
		sessions: map[stream.Key]*session{}, trenches: map[string]*trench{}, made: map[netip.Prefix]bool{},
	}
	for _, p := range saved.Made {
		c.made[p] = true
	}
	for name, known := range saved.Trenches {
		c.trenches[name] = &trench{settings: known}
	}
	for _, s := range saved.Streams {
		c.add(s)
	}
	return c, nil
}

// Run keeps what is open until ctx ends. Then it unregisters and removes everything, but remembers what was open.
func (c *Connector) Run(ctx context.Context) error {
	defer c.kernel.close()
	defer c.registry.close()
	working, stop := context.WithCancel(ctx)
	c.mu.Lock()
	c.ctx = working
	for _, s := range c.sessions {
		c.start(s) //nolint:contextcheck // it has the one that was stored just before
	}
	c.mu.Unlock()
	c.resync(ctx)
	c.mu.Lock()
	stop() // No worker begins any more.
	c.mu.Unlock()
	c.workers.Wait()
	return c.release(context.WithoutCancel(ctx))
}

// resync compares the kernel with what it shall have, every so often: routes go with an interface that goes down.
func (c *Connector) resync(ctx context.Context) {
	tick := time.NewTicker(c.cfg.Resync)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := c.plumb(); err != nil {
			c.log.Warn("the kernel does not have what it shall have", "error", err)
		}
		c.mu.Lock()
		if c.unsaved {
			c.save()
		}
		c.mu.Unlock()
	}
}

// release is the end: first nobody sends here any more, then the kernel lets go.
func (c *Connector) release(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.ReleaseTimeout)
	defer cancel()
	c.mu.Lock()
	sessions := slices.Collect(maps.Values(c.sessions))
	c.mu.Unlock()
	var all sync.WaitGroup
	for _, s := range sessions {
		all.Go(func() {
			if err := c.unregister(ctx, s); err != nil {
				c.log.Warn("a target stays registered until its lease ends", "stream", s.key.String(), "error", err)
			}
		})
	}
	all.Wait()
	if err := c.apply(layout{}, false); err != nil {
		return fmt.Errorf("cleaning up: %w", err)
	}
	return nil
}

// Open implements tapa.Connector.
func (c *Connector) Open(_ context.Context, k stream.Key) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.sessions[k]
	if s == nil {
		s = c.add(savedStream{Stream: k})
		c.save()
		c.tell()
	}
	s.closing = time.Time{}
	c.start(s) //nolint:contextcheck // the work outlasts the call
	return nil
}

// add makes a session. The lock is held.
func (c *Connector) add(saved savedStream) *session {
	s := newSession(saved)
	c.sessions[s.key] = s
	if c.trenches[s.key.Trench] == nil {
		c.trenches[s.key.Trench] = &trench{}
	}
	return s
}

// Close implements tapa.Connector. Where the NSP cannot be told, the registration ends with its lease, and the VIPs stay until then.
func (c *Connector) Close(ctx context.Context, k stream.Key) error {
	c.mu.Lock()
	s := c.sessions[k]
	c.mu.Unlock()
	if s != nil {
		c.end(s)
		err := c.unregister(ctx, s)
		if err != nil && time.Now().Before(s.leased(c.cfg.EntryTimeout)) {
			return err
		}
		if err != nil {
			c.log.Warn("a target was not unregistered, its lease is over", "stream", k.String(), "error", err)
		}
		c.mu.Lock()
		c.forget(s)
		c.mu.Unlock()
	}
	return c.plumb()
}

// forget drops a session, and stops the watch of the trench with its last one; its settings are kept for the next. The lock is held.
func (c *Connector) forget(s *session) {
	delete(c.sessions, s.key)
	used := func(k stream.Key) bool { return k.Trench == s.key.Trench }
	if t := c.trenches[s.key.Trench]; t.stop != nil && !slices.ContainsFunc(slices.Collect(maps.Keys(c.sessions)), used) {
		t.stop()
		t.stop = nil
	}
	c.save()
	c.tell()
}

// Watch implements tapa.Connector. There is one session for the whole process.
func (c *Connector) Watch(ctx context.Context, tell func(map[stream.Key]tapa.Status)) error {
	for {
		c.mu.Lock()
		list, changed := make(map[stream.Key]tapa.Status, len(c.sessions)), c.changed
		for k, s := range c.sessions {
			list[k] = s.status
		}
		c.mu.Unlock()
		tell(list)
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// tell wakes those who watch. The lock is held.
func (c *Connector) tell() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// start has a worker keep a session that is not being closed, and another watch its trench, if Run runs. The lock is held.
func (c *Connector) start(s *session) {
	if c.ctx == nil || c.ctx.Err() != nil {
		return
	}
	if s.stop == nil && s.closing.IsZero() {
		ctx, cancel := context.WithCancel(c.ctx)
		s.stop, s.done = cancel, make(chan struct{})
		done := s.done
		c.workers.Go(func() { defer close(done); c.keep(ctx, s) })
	}
	if t := c.trenches[s.key.Trench]; t.stop == nil {
		ctx, cancel := context.WithCancel(c.ctx)
		t.stop = cancel
		c.workers.Go(func() { c.follow(ctx, s.key.Trench, t) })
	}
}

// end stops the worker of a session and waits for it.
func (c *Connector) end(s *session) {
	c.mu.Lock()
	stop, done := s.stop, s.done
	s.stop = nil
	if s.closing.IsZero() {
		s.closing = time.Now()
	}
	c.mu.Unlock()
	if stop != nil {
		stop()
		<-done
	}
}

// follow keeps the settings of a trench up to date; without its NSP they stay as they are.
func (c *Connector) follow(ctx context.Context, name string, t *trench) {
	for failures := 1; ctx.Err() == nil; failures++ {
		told := false
		err := c.configuration.watch(ctx, name, func(s *settings) {
			told = true
			c.configure(ctx, name, t, s)
		})
		if told {
			failures = 1
		}
		if ctx.Err() == nil && failures == 1 {
			c.log.Warn("the configuration of the trench is not watched, what is known of it stays", "trench", name, "error", err)
		}
		tapa.Pause(ctx, backoff.Delay(failures), nil)
	}
}

// configure takes in new settings. Only the sessions that they matter to are woken: renewing all of them at once, in all pods,
// would be a burst at the NSP.
func (c *Connector) configure(ctx context.Context, name string, t *trench, now *settings) {
	c.mu.Lock()
	if ctx.Err() != nil { // Another watch may have told something newer.
		c.mu.Unlock()
		return
	}
	was := t.settings
	t.settings = now
	c.save()
	for _, s := range c.sessions {
		if s.key.Trench == name && (s.status != tapa.Open || was == nil || was.limit(s.key) != now.limit(s.key)) {
			s.rouse()
		}
	}
	c.mu.Unlock()
	c.log.Info("the trench is configured", "trench", name, "vips", now.VIPs, "streams", len(now.Limits))
	if err := c.plumb(); err != nil {
		c.log.Warn("the VIPs are not in place, it is tried again", "error", err)
	}
}

// save makes the state durable. What cannot be written is tried again: it matters only after a crash. The lock is held.
func (c *Connector) save() {
	s := state{Version: version, Trenches: map[string]*settings{}, Made: slices.SortedFunc(maps.Keys(c.made), netip.Prefix.Compare)}
	for _, k := range slices.SortedFunc(maps.Keys(c.sessions), stream.Compare) {
		one := c.sessions[k]
		s.Streams = append(s.Streams, savedStream{k, one.identifier, one.addresses})
	}
	for name, t := range c.trenches {
		if t.settings != nil {
			s.Trenches[name] = t.settings
		}
	}
	err := s.write(c.cfg.StateFile)
	if err != nil && !c.unsaved {
		c.log.Error("the state was not stored, it is tried again", "error", err)
	}
	c.unsaved = err != nil
}
