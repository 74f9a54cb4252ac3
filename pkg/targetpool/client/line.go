package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var (
	errRunning = errors.New("the watch runs already")
	errSilent  = errors.New("the server is silent")
	errAged    = errors.New("the stream reached its maximum age")
	// errLost is wrapped by all that shows that a message was lost or that the server contradicts itself.
	errLost = errors.New("out of step with the server")
)

// redialAfter bounds how long refusals keep a connection: whoever answers may have got the address of the NSP that
// moved away.
const redialAfter = 30 * time.Second

// attempt opens one stream and receives from it until it fails.
type attempt func(ctx context.Context, conn grpc.ClientConnInterface, p *pulse) error

// line keeps one watch connected.
//
// Each attempt dials anew. A connection that lived on would keep its resolver, and gRPC's DNS resolver neither looks
// again within 30 s of a good answer nor keeps its pauses under two minutes after empty ones, both for the whole
// process only. A Service made again with another address, or one without endpoints for a while, must be found within
// the backoff. The price is nothing: what failed would have to be connected again anyhow. Refusals are the exception:
// they came over a good connection, and thousands of refused watchers must not keep the server busy with handshakes.
type line struct {
	client  *Client
	log     *slog.Logger
	attempt attempt

	// Used by Run only.
	conn     *grpc.ClientConn
	dialed   time.Time
	limit    time.Duration // How long the connection may take to be made.
	slow     int           // Connections in a row that a server took longer to make.
	failures int
	said     string

	// pulse is that of the present attempt.
	pulse atomic.Pointer[pulse]

	mu      sync.Mutex
	running bool
	status  Status
}

// Status is what a watch says of itself.
type Status struct {
	// Live is true from the first commit of a stream to its end.
	Live bool
	// Since is when Live changed; zero before the first commit.
	Since time.Time
	// Err is why the last stream ended; nil while live.
	Err error
}

// run connects until ctx ends, which is no error.
func (l *line) run(ctx context.Context) error {
	if !l.start() {
		return errRunning
	}
	defer l.stop()
	for ctx.Err() == nil {
		err := l.try(ctx)
		if ctx.Err() != nil {
			break
		}
		if wait := l.failed(ctx, err); wait > 0 {
			pause(ctx, wait)
		}
	}
	return nil
}

func (l *line) start() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.running {
		return false
	}
	l.running = true
	return true
}

func (l *line) stop() {
	l.hangUp()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running = false
	if l.status.Live {
		l.status = Status{Since: time.Now(), Err: context.Canceled}
	}
}

// try is one attempt. Its error is the reason for which the stream was given up, where that was this side's doing.
func (l *line) try(ctx context.Context) error {
	if err := l.dial(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p := newPulse(l.client.config.HeartbeatTimeout, cancel, l.live)
	defer p.stop()
	l.pulse.Store(p)
	if age := l.client.config.maxAge(); age > 0 {
		timer := time.AfterFunc(age, func() { cancel(errAged) })
		defer timer.Stop()
	}
	err := l.attempt(ctx, l.conn, p)
	l.patience(p)
	if cause := context.Cause(ctx); errors.Is(cause, errSilent) || errors.Is(cause, errAged) {
		return cause
	}
	return err
}

// dial makes a connection, unless there is one.
func (l *line) dial() error {
	if l.conn != nil {
		return nil
	}
	limit := connectLimit(l.slow)
	conn, err := l.client.dial(limit, func() {
		if p := l.pulse.Load(); p != nil {
			p.reached(limit)
		}
	})
	if err != nil {
		return err
	}
	l.conn, l.dialed, l.limit = conn, time.Now(), limit
	return nil
}

// patience grows each time that a server was there and took too long to connect.
func (l *line) patience(p *pulse) {
	switch phase := p.phase.Load(); {
	case phase == open:
		l.slow = 0
	case phase == reached && time.Since(l.dialed) >= l.limit:
		l.slow++
	}
}

// connectLimit is how long a connection may take to be made, after so many that took too long. What is added at random keeps
// those apart who gave up together.
func connectLimit(slow int) time.Duration {
	limit := min(connectTimeout<<min(slow, 8), maxConnectTimeout)
	return limit + jitter(limit/2)
}

// live is called at the first commit of a stream.
func (l *line) live() {
	if l.said != "" {
		l.log.Info("watch is live again")
	}
	l.said = ""
	l.mu.Lock()
	defer l.mu.Unlock()
	l.status = Status{Live: true, Since: time.Now()}
}

// failed draws the conclusions from the end of a stream and returns how long to wait.
func (l *line) failed(ctx context.Context, err error) time.Duration {
	refused := isRefusal(err)
	if !refused || time.Since(l.dialed) >= redialAfter {
		l.hangUp()
	}
	wasLive := l.down(err)
	if wasLive && !errors.Is(err, errLost) {
		l.failures = 0 // A server that contradicts itself after every commit stays on the backoff.
	}
	switch backoff := l.client.config.Backoff; {
	case errors.Is(err, errAged):
		return 0
	case wasLive && status.Code(err) == codes.Unauthenticated:
		// The token expired meanwhile. By now its file should have another one; if not, the next answer is a refusal.
		l.log.InfoContext(ctx, "the stream ended with its token", "error", err)
		return backoff.delay(0)
	case refused:
		l.say(ctx, slog.LevelWarn, "watch was refused", err, err.Error())
		return backoff.refused()
	default:
		l.say(ctx, slog.LevelInfo, "watch was interrupted", err, status.Code(err).String())
		wait := backoff.delay(l.failures)
		l.failures++
		return wait
	}
}

func (l *line) down(err error) (wasLive bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	wasLive = l.status.Live
	if wasLive {
		l.status.Live, l.status.Since = false, time.Now()
	}
	l.status.Err = err
	return wasLive
}

// say logs a reason once, until another one comes or the watch is live.
func (l *line) say(ctx context.Context, level slog.Level, what string, err error, reason string) {
	if reason == l.said {
		level = slog.LevelDebug
	}
	l.said = reason
	l.log.Log(ctx, level, what, "error", err)
}

func (l *line) hangUp() {
	if l.conn == nil {
		return
	}
	if err := l.conn.Close(); err != nil {
		l.log.Debug("connection was not closed", "error", err)
	}
	l.conn = nil
}

// Status can be called at any time.
func (l *line) Status() Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.status
}

// isRefusal tells an answer that a retry alone does not change from a failure.
func isRefusal(err error) bool {
	switch status.Code(err) {
	case codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented, codes.FailedPrecondition:
		return true
	}
	return false
}

func lostf(format string, args ...any) error {
	return fmt.Errorf("%w: %w", errLost, fmt.Errorf(format, args...))
}
