package lb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/lb/nft"
	"github.com/nordix/meridio-nsp/pkg/targetpool/client"
)

// Config says what to balance and whom to ask.
type Config struct {
	// Namespace of the trench; empty is that of the NSP.
	Namespace, Trench, Conduit string
	// NSP is the address of the trench process, which has the configuration.
	NSP string
	// Feed is the address of the namespace process, which has the targets; where it is empty the trench process is asked for them.
	Feed string
	// Credentials of both connections.
	Credentials credentials.TransportCredentials
	// PerRPC is optional, as for a token.
	PerRPC credentials.PerRPCCredentials
	// Plane says where the data plane is.
	Plane nft.Config
	// AuditEvery is how often the kernel is compared with what is desired, which mends what others have changed.
	AuditEvery time.Duration
	// RemoveAtEnd takes everything out of the kernel when Run ends. Without it the kernel goes on forwarding.
	RemoveAtEnd bool
	Log         *slog.Logger
}

// Defaults and limits of a Balancer.
const (
	DefaultAuditEvery = time.Minute
	minRetry          = 50 * time.Millisecond
	maxRetry          = 5 * time.Second
)

// Balancer is a load balancer of one conduit.
type Balancer struct {
	cfg     Config
	log     *slog.Logger
	plane   *nft.Plane
	intent  *intent
	watches *watches
	feed    *client.Feed
	metrics *metrics

	mu sync.Mutex
	// refresh and audit are what the next round shall look at anew.
	refresh, audit bool
	poked          chan struct{}
	status         Status

	// Of the loop only.
	said  string
	retry time.Duration
}

// Status is what a Balancer says of itself.
type Status struct {
	// Programmed says that the kernel has what is desired, as far as that is possible.
	Programmed bool
	// Since the kernel has it, or has it not.
	Since time.Time
	// Connected says that all watches are live.
	Connected bool
	// Missing names what was not told yet.
	Missing string
	// Targets are how many each stream has.
	Targets map[string]TargetCount
	// StreamOf are the streams of flows.
	StreamOf map[string]string
	Pending  []nft.TargetRef
	Refused  nft.Refused
	Err      error
}

// TargetCount is how many targets a stream has.
type TargetCount struct{ Active, Draining int }

// New makes a Balancer. It changes nothing before Run.
func New(cfg Config) (*Balancer, error) {
	cfg.AuditEvery = cmp.Or(cfg.AuditEvery, DefaultAuditEvery)
	cfg.Log = cmp.Or(cfg.Log, slog.Default())
	cfg.Plane.Log = cfg.Log
	switch {
	case cfg.Trench == "" || cfg.Conduit == "":
		return nil, errors.New("load balancer: the name of the trench or the conduit is empty")
	case cfg.NSP == "":
		return nil, errors.New("load balancer: the address of the NSP is empty")
	case cfg.Credentials == nil:
		return nil, errors.New("load balancer: transport credentials are missing")
	}
	plane, err := nft.New(cfg.Plane)
	if err != nil {
		return nil, fmt.Errorf("load balancer: %w", err)
	}
	b := &Balancer{
		cfg: cfg, log: cfg.Log, plane: plane, intent: newIntent(), poked: make(chan struct{}, 1),
		watches: &watches{log: cfg.Log, live: map[string]bool{}}, status: Status{Since: time.Now()},
	}
	b.metrics = newMetrics(b)
	return b, b.makeFeed()
}

func (b *Balancer) makeFeed() error {
	if b.cfg.Feed == "" {
		return nil
	}
	c, err := client.New(client.Config{Address: b.cfg.Feed, Credentials: b.cfg.Credentials, PerRPC: b.cfg.PerRPC, Log: b.log})
	if err != nil {
		return fmt.Errorf("load balancer: %w", err)
	}
	b.feed, err = c.WatchFeed(client.FeedConfig{
		Conduit: &targetpoolv1.Conduit{Namespace: b.cfg.Namespace, Trench: b.cfg.Trench, Name: b.cfg.Conduit}, Handler: b.fed,
	})
	if err != nil {
		return fmt.Errorf("load balancer: %w", err)
	}
	return nil
}

// Run balances until ctx ends, which is no error. It can be called once.
func (b *Balancer) Run(ctx context.Context) error {
	defer b.plane.Close()
	conn, err := b.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	group, running := errgroup.WithContext(ctx)
	group.Go(func() error { b.configuration(running, conn); return nil })
	group.Go(func() error {
		if b.feed != nil {
			return b.feed.Run(running)
		}
		b.registry(running, conn)
		return nil
	})
	group.Go(func() error { return links(running, b.cfg.Plane.Netns, b.linksChanged) })
	group.Go(func() error { b.loop(running); return nil })
	if err := group.Wait(); err != nil && ctx.Err() == nil {
		return fmt.Errorf("load balancer: %w", err)
	}
	return b.end()
}

func (b *Balancer) end() error {
	if !b.cfg.RemoveAtEnd {
		return nil
	}
	if err := b.plane.Remove(); err != nil {
		return fmt.Errorf("removing the data plane: %w", err)
	}
	return nil
}

func (b *Balancer) dial() (*grpc.ClientConn, error) {
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(b.cfg.Credentials), grpc.WithDisableServiceConfig(),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 10 * time.Second}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64 << 20)), // a list of nsp.v1 cannot be cut
	}
	if b.cfg.PerRPC != nil {
		options = append(options, grpc.WithPerRPCCredentials(b.cfg.PerRPC))
	}
	conn, err := grpc.NewClient(b.cfg.NSP, options...)
	if err != nil {
		return nil, fmt.Errorf("load balancer: dialling %s: %w", b.cfg.NSP, err)
	}
	return conn, nil
}

func (b *Balancer) linksChanged() { b.poke(func() { b.refresh = true }) }

func (b *Balancer) poke(f func()) {
	b.mu.Lock()
	f()
	b.mu.Unlock()
	select {
	case b.poked <- struct{}{}:
	default:
	}
}

// loop is the only one that works on the data plane.
func (b *Balancer) loop(ctx context.Context) {
	audit := time.NewTicker(b.cfg.AuditEvery)
	defer audit.Stop()
	again := time.NewTimer(time.Hour)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.intent.changed:
		case <-b.poked:
		case <-again.C:
		case <-audit.C:
			b.poke(func() { b.audit = true })
			continue
		}
		if wait := b.round(ctx); wait > 0 {
			again.Reset(wait)
		}
	}
}

// round brings the kernel to what is desired and says after how long it wants to be called again; 0 is when something changes.
func (b *Balancer) round(ctx context.Context) time.Duration {
	if missing := b.intent.missing(); missing != "" {
		b.set(func(s *Status) { s.Missing = missing })
		return 0
	}
	b.mu.Lock()
	if b.refresh {
		b.plane.Refresh()
	}
	if b.audit {
		b.plane.Audit()
	}
	b.refresh, b.audit = false, false
	b.mu.Unlock()
	desired, refused, news := b.intent.desired()
	result, err := b.plane.Apply(desired)
	b.metrics.applied(news, result, err)
	maps.Copy(refused, result.Refused)
	b.report(ctx, desired, result.Pending, refused, err)
	if err == nil {
		b.retry = 0
		return result.Again
	}
	b.intent.postpone(news)
	b.retry = min(max(2*b.retry, minRetry), maxRetry)
	return b.retry
}

func (b *Balancer) set(f func(*Status)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f(&b.status)
}

// report keeps the status, and logs what is new about it.
func (b *Balancer) report(ctx context.Context, d *nft.Desired, pending []nft.TargetRef, refused nft.Refused, err error) {
	b.set(func(s *Status) {
		if programmed := err == nil; programmed != s.Programmed {
			s.Programmed, s.Since = programmed, time.Now()
		}
		s.Missing, s.Pending, s.Refused, s.Err = "", pending, refused, err
		s.Targets, s.StreamOf = counted(d)
	})
	said := fmt.Sprint(pending, refused, err)
	if said == b.said {
		return
	}
	b.said = said
	for _, name := range slices.Sorted(maps.Keys(refused)) {
		b.log.WarnContext(ctx, "refused", "what", name, "error", refused[name])
	}
	for _, p := range pending {
		b.log.InfoContext(ctx, "no link leads to the target yet", "stream", p.Stream, "identifier", p.Identifier)
	}
	if err != nil {
		b.log.WarnContext(ctx, "the kernel is not as desired, which is tried again", "error", err)
	}
}

func counted(d *nft.Desired) (targets map[string]TargetCount, streamOf map[string]string) {
	targets, streamOf = map[string]TargetCount{}, map[string]string{}
	for _, s := range d.Streams {
		var n TargetCount
		for _, t := range s.Targets {
			if t.Draining {
				n.Draining++
			} else {
				n.Active++
			}
		}
		targets[s.Name] = n
	}
	for _, f := range d.Flows {
		streamOf[f.Name] = f.Stream
	}
	return targets, streamOf
}

// Status can be called at any time.
func (b *Balancer) Status() Status {
	b.mu.Lock()
	s := b.status
	b.mu.Unlock()
	s.Connected = b.watches.allLive() && (b.feed == nil || b.feed.Status().Live)
	return s
}
