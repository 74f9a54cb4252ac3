package server

import (
	"context"
	"log/slog"
	"time"

	"google.golang.org/grpc/codes"
)

// watcher is one call's view of something that changes.
type watcher interface {
	// next sends what there is to send and returns a channel that is closed when there may be more.
	next() (sent bool, more <-chan struct{}, err error)
	// heartbeat is called when nothing was sent for a while.
	heartbeat() error
}

// watch drives one watch until its caller leaves or the server stops. The goroutine of the call does the sending: a receiver
// that does not read blocks itself alone.
func (s *Server) watch(ctx context.Context, w watcher) error {
	beat := time.NewTimer(s.untilBeat())
	defer beat.Stop()
	for {
		sent, more, err := w.next()
		if err != nil {
			return err
		}
		if sent {
			beat.Reset(s.untilBeat())
		}
		select {
		case <-more:
		case <-beat.C:
			beat.Reset(s.untilBeat())
			err = w.heartbeat()
		case <-ctx.Done():
			return ctx.Err()
		case <-s.stopping:
			return errStopping
		}
		if err != nil {
			return err
		}
	}
}

// beatGrid is the clock of heartbeats: those that are due within so long are sent together. With ten thousand watches there is
// one every half millisecond, and to be woken for each would cost more than to send it.
const beatGrid = 20 * time.Millisecond

// untilBeat is how long it is to the tick at which the next heartbeat is due. It is no longer than the period.
func (s *Server) untilBeat() time.Duration {
	period := s.cfg.Heartbeat
	return max(period-time.Since(s.began)%beatGrid, period/2)
}

// levelOf is how loud a failed call is.
func levelOf(c codes.Code) slog.Level {
	switch c {
	case codes.Canceled, codes.DeadlineExceeded:
		return slog.LevelDebug
	case codes.Internal, codes.Unknown, codes.DataLoss:
		return slog.LevelError
	case codes.Unavailable:
		return slog.LevelInfo
	default:
		return slog.LevelWarn
	}
}
