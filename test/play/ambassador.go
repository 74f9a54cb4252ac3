package play

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	ambassadorv1 "github.com/nordix/meridio-nsp/api/ambassador/v1"
)

// AmbassadorConfig says whose socket an Ambassador is.
type AmbassadorConfig struct {
	// Socket is the path of the unix socket.
	Socket string
	// Dial connects to the NSP of a trench.
	Dial func(trench string) (*grpc.ClientConn, error)
	// Addresses are those of the secondary network, as CIDRs.
	Addresses []string
	// Refresh is how often it refreshes; default 60 s.
	Refresh time.Duration
	// Draw picks one of the free identifiers; nil at random.
	Draw func(stream string, free []uint32) uint32
	// OnStatus, if set, is told of each status that a stream has in the list, and of "removed". It must not call back.
	OnStatus func(stream, status string)
	// OnCall, if set, is told of each stream that it is asked to open or to close. It must not call back.
	OnCall func(open bool, stream string)
	// Hold, if set, has a call hang that is about to open or to close a stream, until what it returns is closed or the TAPA is
	// killed; nil lets it go on.
	Hold func(open bool, stream string) <-chan struct{}
}

// Ambassador is a TAPA of Meridio 1.x with the socket that its application uses. It opens in the background, closes in the background
// when whoever asked has been answered, and has one trench at a time.
type Ambassador struct {
	ambassadorv1.UnimplementedTapServer
	cfg AmbassadorConfig

	server  *grpc.Server
	running sync.WaitGroup
	ctx     context.Context
	kill    context.CancelFunc

	// tap is held by Open and by what Close has set going, as in Meridio.
	tap      sync.Mutex
	trench   string
	conn     *grpc.ClientConn
	conduits map[string]*conduit

	mu      sync.Mutex
	list    []*ambassadorv1.StreamStatus
	left    map[string]bool // closed streams, as conduit/stream
	changed chan struct{}
}

// conduit is one that is connected.
type conduit struct {
	tapa    *LegacyTAPA
	stop    context.CancelFunc
	streams map[string]bool
}

// NewAmbassador makes a TAPA that Start starts.
func NewAmbassador(cfg AmbassadorConfig) *Ambassador { return &Ambassador{cfg: cfg} }

// Start starts it without any memory of what was before. It removes what stands where its socket is to be, as Meridio does.
func (a *Ambassador) Start() error {
	if err := os.RemoveAll(a.cfg.Socket); err != nil {
		return fmt.Errorf("removing the socket: %w", err)
	}
	l, err := net.Listen("unix", a.cfg.Socket) //nolint:noctx // returns at once
	if err != nil {
		return fmt.Errorf("listening: %w", err)
	}
	a.forget()
	a.server = grpc.NewServer(grpc.WaitForHandlers(true))
	ambassadorv1.RegisterTapServer(a.server, a)
	a.running.Go(func() { _ = a.server.Serve(l) })
	return nil
}

// forget makes it one that has just begun.
func (a *Ambassador) forget() {
	a.trench, a.conn, a.conduits, a.list, a.changed = "", nil, make(map[string]*conduit), nil, make(chan struct{})
	a.left = make(map[string]bool)
	a.ctx, a.kill = context.WithCancel(context.Background())
}

// Kill ends it without a word to anybody.
func (a *Ambassador) Kill() {
	a.kill()
	a.server.Stop()
	a.tap.Lock()
	if a.conn != nil {
		_ = a.conn.Close()
	}
	a.tap.Unlock()
	a.running.Wait()
}

// Open implements ambassadorv1.TapServer.
func (a *Ambassador) Open(_ context.Context, s *ambassadorv1.Stream) (*emptypb.Empty, error) {
	if err := a.called(true, s); err != nil {
		return nil, err
	}
	a.tap.Lock()
	defer a.tap.Unlock()
	trench, name := s.GetConduit().GetTrench().GetName(), s.GetConduit().GetName()
	if a.trench != "" && a.trench != trench {
		return nil, errors.New("open failed to set trench: another trench is already connected")
	}
	if a.conn == nil {
		conn, err := a.cfg.Dial(trench)
		if err != nil {
			return nil, err
		}
		a.conn = conn
	}
	a.trench = trench
	c := a.conduits[name]
	if c == nil {
		c = a.connect(trench, name)
	}
	if !c.streams[s.GetName()] {
		c.streams[s.GetName()] = true
		a.add(s, c.tapa)
		c.tapa.Open(s.GetName())
	}
	return &emptypb.Empty{}, nil
}

func (a *Ambassador) connect(trench, name string) *conduit {
	parent := &ambassadorv1.Conduit{Name: name, Trench: &ambassadorv1.Trench{Name: trench}}
	c := &conduit{streams: make(map[string]bool)}
	c.tapa = NewLegacyTAPA(LegacyTAPAConfig{
		Conn: a.conn, Trench: trench, Conduit: name, Addresses: a.cfg.Addresses, Refresh: a.cfg.Refresh, Draw: a.cfg.Draw,
		OnEvent: func(e TAPAEvent) { a.hear(&ambassadorv1.Stream{Name: e.Stream, Conduit: parent}, e.What) },
	})
	ctx, stop := context.WithCancel(a.ctx)
	c.stop = stop
	a.running.Go(func() { _ = c.tapa.Run(ctx) })
	a.conduits[name] = c
	return c
}

// hear takes in what became of a stream.
func (a *Ambassador) hear(s *ambassadorv1.Stream, what string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	defer a.wake()
	l := a.status(s)
	switch {
	case what == Closed:
		a.left[leftName(s)] = true
	case l == nil:
	case what == Opened:
		a.become(l, ambassadorv1.StreamStatus_OPEN)
	case what == Undefined:
		a.become(l, ambassadorv1.StreamStatus_UNDEFINED)
	default: // it failed
		a.become(l, ambassadorv1.StreamStatus_UNAVAILABLE)
	}
}

func leftName(s *ambassadorv1.Stream) string { return s.GetConduit().GetName() + "/" + s.GetName() }

// Close implements ambassadorv1.TapServer.
func (a *Ambassador) Close(_ context.Context, s *ambassadorv1.Stream) (*emptypb.Empty, error) {
	if err := a.called(false, s); err != nil {
		return nil, err
	}
	a.running.Go(func() { a.close(s) })
	return &emptypb.Empty{}, nil
}

// called holds a call; the error is that the TAPA was killed meanwhile.
func (a *Ambassador) called(open bool, s *ambassadorv1.Stream) error {
	if a.cfg.OnCall != nil {
		a.cfg.OnCall(open, s.GetName())
	}
	if a.cfg.Hold == nil {
		return nil
	}
	held := a.cfg.Hold(open, s.GetName())
	if held == nil {
		return nil
	}
	select {
	case <-held:
		return nil
	case <-a.ctx.Done():
		return a.ctx.Err()
	}
}

func (a *Ambassador) close(s *ambassadorv1.Stream) {
	a.tap.Lock()
	defer a.tap.Unlock()
	c := a.conduits[s.GetConduit().GetName()]
	if a.trench != s.GetConduit().GetTrench().GetName() || c == nil || !c.streams[s.GetName()] {
		return
	}
	a.mu.Lock()
	delete(a.left, leftName(s))
	undefined := a.status(s).GetStatus() == ambassadorv1.StreamStatus_UNDEFINED
	a.mu.Unlock()
	c.tapa.Close(s.GetName())
	if !undefined {
		a.waitGone(s)
	}
	a.remove(s)
	delete(c.streams, s.GetName())
	if len(c.streams) > 0 {
		return
	}
	c.stop()
	delete(a.conduits, s.GetConduit().GetName())
	if len(a.conduits) == 0 {
		_ = a.conn.Close()
		a.trench, a.conn = "", nil
	}
}

// waitGone waits until a stream is unregistered, for as long as Meridio does.
func (a *Ambassador) waitGone(s *ambassadorv1.Stream) {
	limit := time.After(budget)
	for {
		a.mu.Lock()
		left, changed := a.left[leftName(s)], a.changed
		a.mu.Unlock()
		if left {
			return
		}
		select {
		case <-changed:
		case <-limit:
			return
		case <-a.ctx.Done():
			return
		}
	}
}

// Watch implements ambassadorv1.TapServer.
func (a *Ambassador) Watch(filter *ambassadorv1.Stream, w grpc.ServerStreamingServer[ambassadorv1.StreamResponse]) error {
	for {
		a.mu.Lock()
		r, changed := &ambassadorv1.StreamResponse{}, a.changed
		for _, s := range a.list {
			if (filter.GetName() == "" || filter.GetName() == s.GetStream().GetName()) &&
				(filter.GetConduit() == nil || proto.Equal(filter.GetConduit(), s.GetStream().GetConduit())) {
				r.StreamStatus = append(r.StreamStatus, proto.CloneOf(s))
			}
		}
		a.mu.Unlock()
		if err := w.Send(r); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-w.Context().Done():
			return nil
		}
	}
}

// status is that of a listed stream; the lock is held.
func (a *Ambassador) status(s *ambassadorv1.Stream) *ambassadorv1.StreamStatus {
	for _, l := range a.list {
		if proto.Equal(l.GetStream(), s) {
			return l
		}
	}
	return nil
}

// add lists a stream: UNAVAILABLE while its conduit is not connected, and else by whether it is configured.
func (a *Ambassador) add(s *ambassadorv1.Stream, t *LegacyTAPA) {
	status := ambassadorv1.StreamStatus_UNAVAILABLE
	if configured, known := t.configures(s.GetName()); configured {
		status = ambassadorv1.StreamStatus_PENDING
	} else if known {
		status = ambassadorv1.StreamStatus_UNDEFINED
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	l := &ambassadorv1.StreamStatus{Stream: s}
	a.list = append(a.list, l)
	a.become(l, status)
	a.wake()
}

func (a *Ambassador) become(l *ambassadorv1.StreamStatus, status ambassadorv1.StreamStatus_Status) {
	l.Status = status
	if a.cfg.OnStatus != nil {
		a.cfg.OnStatus(l.GetStream().GetName(), status.String())
	}
}

func (a *Ambassador) remove(s *ambassadorv1.Stream) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, l := range a.list {
		if proto.Equal(l.GetStream(), s) {
			a.list = append(a.list[:i:i], a.list[i+1:]...)
			if a.cfg.OnStatus != nil {
				a.cfg.OnStatus(s.GetName(), "removed")
			}
			a.wake()
			return
		}
	}
}

func (a *Ambassador) wake() {
	close(a.changed)
	a.changed = make(chan struct{})
}

// Statuses are the streams that it lists, by their names.
func (a *Ambassador) Statuses() map[string]string {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make(map[string]string)
	for _, l := range a.list {
		out[l.GetStream().GetName()] = l.GetStatus().String()
	}
	return out
}
