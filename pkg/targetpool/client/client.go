package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
)

// Defaults of Config.
const (
	// DefaultHeartbeatTimeout is three heartbeats of the server.
	DefaultHeartbeatTimeout = 15 * time.Second
	DefaultKeepalive        = 20 * time.Second
	DefaultBackoffBase      = 500 * time.Millisecond
	DefaultBackoffMax       = 5 * time.Second
)

// minKeepalive is the shortest ping interval that gRPC's client allows, and one that the NSP's enforcement accepts.
const minKeepalive = 10 * time.Second

// A connection may take connectTimeout to be made, at first: gRPC's own 20 s would spend most of a takeover on an address that
// does not exist any more. Each time that a server which was there took longer, the next connection may take twice as long:
// where thousands come back at once a server has that much to do, and giving up early would only add to it.
const (
	connectTimeout    = 5 * time.Second
	maxConnectTimeout = 40 * time.Second
)

// Config says how to reach the NSP.
type Config struct {
	// Address is a gRPC target; host:port means dns:///host:port.
	Address string
	// Credentials of the transport. Required: plaintext is asked for with insecure.NewCredentials().
	Credentials credentials.TransportCredentials
	// PerRPC is asked once per stream, for a token for example: see NewTokenFile. Where it is Expiring, streams are opened
	// again, with resume, before what they were opened with expires. Optional.
	PerRPC credentials.PerRPCCredentials
	// MaxAge re-opens a stream, with resume, after so long. 0 keeps streams as long as they last, or PerRPC does.
	MaxAge time.Duration
	// HeartbeatTimeout is how long a server may be silent. Default 15 s.
	HeartbeatTimeout time.Duration
	// Keepalive is the interval of HTTP/2 pings on a quiet connection, at least 10 s. Default 20 s.
	Keepalive time.Duration
	Backoff   Backoff
	// DialOptions come after the client's own and win over them.
	DialOptions []grpc.DialOption
	// Log defaults to slog.Default().
	Log *slog.Logger
}

// Expiring are per-call credentials that end some day.
type Expiring interface {
	credentials.PerRPCCredentials
	// Reopen is after how long a stream that is opened now shall be opened again; 0 is never.
	Reopen() time.Duration
}

// maxAge is how long a stream that is opened now may last; 0 is for ever.
func (c Config) maxAge() time.Duration {
	// Streams opened together after a restart of the server shall not all be re-opened together.
	age := c.MaxAge - jitter(c.MaxAge/5)
	if e, ok := c.PerRPC.(Expiring); ok {
		if other := e.Reopen(); other > 0 && (age == 0 || other < age) {
			age = other
		}
	}
	return age
}

// Client makes watches. It holds no connection itself: each watch has its own, for the duration of its Run.
type Client struct {
	config Config
}

// New checks the configuration. It does not connect.
func New(config Config) (*Client, error) {
	config = withDefaults(config)
	if err := check(config); err != nil {
		return nil, fmt.Errorf("target pool client: %w", err)
	}
	c := &Client{config: config}
	conn, err := c.dial(connectTimeout, func() {}) // No I/O: it finds out whether address, credentials and options fit each other.
	if err != nil {
		return nil, fmt.Errorf("target pool client: %w", err)
	}
	return c, conn.Close()
}

func withDefaults(c Config) Config {
	c.HeartbeatTimeout = cmp.Or(c.HeartbeatTimeout, DefaultHeartbeatTimeout)
	c.Keepalive = cmp.Or(c.Keepalive, DefaultKeepalive)
	c.Backoff.Base = cmp.Or(c.Backoff.Base, DefaultBackoffBase)
	c.Backoff.Max = cmp.Or(c.Backoff.Max, DefaultBackoffMax)
	c.Log = cmp.Or(c.Log, slog.Default())
	return c
}

func check(c Config) error {
	switch {
	case c.Address == "":
		return errors.New("the address is empty")
	case c.Credentials == nil:
		return errors.New("transport credentials are missing")
	case c.Keepalive < minKeepalive:
		return fmt.Errorf("keepalive %v is under %v", c.Keepalive, minKeepalive)
	case c.HeartbeatTimeout < 0:
		return fmt.Errorf("heartbeat timeout %v is negative", c.HeartbeatTimeout)
	case c.MaxAge != 0 && c.MaxAge < c.HeartbeatTimeout:
		return fmt.Errorf("maximum age %v is under the heartbeat timeout %v", c.MaxAge, c.HeartbeatTimeout)
	case c.Backoff.Base < 0 || c.Backoff.Max < c.Backoff.Base:
		return fmt.Errorf("backoff from %v to %v is no range", c.Backoff.Base, c.Backoff.Max)
	}
	return nil
}

// dial makes a connection that may take so long to be made. It calls reached when there is somebody to shake hands with.
func (c *Client) dial(limit time.Duration, reached func()) (*grpc.ClientConn, error) {
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(announcing{c.config.Credentials, reached}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: c.config.Keepalive, Timeout: minKeepalive}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: limit}),
		// Spares two TXT lookups per connection.
		grpc.WithDisableServiceConfig(),
	}
	if c.config.PerRPC != nil {
		options = append(options, grpc.WithPerRPCCredentials(c.config.PerRPC))
	}
	conn, err := grpc.NewClient(c.config.Address, append(options, c.config.DialOptions...)...)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", c.config.Address, err)
	}
	return conn, nil
}

// announcing are credentials that tell of each handshake that begins.
type announcing struct {
	credentials.TransportCredentials
	reached func()
}

// Clone implements credentials.TransportCredentials.
func (a announcing) Clone() credentials.TransportCredentials {
	return announcing{a.TransportCredentials.Clone(), a.reached}
}

// ClientHandshake implements credentials.TransportCredentials.
func (a announcing) ClientHandshake(
	ctx context.Context, authority string, raw net.Conn,
) (net.Conn, credentials.AuthInfo, error) {
	a.reached()
	return a.TransportCredentials.ClientHandshake(ctx, authority, raw)
}
