package client

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/nordix/meridio-nsp/api/targetpool/v1"
)

// clerk answers as it is told, one answer after the other, the last one for ever.
type clerk struct {
	pb.UnimplementedReservationServer
	mu      sync.Mutex // a call that timed out may still be there when the next one comes
	answers []func(context.Context) (uint32, error)
	asked   []*pb.ReserveRequest
	// left is how much time each call had.
	left []time.Duration
}

func (c *clerk) Reserve(ctx context.Context, req *pb.ReserveRequest) (*pb.ReserveResponse, error) {
	deadline, _ := ctx.Deadline()
	c.mu.Lock()
	c.asked, c.left = append(c.asked, req), append(c.left, time.Until(deadline))
	answer := c.answers[0]
	if len(c.answers) > 1 {
		c.answers = c.answers[1:]
	}
	c.mu.Unlock()
	id, err := answer(ctx)
	return &pb.ReserveResponse{Identifier: id}, err
}

func give(id uint32) func(context.Context) (uint32, error) {
	return func(context.Context) (uint32, error) { return id, nil }
}

func fail(code codes.Code) func(context.Context) (uint32, error) {
	return func(context.Context) (uint32, error) { return 0, status.Error(code, "no") }
}

func sleep(ctx context.Context) (uint32, error) {
	<-ctx.Done()
	return 0, ctx.Err()
}

func (c *clerk) client(t *testing.T) *Client {
	l := loopback(t, "127.0.0.1:0")
	s := grpc.NewServer()
	pb.RegisterReservationServer(s, c)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		assert.NoError(t, <-done)
	})
	client, err := New(testConfig(l.Addr().String()))
	require.NoError(t, err)
	return client
}

func TestReserve(t *testing.T) {
	for name, tc := range map[string]struct {
		answers []func(context.Context) (uint32, error)
		wait    bool
		calls   int
		code    codes.Code
	}{
		"at once":                {[]func(context.Context) (uint32, error){give(7)}, false, 1, codes.OK},
		"after an outage":        {[]func(context.Context) (uint32, error){fail(codes.Unavailable), fail(codes.Unavailable), give(7)}, false, 3, codes.OK},
		"none":                   {[]func(context.Context) (uint32, error){fail(codes.ResourceExhausted)}, false, 1, codes.ResourceExhausted},
		"none, but he waits":     {[]func(context.Context) (uint32, error){fail(codes.ResourceExhausted), give(7)}, true, 2, codes.OK},
		"refused":                {[]func(context.Context) (uint32, error){fail(codes.PermissionDenied)}, true, 1, codes.PermissionDenied},
		"after waiting in vain":  {[]func(context.Context) (uint32, error){sleep, sleep, give(7)}, true, 3, codes.OK}, // P14
		"unregistered meanwhile": {[]func(context.Context) (uint32, error){fail(codes.Aborted), give(7)}, true, 2, codes.OK},
	} {
		t.Run(name, func(t *testing.T) {
			c := &clerk{answers: tc.answers}
			id, err := c.client(t).Reserve(t.Context(), ReserveConfig{
				Stream: &pb.Stream{Name: "x"}, IPs: []string{"10.0.0.1"}, Wait: tc.wait, Attempt: 200 * time.Millisecond,
			})
			require.Equal(t, tc.code, status.Code(err))
			c.mu.Lock()
			defer c.mu.Unlock()
			require.Len(t, c.asked, tc.calls)
			if tc.code == codes.OK {
				require.EqualValues(t, 7, id)
			}
			for i, req := range c.asked {
				require.Equal(t, tc.wait, req.GetWait())
				require.Positive(t, c.left[i], "each attempt has its own time")
			}
		})
	}
}

func TestReserveEndsWithItsContext(t *testing.T) {
	c := &clerk{answers: []func(context.Context) (uint32, error){fail(codes.Unavailable)}}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := c.client(t).Reserve(ctx, ReserveConfig{Wait: true})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "the last answer")
}
