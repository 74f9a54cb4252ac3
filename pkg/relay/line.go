package relay

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/targetpool/client"
)

var (
	errSilent = errors.New("the namespace process is silent")
	errStep   = errors.New("out of step with the namespace process")
	// errOpened ends an attempt that had given up waiting for rows: what happened meanwhile has to be told before they count.
	errOpened = errors.New("the namespace process has begun to answer")
	// errAged ends a connection before its credentials do.
	errAged = errors.New("the credentials of the connection expire soon")
)

// line is one connection to the namespace process.
type line struct {
	relay  *Relay
	client targetpoolv1.RelayClient
}

// isAway tells a namespace process that cannot be reached from one that says no.
func isAway(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return true
	case codes.Unauthenticated: // it does not say no to the caller of this process, but to this process
		return true
	}
	return false
}

func (l *line) position(ctx context.Context) (position, error) {
	resp, err := l.client.Position(ctx, &targetpoolv1.RelayPositionRequest{Trench: l.relay.cfg.Trench})
	return l.heard(resp.GetPosition()), err
}

func (l *line) register(ctx context.Context, t registry.Target, c registry.Caller) (position, error) {
	resp, err := l.client.Register(ctx, &targetpoolv1.RelayRegisterRequest{
		Trench: l.relay.cfg.Trench, Registration: registrationOf(t), Peer: peerOf(c), Proven: provenOf(c, auth.From(ctx).Pod),
	})
	return l.heard(resp.GetPosition()), err
}

func (l *line) unregister(
	ctx context.Context, t registry.Target, c registry.Caller, seen *targetpoolv1.Seen,
) (position, error) {
	resp, err := l.client.Unregister(ctx, &targetpoolv1.RelayUnregisterRequest{
		Trench: l.relay.cfg.Trench, Registration: registrationOf(t), Peer: peerOf(c), Seen: seen,
		Proven: provenOf(c, auth.From(ctx).Pod),
	})
	return l.heard(resp.GetPosition()), err
}

// heard takes in how many registrations there were.
func (l *line) heard(p *targetpoolv1.Position) position {
	at := positionOf(p)
	l.relay.mu.Lock()
	defer l.relay.mu.Unlock()
	l.relay.mirror.heard(at)
	return at
}

// connect keeps a line until ctx ends. Each attempt dials anew, so that a namespace process that comes back under another
// address is found within the pause.
func (r *Relay) connect(ctx context.Context) {
	failures, said := 0, ""
	for ctx.Err() == nil {
		began := time.Now()
		err := r.attempt(ctx)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errOpened) {
			continue
		}
		if errors.Is(err, errAged) {
			r.changeOver()
			continue
		}
		if wasLive := r.hangUp(); wasLive {
			failures, said = 0, ""
			r.cfg.Log.WarnContext(ctx, "the namespace process is away; its last state is served",
				"error", err, "after", time.Since(began).Round(time.Millisecond))
		} else if reason := status.Convert(err).Message(); reason != said {
			said = reason
			r.cfg.Log.InfoContext(ctx, "the namespace process cannot be followed", "address", r.cfg.Address, "error", err)
		}
		limit := min(r.cfg.RetryMax, r.cfg.RetryMax/20<<min(failures, 10))
		sleep(ctx, rand.N(limit+1))
		failures++
	}
}

// changeOver holds calls for the next connection: the namespace process is still there.
func (r *Relay) changeOver() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.line, r.joining = nil, true
	r.stir()
}

func (r *Relay) hangUp() (wasLive bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if wasLive = r.tally.since.IsZero(); wasLive {
		r.tally.lost(time.Now())
	}
	r.line, r.joining = nil, false
	r.stir()
	return wasLive
}

// attempt connects, tells what is owed, and follows until something fails.
func (r *Relay) attempt(ctx context.Context) error {
	conn, err := r.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	l := &line{relay: r, client: targetpoolv1.NewRelayClient(conn)}
	at, err := r.settle(ctx, l)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer r.age(func() { cancel(errAged) })()
	told := make(chan struct{})
	go func() {
		defer close(told)
		r.tell(ctx, l)
	}()
	err = (&follower{line: l, cancel: cancel}).run(ctx, at)
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	cancel(err)
	<-told
	return err
}

// age has f called before the credentials expire that go with each call. What it returns stops that.
func (r *Relay) age(f func()) (stop func()) {
	if e, ok := r.cfg.PerRPC.(client.Expiring); ok {
		if d := e.Reopen(); d > 0 {
			timer := time.AfterFunc(d, f)
			return func() { timer.Stop() }
		}
	}
	return func() {}
}

func (r *Relay) dial() (*grpc.ClientConn, error) {
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(r.cfg.Credentials),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 10 * time.Second}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: r.cfg.CallTimeout}),
		grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16 << 20)),
	}
	if r.cfg.PerRPC != nil {
		options = append(options, grpc.WithPerRPCCredentials(r.cfg.PerRPC))
	}
	conn, err := grpc.NewClient(r.cfg.Address, append(options, r.cfg.DialOptions...)...)
	if err != nil {
		return nil, fmt.Errorf("dialing the namespace process: %w", err)
	}
	return conn, nil
}

// settle tells the namespace process what happened without it, before its rows are taken over: first what is gone, which frees
// identifiers, then what shall stay. It returns a position that shows all of it.
func (r *Relay) settle(ctx context.Context, l *line) (position, error) {
	at, err := r.call(ctx, l.position)
	if err != nil {
		return at, fmt.Errorf("asking for the position: %w", err)
	}
	var restored []registry.Restored
	r.update(func(m *mirror) {
		r.joining = true
		restored = m.keep(at.Epoch)
	})
	if err := r.tellWithdrawn(ctx, l); err != nil {
		return at, err
	}
	if err := r.tellRestored(ctx, l, restored); err != nil {
		return at, err
	}
	r.update(func(m *mirror) {
		m.stale = m.stale || !m.adopted
		m.adopted = true
	})
	at, err = r.call(ctx, l.position)
	if err != nil {
		return at, fmt.Errorf("asking for the position: %w", err)
	}
	return at, nil
}

func (r *Relay) call(ctx context.Context, f func(context.Context) (position, error)) (position, error) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.CallTimeout)
	defer cancel()
	return f(ctx)
}

// tell goes on telling: what is withdrawn, because a call failed on a line that is live, and what shall stay, while the namespace
// process has nothing to answer yet.
func (r *Relay) tell(ctx context.Context, l *line) {
	const pace = time.Second
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.owed:
		}
		err := r.tellWithdrawn(ctx, l)
		r.mu.Lock()
		var restored []registry.Restored
		if r.line == nil {
			restored = r.mirror.keep(r.mirror.at.Epoch)
		}
		r.mu.Unlock()
		if err == nil {
			err = r.tellRestored(ctx, l, restored)
		}
		if err != nil {
			r.cfg.Log.DebugContext(ctx, "what is owed will be told again", "error", err)
			signal(r.owed)
		}
		sleep(ctx, pace)
	}
}

func (r *Relay) tellWithdrawn(ctx context.Context, l *line) error {
	r.mu.Lock()
	pending := r.mirror.pending()
	r.mu.Unlock()
	for _, w := range pending {
		at, err := r.call(ctx, func(ctx context.Context) (position, error) {
			return l.unregister(ctx, targetOf(w.entry), registry.Caller{}, seenOf(w))
		})
		if err != nil {
			return fmt.Errorf("telling what was unregistered: %w", err)
		}
		r.update(func(m *mirror) { m.told(w, at) })
	}
	return nil
}

// tellRestored goes in parts that fit into messages. What the namespace process refuses stays out.
func (r *Relay) tellRestored(ctx context.Context, l *line, all []registry.Restored) error {
	const part = 500
	for some := range slices.Chunk(all, part) {
		err := r.restore(ctx, l, some)
		for i := 0; err != nil && !isAway(err) && i < len(some); i++ {
			if one := r.restore(ctx, l, some[i:i+1]); isAway(one) {
				return one
			} else if one != nil {
				r.cfg.Log.WarnContext(ctx, "a registration cannot be handed over", "error", one)
			}
		}
		if isAway(err) {
			return fmt.Errorf("telling what shall stay: %w", err)
		}
		r.update(func(m *mirror) { m.kept(some, r.cfg.Namespace) })
	}
	return nil
}

func (r *Relay) restore(ctx context.Context, l *line, some []registry.Restored) error {
	req := &targetpoolv1.RelayRestoreRequest{Trench: r.cfg.Trench}
	for _, one := range some {
		req.Registrations = append(req.Registrations, restoredOf(one))
	}
	_, err := r.call(ctx, func(ctx context.Context) (position, error) {
		resp, err := l.client.Restore(ctx, req)
		return l.heard(resp.GetPosition()), err
	})
	return err
}

// follower reads one watch.
type follower struct {
	line    *line
	cancel  context.CancelCauseFunc
	pending batch
	// patience ends the joining.
	patience *time.Timer
}

// run follows from where the mirror is, until something fails.
func (f *follower) run(ctx context.Context, at position) error {
	r := f.line.relay
	silence := time.AfterFunc(r.cfg.HeartbeatTimeout, func() { f.cancel(errSilent) })
	defer silence.Stop()
	f.patience = time.AfterFunc(r.cfg.CallTimeout, f.leave)
	defer f.patience.Stop()
	r.mu.Lock()
	resume, current := r.mirror.at, r.mirror.at.covers(at)
	r.mu.Unlock()
	req := &targetpoolv1.RelayWatchRequest{Trench: r.cfg.Trench}
	if resume.Revision > 0 {
		req.Resume = &targetpoolv1.Version{Epoch: resume.Epoch, Revision: resume.Revision}
	}
	watch, err := f.line.client.Watch(ctx, req)
	if err != nil {
		return err
	}
	if current { // nothing will be sent
		r.update(func(*mirror) { f.live() })
	}
	for {
		m, err := watch.Recv()
		if err != nil {
			return err
		}
		silence.Reset(r.cfg.HeartbeatTimeout)
		if err := f.take(m); err != nil {
			if errors.Is(err, errStep) {
				r.update(func(m *mirror) { m.at.Revision = 0 }) // no resume from here
			}
			return err
		}
	}
}

func (f *follower) take(m *targetpoolv1.RelayWatchResponse) error {
	r := f.line.relay
	at := positionOf(m.GetPosition())
	switch m.GetKind() {
	case targetpoolv1.RelayWatchResponse_KIND_HEARTBEAT:
		return f.heartbeat(m.GetPosition() != nil, at)
	case targetpoolv1.RelayWatchResponse_KIND_SNAPSHOT:
		f.pending.snapshot = true
	case targetpoolv1.RelayWatchResponse_KIND_DELTA:
	default:
		return nil // of a later API; the heartbeat tells whether it brought a change
	}
	for _, c := range m.GetChanges() {
		one, err := changeOf(c, r.cfg.Trench, r.cfg.Namespace)
		if err != nil {
			return err
		}
		f.pending.changes = append(f.pending.changes, one)
	}
	for _, s := range m.GetSources() {
		f.pending.limits = append(f.pending.limits, limitOf(s, r.cfg.Trench, r.cfg.Namespace))
	}
	f.patience.Reset(r.cfg.CallTimeout)
	if !m.GetCommit() {
		return nil
	}
	done := f.pending
	done.at, f.pending = at, batch{}
	return f.commit(done)
}

func (f *follower) commit(b batch) error {
	r := f.line.relay
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.line != f.line && !r.joining {
		return errOpened
	}
	r.mirror.apply(b)
	if r.mirror.limit(b.snapshot, b.limits) {
		r.cfg.Limits(r.mirror.limits)
	}
	f.live()
	r.stir()
	return nil
}

// leave ends the joining: calls are answered as long as the namespace process has nothing to say.
func (f *follower) leave() {
	r := f.line.relay
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.joining {
		r.joining = false
		r.cfg.Log.Info("the namespace process is there, but cannot answer yet; the last state is served", "address", r.cfg.Address)
		r.stir()
	}
}

func (f *follower) heartbeat(named bool, at position) error {
	if !named {
		return nil
	}
	r := f.line.relay
	r.mu.Lock()
	defer r.mu.Unlock()
	have := r.mirror.at
	r.mirror.heard(at)
	switch {
	case have.Epoch != at.Epoch || have.Revision != at.Revision:
		return fmt.Errorf("%w: the heartbeat says %d, the last commit was %d", errStep, at.Revision, have.Revision)
	case r.line != f.line && !r.joining:
		return errOpened
	}
	f.live()
	return nil
}

// live lets calls through: the mirror is as the namespace process's rows are. It is called with the lock held.
func (f *follower) live() {
	r, now := f.line.relay, time.Now()
	r.tally.confirmed = now
	if r.line == f.line {
		return
	}
	r.line, r.joining = f.line, false
	if !r.tally.since.IsZero() {
		r.tally.found(now)
		r.cfg.Log.Info("the namespace process is there", "address", r.cfg.Address, "registrations", len(r.mirror.rows))
	}
	r.stir()
}
