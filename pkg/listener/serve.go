// Package listener opens what the programs listen on beside their main port, and serves there until a context ends.
package listener

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"google.golang.org/grpc"
)

// GreetWithin is how long a connection may say nothing: the end of a gRPC server, which is given it as grpc.ConnectionTimeout, waits for
// those that have not greeted.
const GreetWithin = 5 * time.Second

// ServeGRPC serves until ctx ends, and then cuts what is open; that is no error.
func ServeGRPC(ctx context.Context, s *grpc.Server, l net.Listener) error {
	stop := context.AfterFunc(ctx, s.Stop)
	defer stop()
	if err := s.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serving %s: %w", l.Addr(), err)
	}
	return nil
}

// ServeHTTP serves until ctx ends, and then cuts what is open; that is no error.
func ServeHTTP(ctx context.Context, h http.Handler, l net.Listener) error {
	s := &http.Server{Handler: h, ReadHeaderTimeout: GreetWithin}
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving %s: %w", l.Addr(), err)
	}
	return nil
}
