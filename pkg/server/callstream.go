package server

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// callStream carries the caller to the handler and counts what is sent.
type callStream struct {
	grpc.ServerStream
	ctx      context.Context
	method   string
	observer Observer
	// stopping is that of the server; asked is set once the caller has said what it wants.
	stopping <-chan struct{}
	asked    bool
	// sending is when the send that goes on began, in nanoseconds since 1970, 0 where none does.
	sending atomic.Int64
}

// askWithin is how long a caller may take to say what it wants to watch.
const askWithin = 10 * time.Second

// Context implements grpc.ServerStream.
func (c *callStream) Context() context.Context { return c.ctx }

// SendMsg implements grpc.ServerStream.
func (c *callStream) SendMsg(m any) error {
	switch m := m.(type) {
	case frame:
		c.observer.Sent(c.method, m.size())
	case proto.Message:
		c.observer.Sent(c.method, proto.Size(m))
	}
	c.sending.Store(time.Now().UnixNano())
	defer c.sending.Store(0)
	return c.ServerStream.SendMsg(m)
}

// RecvMsg implements grpc.ServerStream. Nobody watches over a stream before it is known what for, so that is not waited for without
// an end: a caller that says nothing would keep its place for good, outlive its token, and hold up the end of the server.
func (c *callStream) RecvMsg(m any) error {
	if c.asked {
		return c.ServerStream.RecvMsg(m)
	}
	c.asked = true
	timeout := time.NewTimer(askWithin)
	defer timeout.Stop()
	read := make(chan error, 1)
	go func() { read <- c.ServerStream.RecvMsg(m) }() // it ends with the call
	select {
	case err := <-read:
		return err
	case <-c.ctx.Done():
		if c.ServerStream.Context().Err() != nil { // the call is over: what was read says why
			return <-read
		}
		return context.Cause(c.ctx)
	case <-c.stopping:
		return errStopping
	case <-timeout.C:
		return status.Errorf(codes.DeadlineExceeded, "nothing was asked for within %s", askWithin)
	}
}
