package server

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/tap"
)

// arrivals are those who have begun and not said yet what they want: connections that have not greeted, and calls whose one
// message is on its way. gRPC waits for both when it stops, for as long as they like. The zero value has none.
type arrivals struct {
	mu sync.Mutex
	// end is called for those that are there when the server stops.
	end map[any]func()
	// stopped is set from then on.
	stopped bool
}

// begin has end called when the server stops, or at once where it has. key must be given to done.
func (a *arrivals) begin(key any, end func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stopped {
		end()
		return
	}
	if a.end == nil {
		a.end = make(map[any]func())
	}
	a.end[key] = end
}

func (a *arrivals) done(key any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.end, key)
}

func (a *arrivals) stop() {
	a.mu.Lock()
	all := a.end
	a.end, a.stopped = nil, true
	a.mu.Unlock()
	for _, end := range all {
		end()
	}
}

// arrival is a call whose message is on its way.
type arrival struct {
	server *Server
	// timer ends the call, and forget is called when it ends before its message is there.
	timer  *time.Timer
	forget func() bool
}

type arrivalKey struct{}

// begun is told of each call when its headers are there, and ends one whose message is not there after askWithin. Of streams,
// callStream sees to the same.
func (s *Server) begun(ctx context.Context, info *tap.Info) (context.Context, error) {
	if !s.unaries[info.FullMethodName] {
		return ctx, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	a := &arrival{server: s, timer: time.AfterFunc(askWithin, cancel)}
	s.arrivals.begin(a, cancel)
	a.forget = context.AfterFunc(ctx, a.end)
	return context.WithValue(ctx, arrivalKey{}, a), nil
}

func (a *arrival) end() {
	a.timer.Stop()
	a.server.arrivals.done(a)
}

// arrived is told when the message of a call is there.
func arrived(ctx context.Context) {
	if a, ok := ctx.Value(arrivalKey{}).(*arrival); ok && a.forget() {
		a.end()
	}
}
