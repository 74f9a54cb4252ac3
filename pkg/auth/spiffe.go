package auth

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// SPIFFETimeout is how long OpenSPIFFE waits for the first SVID. Meridio's operator lets a container start for 60 s: the
// reason shall be in the log before that.
const SPIFFETimeout = 50 * time.Second

// SPIFFEConfig says where the workload API is.
type SPIFFEConfig struct {
	// Socket is the address of the workload API as SPIFFE_ENDPOINT_SOCKET has it, or a bare path.
	Socket string
	// Timeout bounds the wait for the first SVID; 0 means SPIFFETimeout.
	Timeout time.Duration
	// Refused, if set, is called for each client whose handshake failed. It must not block.
	Refused func()
	Log     *slog.Logger
}

// SPIFFE is what the workload API says: who this process is, and who is trusted. It follows every rotation; while the
// workload API is away, what it said last counts until the SVID expires.
type SPIFFE struct {
	cfg     SPIFFEConfig
	client  *workloadapi.Client
	current atomic.Pointer[workloadapi.X509Context]
	// first is closed when there is an SVID.
	first chan struct{}
	// failed is the last error, for the message of a start that fails.
	failed atomic.Pointer[error]
	// away is whether the last word was an error. Only the watch touches it.
	away bool
	// expired is whether an expired SVID was logged.
	expired atomic.Bool
	refused rate.Sometimes

	stop    context.CancelFunc
	watcher sync.WaitGroup
}

// OpenSPIFFE connects to the workload API and waits for the first SVID. The result must be closed.
func OpenSPIFFE(ctx context.Context, cfg SPIFFEConfig) (*SPIFFE, error) {
	cfg.Timeout = cmp.Or(cfg.Timeout, SPIFFETimeout)
	client, err := workloadapi.New(ctx,
		workloadapi.WithAddr(SPIFFEAddress(cfg.Socket)),
		workloadapi.WithBackoffStrategy(retries{}),
		// gRPC alone would wait up to 2 minutes for an agent that was away long.
		workloadapi.WithDialOptions(grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: firstRetry, Multiplier: 2, Jitter: 0.2, MaxDelay: lastRetry},
			MinConnectTimeout: lastRetry,
		})))
	if err != nil {
		return nil, fmt.Errorf("connecting to the workload API: %w", err)
	}
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	s := &SPIFFE{
		cfg: cfg, client: client, first: make(chan struct{}), stop: stop,
		refused: rate.Sometimes{First: 10, Interval: 10 * time.Second},
	}
	s.watcher.Go(func() { s.watch(watching) })
	if err := s.await(ctx); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// SPIFFEAddress turns a bare path into the form that the workload API is addressed by.
func SPIFFEAddress(socket string) string {
	if strings.HasPrefix(socket, "/") {
		return "unix://" + socket
	}
	return socket
}

// await waits for the first SVID.
func (s *SPIFFE) await(ctx context.Context) error {
	s.cfg.Log.InfoContext(ctx, "waiting for the first SVID", "socket", s.cfg.Socket, "timeout", s.cfg.Timeout.String())
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	select {
	case <-s.first:
		return nil
	case <-ctx.Done():
	}
	cause := ctx.Err()
	if last := s.failed.Load(); last != nil {
		cause = errors.Join(cause, *last)
	}
	return fmt.Errorf("no SVID from the workload API at %s; is its agent there, and this workload registered? %w", s.cfg.Socket, cause)
}

// watch receives until ctx ends. The library gives up where the agent answers Canceled or InvalidArgument, as one may that is
// being replaced; a server that lives on without rotation is of no use, so it begins anew.
func (s *SPIFFE) watch(ctx context.Context) {
	for ctx.Err() == nil {
		_ = s.client.WatchX509Context(ctx, s) // OnX509ContextWatchError was told
		select {
		case <-ctx.Done():
		case <-time.After(lastRetry):
		}
	}
}

// OnX509ContextUpdate implements workloadapi.X509ContextWatcher.
func (s *SPIFFE) OnX509ContextUpdate(now *workloadapi.X509Context) {
	before := s.current.Swap(now)
	level := slog.LevelDebug
	if before == nil || s.away {
		level = slog.LevelInfo
	}
	s.away = false
	s.expired.Store(false)
	svid := now.DefaultSVID()
	s.cfg.Log.Log(context.Background(), level, "got an SVID", "spiffe_id", svid.ID.String(), "expires", expiry(svid))
	if before == nil {
		close(s.first)
	}
}

// OnX509ContextWatchError implements workloadapi.X509ContextWatcher.
func (s *SPIFFE) OnX509ContextWatchError(err error) {
	s.failed.Store(&err)
	if s.away || errors.Is(err, context.Canceled) {
		return
	}
	s.away = true
	if last := s.current.Load(); last != nil {
		s.cfg.Log.Warn("the workload API is away; the last SVID counts until it expires",
			"expires", expiry(last.DefaultSVID()), "error", err)
		return
	}
	s.cfg.Log.Warn("no SVID from the workload API yet", "socket", s.cfg.Socket, "error", err)
}

// GetX509SVID implements x509svid.Source. An expired SVID is not shown to anybody.
func (s *SPIFFE) GetX509SVID() (*x509svid.SVID, error) {
	now := s.current.Load()
	if now == nil {
		return nil, errors.New("no SVID yet")
	}
	svid := now.DefaultSVID()
	if e := expiry(svid); time.Now().After(e) {
		if !s.expired.Swap(true) {
			s.cfg.Log.Error("the SVID has expired; new connections fail until the workload API gives another", "expired", e)
		}
		return nil, fmt.Errorf("the SVID expired at %s", e.Format(time.RFC3339))
	}
	return svid, nil
}

// GetX509BundleForTrustDomain implements x509bundle.Source.
func (s *SPIFFE) GetX509BundleForTrustDomain(d spiffeid.TrustDomain) (*x509bundle.Bundle, error) {
	now := s.current.Load()
	if now == nil {
		return nil, errors.New("no trust bundles yet")
	}
	b, err := now.Bundles.GetX509BundleForTrustDomain(d)
	if err != nil {
		return nil, fmt.Errorf("the trust domain %s is not trusted: %w", d, err)
	}
	return b, nil
}

// ID is who this process is.
func (s *SPIFFE) ID() spiffeid.ID { return s.current.Load().DefaultSVID().ID }

// Expires is when the SVID does.
func (s *SPIFFE) Expires() time.Time { return expiry(s.current.Load().DefaultSVID()) }

// Close ends the connection to the workload API.
func (s *SPIFFE) Close() {
	s.stop()
	s.watcher.Wait()
	_ = s.client.Close()
}

func expiry(svid *x509svid.SVID) time.Time { return svid.Certificates[0].NotAfter }

// firstRetry and lastRetry bound how soon a lost workload API is asked again. It is on the same node and has few clients.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 5 * time.Second
)

// retries implements workloadapi.BackoffStrategy.
type retries struct{}

func (retries) NewBackoff() workloadapi.Backoff { return &retry{firstRetry} }

// retry doubles.
type retry struct{ next time.Duration }

func (r *retry) Next() time.Duration {
	d := r.next
	r.next = min(2*d, lastRetry)
	return d
}

func (r *retry) Reset() { r.next = firstRetry }
