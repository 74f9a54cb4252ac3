// Package ambassador has an existing TAPA of Meridio 1.x open and close streams, through the socket that it serves to
// applications.
//
// What that API does, and what follows from it:
//
//   - Open returns when the stream is in the TAPA's list. Open of an open stream succeeds silently.
//   - Close returns before anything has happened, and an Open that follows at once can be overtaken by it. So Close here
//     waits until a watch that began later does not list the stream.
//   - A call goes on in the TAPA when its caller has given up, so that an Open can have its effect after a Close.
//   - A stream that is closed while it is being opened can stay in the list for ever, as UNAVAILABLE.
//   - The server has gRPC's default enforcement: whoever pings more often than every five minutes is thrown out.
package ambassador

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	ambassadorv1 "github.com/nordix/meridio-nsp/api/ambassador/v1"
	"github.com/nordix/meridio-nsp/pkg/stream"
	"github.com/nordix/meridio-nsp/pkg/tapa"
	"github.com/nordix/meridio-nsp/pkg/tapa/tap"
)

// Config says where the TAPA is.
type Config struct {
	// Socket is the path of the TAPA's unix socket.
	Socket string
	// Namespace is that of all its streams.
	Namespace string
	// Log defaults to slog.Default().
	Log *slog.Logger
}

// Connector implements tapa.Connector.
type Connector struct {
	cfg  Config
	conn *grpc.ClientConn
	tap  ambassadorv1.TapClient
	// dialled is how the last attempt to connect ended.
	dialled atomic.Pointer[error]
}

// New makes a connector; it connects when it is used.
func New(cfg Config) (*Connector, error) {
	cfg.Log = cmp.Or(cfg.Log, slog.Default())
	c := &Connector{cfg: cfg}
	conn, err := grpc.NewClient("passthrough:///"+cfg.Socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(c.dial),
		grpc.WithAuthority("localhost"),
		grpc.WithDisableServiceConfig(),
		// The Reconciler waits between attempts; this keeps gRPC from waiting longer.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 5 * time.Second,
		}))
	if err != nil {
		return nil, fmt.Errorf("the socket of the TAPA, %s: %w", cfg.Socket, err)
	}
	c.conn, c.tap = conn, ambassadorv1.NewTapClient(conn)
	return c, nil
}

// Stop closes the connection.
func (c *Connector) Stop() { _ = c.conn.Close() }

func (c *Connector) dial(ctx context.Context, path string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	c.dialled.Store(&err)
	return conn, err
}

// Open implements tapa.Connector.
func (c *Connector) Open(ctx context.Context, k stream.Key) error {
	_, err := c.tap.Open(ctx, tap.Stream(k))
	return c.explain("opening", err)
}

// Close implements tapa.Connector.
func (c *Connector) Close(ctx context.Context, k stream.Key) error {
	if _, err := c.tap.Close(ctx, tap.Stream(k)); err != nil {
		return c.explain("closing", err)
	}
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	w, err := c.tap.Watch(watching, tap.Stream(k))
	last := tapa.Open
	for err == nil {
		var r *ambassadorv1.StreamResponse
		if r, err = w.Recv(); err == nil {
			status, listed := c.list(r)[k]
			if !listed {
				return nil
			}
			last = status
		}
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) && last != tapa.Open {
		c.cfg.Log.Warn("the TAPA still lists a stream that it was told to close, it counts as closed",
			"stream", k.String(), "status", last.String())
		return nil
	}
	return c.explain("waiting for the end of", err)
}

// Watch implements tapa.Connector.
func (c *Connector) Watch(ctx context.Context, tell func(map[stream.Key]tapa.Status)) error {
	c.conn.ResetConnectBackoff()
	w, err := c.tap.Watch(ctx, &ambassadorv1.Stream{})
	for err == nil {
		var r *ambassadorv1.StreamResponse
		if r, err = w.Recv(); err == nil {
			tell(c.list(r))
		}
	}
	return c.explain("watching", err)
}

func (c *Connector) list(r *ambassadorv1.StreamResponse) map[stream.Key]tapa.Status {
	list := make(map[stream.Key]tapa.Status, len(r.GetStreamStatus()))
	for _, s := range r.GetStreamStatus() {
		list[tap.Key(s.GetStream(), c.cfg.Namespace)] = tap.Status(s.GetStatus())
	}
	return list
}

// explain says what is the matter with the socket, where that is why a call failed.
func (c *Connector) explain(what string, err error) error {
	if err == nil {
		return nil
	}
	if dialled := c.dialled.Load(); dialled != nil && *dialled != nil && status.Code(err) == codes.Unavailable {
		return c.unreachable(*dialled)
	}
	return fmt.Errorf("%s at the TAPA: %w", what, err)
}

func (c *Connector) unreachable(err error) error {
	info, statErr := os.Stat(c.cfg.Socket)
	switch {
	case errors.Is(statErr, fs.ErrNotExist):
		return fmt.Errorf("the TAPA's socket %s is not there: is the TAPA running, and is that its socket?", c.cfg.Socket)
	case statErr == nil && info.Mode()&fs.ModeSocket == 0:
		return fmt.Errorf("the TAPA's socket %s is no socket (%s)", c.cfg.Socket, info.Mode())
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("nobody listens on the TAPA's socket %s: the TAPA is not running any more", c.cfg.Socket)
	case statErr == nil && errors.Is(err, syscall.EACCES):
		return fmt.Errorf("the TAPA's socket %s (%s%s) may not be used by user %d", c.cfg.Socket, info.Mode(), ownedBy(info), os.Getuid())
	}
	return fmt.Errorf("the TAPA's socket %s: %w", c.cfg.Socket, err)
}

func ownedBy(info fs.FileInfo) string {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return fmt.Sprintf(", owner %d", s.Uid)
	}
	return ""
}
