package conformance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
)

// Target is a server under test that can be killed.
type Target interface {
	// Dial makes a connection, which needs not be open yet.
	Dial() (*grpc.ClientConn, error)
	// Kill ends the process without warning.
	Kill()
	// Start starts it again on the same data and at the same place, and returns when it is ready.
	Start(ctx context.Context) error
}

// Wiper is a target that can forget its data while it is killed.
type Wiper interface{ Wipe() }

// OneTrench is a target that takes registrations of one trench only, and refuses those of others.
type OneTrench interface{ OneTrench() string }

// Replay plays a recorded scenario against a server. The recorded clients' requests go out in their order, each after what came before it
// in the recording has happened: a write has been answered, and every open watch has got to the state that it led to.
type Replay struct {
	Target     Target
	Transcript *Transcript
	// Until lets time pass up to an instant of the scenario; nil: none passes, which does where nothing times out.
	Until func(at time.Duration)
	// Await waits until the condition holds, and tells whether it does.
	Await func(condition func() bool) bool
	// OneTrench is the only one of which the server takes registrations; empty is all.
	OneTrench string
	// Lateness is how late the server may let an entry go.
	Lateness time.Duration

	course  *Course
	clients map[string]*grpc.ClientConn
	answers map[int]*answers
	// order are the writes that are to come, pending those that wait for their turn.
	order   []int
	pending map[int]*Record
	watches map[int]*watching
	begun   atomic.Int64
	readers sync.WaitGroup
	down    bool
	now     time.Duration
}

// watching is a Watch that the replay has open, or had.
type watching struct {
	call   int
	client string
	rpc    string
	filter *nspv1.Target
	first  int
	cancel context.CancelFunc
	begun  *atomic.Int64
	// left is set where the client has ended it, or the process is killed.
	left bool

	mu    sync.Mutex
	heard []Heard
	err   error
}

// Run plays the scenario. The error says where the server's answers differ from what they should be.
func (r *Replay) Run(ctx context.Context) error {
	sc := scenarioOf(r.Transcript.Name)
	r.course = NewCourse(&Model{Departing: true, Timeout: sc.timeout, MaxTargets: sc.maxTargets, OneTrench: r.OneTrench})
	r.clients, r.watches = make(map[string]*grpc.ClientConn), make(map[int]*watching)
	r.answers = make(map[int]*answers)
	r.order, r.pending = r.Transcript.writes(), make(map[int]*Record)
	defer r.readers.Wait()
	defer r.end()
	for i, rec := range r.Transcript.Records {
		if err := r.step(ctx, rec); err != nil {
			return fmt.Errorf("%s, record %d (%s %s %s, call %d): %w",
				r.Transcript.Name, i+1, rec.Client, rec.Short(), rec.Dir, rec.Call, err)
		}
	}
	return r.explain()
}

func (r *Replay) end() {
	r.leaveAll("")
	for _, c := range r.clients {
		_ = c.Close()
	}
}

func (r *Replay) step(ctx context.Context, rec *Record) error {
	if rec.Dir == Response && isConfiguration(rec.RPC) {
		return r.expectConfiguration(rec)
	}
	if rec.Dir == Response || rec.Dir == End && rec.By == "server" {
		return nil
	}
	if err := r.elapse(rec.At()); err != nil {
		return err
	}
	var err error
	switch {
	case rec.Dir == Note:
		err = r.note(ctx, rec)
	case !r.serves(rec.RPC):
	case rec.Dir == Request && (rec.RPC == Watch || isConfiguration(rec.RPC)):
		err = r.watch(ctx, rec)
	case rec.Dir == Request:
		err = r.callInOrder(ctx, rec)
	case rec.Dir == End && r.watches[rec.Call] != nil && rec.By == "client":
		r.watches[rec.Call].leave()
	}
	if err != nil {
		return err
	}
	return r.settle()
}

// serves leaves out the configuration where the target has none.
func (r *Replay) serves(rpc string) bool {
	_, ok := r.Target.(Configured)
	return ok || !isConfiguration(rpc)
}

// expectConfiguration waits for a recorded answer about the configuration. The writes of a ConfigMap lie so far apart that none was skipped.
func (r *Replay) expectConfiguration(rec *Record) error {
	w := r.watches[rec.Call]
	if w == nil || w.left || departs(r.Transcript.Name, rec.Call) {
		return nil
	}
	want, err := renderRecorded(rec)
	if err != nil {
		return err
	}
	if r.Await(func() bool { got, _, _ := w.last(); return got == want }) {
		return nil
	}
	got, _, _ := w.last()
	return fmt.Errorf("the configuration is\n%swhere it should be\n%s", got, want)
}

// elapse lets time pass, and entries with it. What comes after an entry's time comes after the entry has gone, be it a bit later than recorded:
// it may be due to that.
func (r *Replay) elapse(now time.Duration) error {
	r.now = max(r.now, now)
	if r.Until == nil {
		return nil
	}
	for !r.down {
		at, ok := r.course.Latest().NextDeadline()
		if !ok || at > now {
			break
		}
		r.now = max(r.now, at+r.Lateness)
		r.begun.Store(int64(r.course.Now() + 1))
		r.course.Elapse(at)
		r.Until(at + r.Lateness)
		if err := r.settle(); err != nil {
			return fmt.Errorf("after the time of an entry: %w", err)
		}
	}
	r.Until(now)
	return nil
}

func (r *Replay) note(ctx context.Context, rec *Record) error {
	if rec.Note("conn") == "closed" {
		if c := r.clients[rec.Client]; c != nil {
			r.leaveAll(rec.Client) // where the recorded server threw it out, ours did not
			delete(r.clients, rec.Client)
			return c.Close()
		}
	}
	if c, ok := r.Target.(Configured); ok {
		if data := rec.ConfigMap(); data != nil {
			return c.Configure(data)
		}
		if rec.Note("text") == "the ConfigMap is deleted" {
			return c.Configure(nil)
		}
	}
	switch f := fateOf(rec.Note("text")); f {
	case killed:
		r.down = true
		r.leaveAll("")
		r.Target.Kill()
	case started, startedUnread, startedEmpty:
		r.down = false
		if c, ok := r.Target.(Configured); ok && f == startedUnread {
			c.Forget()
		}
		if f == startedEmpty {
			r.Target.(Wiper).Wipe()
			r.course.Do(func(m *Model) codes.Code { m.Clear(); return codes.OK })
		}
		r.course.Do(func(m *Model) codes.Code { m.Renew(r.now); return codes.OK })
		r.begun.Store(int64(r.course.Now()))
		return r.Target.Start(ctx)
	}
	return nil
}

func (r *Replay) client(name string) (*grpc.ClientConn, error) {
	if c := r.clients[name]; c != nil {
		return c, nil
	}
	c, err := r.Target.Dial()
	r.clients[name] = c
	return c, err
}

// callInOrder makes a call, unless another write has to go first: then it is made after that. Where writes overlapped, their answers say in which order
// they took effect, since Meridio's NSP does one at a time.
func (r *Replay) callInOrder(ctx context.Context, rec *Record) error {
	if rec.RPC != Register && rec.RPC != Unregister {
		return r.call(ctx, rec)
	}
	r.pending[rec.Call] = rec
	for len(r.order) > 0 && r.pending[r.order[0]] != nil {
		next := r.pending[r.order[0]]
		r.order = r.order[1:]
		if err := r.call(ctx, next); err != nil {
			return err
		}
	}
	return nil
}

// writes are the calls that write, in the order of their ends.
func (t *Transcript) writes() (calls []int) {
	for _, r := range t.Records {
		if r.Dir == End && (r.RPC == Register || r.RPC == Unregister) {
			calls = append(calls, r.Call)
		}
	}
	return calls
}

// call makes a call and holds its status against the expected one.
func (r *Replay) call(ctx context.Context, rec *Record) error {
	want := r.expect(rec)
	conn, err := r.client(rec.Client)
	if err != nil {
		return err
	}
	body, err := rec.Wire()
	if err != nil {
		return err
	}
	r.begun.Store(int64(r.course.Now()))
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var resp []byte
	err = conn.Invoke(ctx, rec.RPC, body, &resp, grpc.ForceCodecV2(Raw{}), grpc.WaitForReady(true))
	r.answers[rec.Call] = &answers{code: status.Code(err)}
	if got := status.Code(err); got != want {
		return fmt.Errorf("ended with %v, should with %v: %w", got, want, err)
	}
	return nil
}

// expect says how a call has to end: as the model says, or as recorded where there is nothing to model.
func (r *Replay) expect(rec *Record) codes.Code {
	t := rec.Target()
	if _, isRaw := rec.Raw(); !isRaw && t != nil && (rec.RPC == Register || rec.RPC == Unregister) {
		return r.course.Do(func(m *Model) codes.Code {
			if rec.RPC == Register {
				return m.Register(t, r.now)
			}
			return m.Unregister(t)
		})
	}
	return r.Transcript.endOf(rec.Call)
}

// endOf is the code with which the server ended a call.
func (t *Transcript) endOf(call int) codes.Code {
	var c codes.Code
	for _, r := range t.Call(call) {
		if r.Dir == End {
			_ = c.UnmarshalJSON([]byte(`"` + r.Code + `"`))
		}
	}
	return c
}

func (r *Replay) watch(ctx context.Context, rec *Record) error {
	conn, err := r.client(rec.Client)
	if err != nil {
		return err
	}
	body, err := rec.Wire()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, rec.RPC, grpc.ForceCodecV2(Raw{}), grpc.WaitForReady(true))
	if err == nil {
		err = errors.Join(s.SendMsg(body), s.CloseSend())
	}
	if err != nil {
		cancel()
		return err
	}
	if _, isRaw := rec.Raw(); isRaw {
		defer cancel()
		var resp []byte
		err := s.RecvMsg(&resp)
		r.answers[rec.Call] = &answers{code: status.Code(err)}
		if got, want := status.Code(err), r.Transcript.endOf(rec.Call); got != want {
			return fmt.Errorf("ended with %v, should with %v: %w", got, want, err)
		}
		return nil
	}
	w := &watching{call: rec.Call, client: rec.Client, rpc: rec.RPC, filter: rec.Target(), first: r.course.Now(), cancel: cancel, begun: &r.begun}
	r.begun.Store(int64(r.course.Now()))
	r.watches[rec.Call] = w
	r.readers.Go(func() { w.read(s) })
	return nil
}

func (w *watching) leave() {
	w.left = true
	w.cancel()
}

// leaveAll ends the watches of a client, or of all.
func (r *Replay) leaveAll(client string) {
	for _, w := range r.watches {
		if client == "" || w.client == client {
			w.leave()
		}
	}
}

func (w *watching) read(s grpc.ClientStream) {
	for {
		var body []byte
		var list string
		err := s.RecvMsg(&body)
		if err == nil {
			list, err = w.render(body)
		}
		w.mu.Lock()
		if err != nil {
			w.err = err
			w.mu.Unlock()
			return
		}
		w.heard = append(w.heard, Heard{List: list, First: w.first, Last: int(w.begun.Load())})
		w.mu.Unlock()
	}
}

func (w *watching) render(body []byte) (string, error) {
	if isConfiguration(w.rpc) {
		return renderAnswer(w.rpc, body)
	}
	list := &nspv1.TargetResponse{}
	err := proto.Unmarshal(body, list)
	return render(list.GetTargets()), err
}

// last is the latest list, and whether the watch goes on.
func (w *watching) last() (list string, any, open bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.heard) == 0 {
		return "", false, w.err == nil
	}
	return w.heard[len(w.heard)-1].List, true, w.err == nil
}

// settle waits until every open watch has got to the present state. So every list counts, not only the last.
func (r *Replay) settle() error {
	var behind *watching
	settled := r.Await(func() bool {
		for _, w := range r.watches {
			list, some, open := w.last()
			if w.left {
				continue
			}
			if !open || !isConfiguration(w.rpc) && (!some || list != r.course.List(w.filter, r.course.Now())) {
				behind = w
				return false
			}
		}
		return true
	})
	if settled {
		return nil
	}
	list, some, open := behind.last()
	return fmt.Errorf("the watch of call %d has (any: %v, open: %v)\n%swhere it should have\n%s",
		behind.call, some, open, list, r.course.List(behind.filter, r.course.Now()))
}

// explain checks that no watch was told anything that was not so at the time, or the same twice.
func (r *Replay) explain() error {
	for _, w := range r.watches {
		w.mu.Lock()
		heard := w.heard
		w.mu.Unlock()
		r.answers[w.call] = &answers{}
		for _, h := range heard {
			r.answers[w.call].lists = append(r.answers[w.call].lists, h.List)
		}
		if !isConfiguration(w.rpc) {
			if _, err := r.course.Explain(w.filter, heard); err != nil {
				return fmt.Errorf("the watch of call %d: %w", w.call, err)
			}
		}
		for i := 1; i < len(heard); i++ {
			if heard[i].List == heard[i-1].List {
				return fmt.Errorf("the watch of call %d was told the same twice:\n%s", w.call, heard[i].List)
			}
		}
	}
	return nil
}

// Raw is a codec that leaves bytes as they are, so that odd ones can be sent.
type Raw struct{}

var _ encoding.CodecV2 = Raw{}

// Name implements encoding.CodecV2.
func (Raw) Name() string { return "proto" }

// Marshal implements encoding.CodecV2.
func (Raw) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

// Unmarshal implements encoding.CodecV2.
func (Raw) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}
