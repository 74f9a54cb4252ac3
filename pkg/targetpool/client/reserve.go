package client

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
)

// DefaultAttempt is how long one call of Reserve may wait. The place in the line outlasts it by the server's entry timeout.
const DefaultAttempt = 30 * time.Second

// ReserveConfig says which target needs an identifier.
type ReserveConfig struct {
	Stream *targetpoolv1.Stream
	// IPs are those that the target will be registered with.
	IPs []string
	// Context is stored with the registration. Optional.
	Context map[string]string
	// Wait until an identifier becomes free.
	Wait bool
	// Attempt bounds one call; there is another one after it, as long as the context lasts. Default 30 s.
	Attempt time.Duration
}

// Reserve gets the target an identifier, and registers it, DISABLED, with that. It asks again, each time over a new connection and
// with a full attempt, until the server gives one, refuses, has none (where the config does not say to wait) or ctx ends. The error
// is then a gRPC status, or that of the context with the last answer.
func (c *Client) Reserve(ctx context.Context, config ReserveConfig) (uint32, error) {
	for failures := 0; ; failures++ {
		id, err := c.reserveOnce(ctx, config)
		code := status.Code(err)
		switch {
		case err == nil:
			return id, nil
		case ctx.Err() != nil:
			return 0, fmt.Errorf("reserving an identifier: %w, the last answer was: %w", ctx.Err(), err)
		case isRefusal(err), code == codes.ResourceExhausted && !config.Wait:
			return 0, fmt.Errorf("reserving an identifier: %w", err)
		case code == codes.DeadlineExceeded:
			failures = 0 // it waited in vain, which is no failure
		}
		c.config.Log.DebugContext(ctx, "no identifier yet", "stream", config.Stream, "error", err)
		pause(ctx, c.config.Backoff.delay(failures))
	}
}

func (c *Client) reserveOnce(ctx context.Context, config ReserveConfig) (uint32, error) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(config.Attempt, DefaultAttempt))
	defer cancel()
	conn, err := c.dial(cmp.Or(config.Attempt, DefaultAttempt), func() {})
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	resp, err := targetpoolv1.NewReservationClient(conn).Reserve(ctx, &targetpoolv1.ReserveRequest{
		Stream: config.Stream, Ips: config.IPs, Context: config.Context, Wait: config.Wait,
	})
	return resp.GetIdentifier(), err
}
