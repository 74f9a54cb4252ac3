package iface

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nordix/meridio-nsp/pkg/stream"
	"github.com/nordix/meridio-nsp/pkg/tapa"
)

// session is one stream that is open. Its worker alone changes identifier and addresses, under the lock of the connector; where
// there is no worker, whoever ended it does.
type session struct {
	key    stream.Key
	status tapa.Status
	// identifier is what the target has, or had before it expired; 0 where it has none.
	identifier uint32
	// addresses are those that it is registered with; none where it is not.
	addresses []netip.Prefix
	// renewed is when the registry last had it ENABLED.
	renewed time.Time
	// closing is when it was first told to close; zero where it is to be open.
	closing time.Time
	said    string

	stop context.CancelFunc // nil where there is no worker
	done chan struct{}
	wake chan struct{}
}

func newSession(s savedStream) *session {
	return &session{
		key: s.Stream, identifier: s.Identifier, addresses: s.Addresses, status: tapa.Pending, wake: make(chan struct{}, 1),
	}
}

// rouse has the worker look anew.
func (s *session) rouse() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// leased is when the registration is over if nobody renews it; one that a stalled NSP still had to do is counted in.
func (s *session) leased(timeout time.Duration) time.Time {
	if s.renewed.After(s.closing) {
		return s.renewed.Add(timeout)
	}
	return s.closing.Add(timeout)
}

// keep has the session registered until ctx ends.
func (c *Connector) keep(ctx context.Context, s *session) {
	for failures := 0; ctx.Err() == nil; {
		err := c.round(ctx, s)
		wait := refresh(c.cfg.EntryTimeout)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			failures = 0
		default:
			failures++
			wait = backoff.Delay(failures)
			c.fail(s, err)
		}
		tapa.Pause(ctx, wait, s.wake)
	}
}

// refresh is the wait between two renewals: at most a third of the lease, spread so that pods that began together do not stay so.
func refresh(timeout time.Duration) time.Duration { return timeout/4 + rand.N(timeout/12+1) }

// Errors of a round.
var (
	errNoConfiguration = errors.New("the configuration of the trench is not known yet")
	errNoAddress       = errors.New("the interface has no address")
	errLost            = errors.New("another target has the identifier by now")
)

// round brings the session to where it shall be, or says why it is not there.
func (c *Connector) round(ctx context.Context, s *session) error {
	conf := c.settings(s)
	if conf == nil {
		return errNoConfiguration
	}
	limit := conf.limit(s.key)
	if limit == 0 {
		if err := c.unregister(ctx, s); err != nil {
			return err
		}
		c.set(s, func() { s.status, s.said = tapa.Undefined, "" })
		return nil
	}
	if err := c.plumb(); err != nil {
		return err
	}
	addrs, err := c.own()
	if err != nil {
		return err
	}
	if len(s.addresses) > 0 && !slices.Equal(s.addresses, addrs) {
		if err := c.unregister(ctx, s); err != nil {
			return err
		}
	}
	return c.register(ctx, s, addrs, limit)
}

// settings are those of the trench of a session; nil where none are known. The worker needs not be told of them again.
func (c *Connector) settings(s *session) *settings {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-s.wake:
	default:
	}
	return c.trenches[s.key.Trench].settings
}

// own are the addresses of the target: those of the interface, but for VIPs and what is of this link only.
func (c *Connector) own() ([]netip.Prefix, error) {
	link, err := c.kernel.link(c.cfg.Interface)
	if err != nil {
		return nil, err
	}
	all, err := c.kernel.addresses(link)
	if err != nil {
		return nil, err
	}
	out := slices.DeleteFunc(c.others(all), func(p netip.Prefix) bool {
		return p.Addr().IsLinkLocalUnicast() || p.Addr().IsLoopback()
	})
	if len(out) == 0 {
		return nil, fmt.Errorf("%w: %s", errNoAddress, c.cfg.Interface)
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return out, nil
}

// register gets an identifier where there is none, and has the target ENABLED under it.
func (c *Connector) register(ctx context.Context, s *session, addrs []netip.Prefix, limit uint32) error {
	if len(s.addresses) == 0 {
		c.set(s, func() { s.addresses = addrs; c.save() }) // Before it is registered, so that it is unregistered even after a crash.
	}
	if s.identifier == 0 || s.identifier > limit {
		id, err := c.reserve(ctx, s)
		if err != nil {
			return err
		}
		c.set(s, func() { s.identifier = id; c.save() })
	}
	if err := c.enable(ctx, s); err != nil {
		return err
	}
	c.set(s, func() {
		if s.status != tapa.Open {
			c.log.Info("the target is registered", "stream", s.key.String(), "identifier", s.identifier, "addresses", s.addresses)
		}
		s.status, s.renewed, s.said = tapa.Open, time.Now(), ""
	})
	return nil
}

// reserve asks without waiting first: that none is free is worth to be known. The place in the line outlasts an attempt; between two
// of them, and when the worker is roused, it looks whether the stream is still wanted.
func (c *Connector) reserve(ctx context.Context, s *session) (uint32, error) {
	asking, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	id, err := c.registry.reserve(asking, s.key, s.addresses, false)
	if status.Code(err) != codes.ResourceExhausted {
		return id, err
	}
	c.fail(s, err)
	waiting, cancel := context.WithTimeout(ctx, c.cfg.EntryTimeout/2)
	defer cancel()
	ended := make(chan struct{})
	defer func() { cancel(); <-ended }()
	go func() {
		defer close(ended)
		select {
		case <-s.wake:
			s.rouse()
			cancel()
		case <-waiting.Done():
		}
	}()
	if id, waited := c.registry.reserve(waiting, s.key, s.addresses, true); waited == nil {
		return id, nil
	}
	return 0, err // It is still so, as far as is known.
}

// enable registers the target and looks whether that worked. A registration that expired is stored as DISABLED first, whatever it
// asks, and enabled by the second call, if nobody has its identifier by then.
func (c *Connector) enable(ctx context.Context, s *session) error {
	for range 2 {
		if err := c.call(ctx, func(ctx context.Context) error {
			return c.registry.enable(ctx, s.key, s.addresses, s.identifier)
		}); err != nil {
			return err
		}
		var id uint32
		if err := c.call(ctx, func(ctx context.Context) (err error) {
			id, err = c.registry.enabled(ctx, s.key, s.addresses)
			return err
		}); err != nil {
			return err
		}
		if id == s.identifier {
			return nil
		}
	}
	err := fmt.Errorf("%w: %d", errLost, s.identifier)
	c.set(s, func() { s.identifier, s.renewed = 0, time.Time{}; c.save() })
	return err
}

// call gives each call a context of its own.
func (c *Connector) call(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return do(ctx)
}

// unregister takes the target out of the registry, if it may be there. The identifier is remembered: it may be free the next time.
func (c *Connector) unregister(ctx context.Context, s *session) error {
	if len(s.addresses) == 0 {
		return nil
	}
	if err := c.call(ctx, func(ctx context.Context) error {
		return c.registry.unregister(ctx, s.key, s.addresses, s.identifier)
	}); err != nil {
		return err
	}
	c.set(s, func() { s.addresses = nil; c.save() })
	return nil
}

// fail says what is in the way, once. A registration that the NSP cannot be asked about lasts until its lease is over.
func (c *Connector) fail(s *session, err error) {
	c.set(s, func() {
		if said := err.Error(); said != s.said {
			c.log.Warn("the stream is not open, it is tried again", "stream", s.key.String(), "error", err)
			s.said = said
		}
		if !away(err) || time.Since(s.renewed) > c.cfg.EntryTimeout {
			s.status = tapa.Unavailable
		}
	})
}

// away tells whether an error says that the NSP does not answer.
func away(err error) bool {
	code := status.Code(err)
	return code == codes.Unavailable || code == codes.DeadlineExceeded || code == codes.Canceled || errors.Is(err, context.DeadlineExceeded)
}

// set changes a session, and tells if its status is another one.
func (c *Connector) set(s *session, change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := s.status
	change()
	if s.status != before {
		c.tell()
	}
}
