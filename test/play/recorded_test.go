package play

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/nordix/meridio-nsp/test/conformance"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The scripted clients count as Meridio's own because they say the same to the same answers: each recorded client is replaced by ours, its NSP
// answers as recorded and as fast, and every call has to be the recorded one.
func TestScriptedTAPASaysWhatTheRealOneSays(t *testing.T) {
	all, err := conformance.Transcripts()
	require.NoError(t, err)
	for _, c := range []struct {
		scenario string
		clients  []string
		refresh  time.Duration
	}{
		{scenario: "open-one", clients: []string{"tapa-1"}},
		{scenario: "open-two-streams", clients: []string{"tapa-1"}},
		{scenario: "refresh", clients: []string{"tapa-1"}, refresh: 2 * time.Second},
		{scenario: "close", clients: []string{"tapa-1"}},
		{scenario: "collision-race", clients: []string{"tapa-1", "tapa-2"}},
		{scenario: "collision-livelock", clients: []string{"tapa-1", "tapa-2"}},
		{scenario: "max-targets-full", clients: []string{"tapa-1", "tapa-2", "tapa-3"}},
		{scenario: "evicted-reopen", clients: []string{"tapa-1"}, refresh: 2500 * time.Millisecond},
		{scenario: "ip-change", clients: []string{"tapa-1"}},
		{scenario: "ip-order", clients: []string{"tapa-1"}, refresh: 1500 * time.Millisecond},
		{scenario: "tapa-restart", clients: []string{"tapa-1", "tapa-2"}},
		{scenario: "lb-watch", clients: []string{"tapa-1", "tapa-2"}},
		{scenario: "config-watch", clients: []string{"tapa-1"}},
	} {
		for _, client := range c.clients {
			t.Run(c.scenario+"/"+client, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { playTAPA(t, all[c.scenario], client, c.refresh) })
			})
		}
	}
}

func TestScriptedLoadBalancerSaysWhatTheRealOneSays(t *testing.T) {
	all, err := conformance.Transcripts()
	require.NoError(t, err)
	for _, scenario := range []string{"lb-watch", "ip-change", "evicted-reopen", "tapa-restart", "frontend-evicted", "dual-stack"} {
		t.Run(scenario, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { playLoadBalancer(t, all[scenario]) })
		})
	}
}

// playTAPA does to a TAPA what was done to the recorded one.
func playTAPA(t *testing.T, tr *conformance.Transcript, client string, refresh time.Duration) {
	nsp := startRecordedNSP(t, tr, client)
	var tapa *LegacyTAPA
	stop := func() {}
	for _, r := range tr.Records {
		text := r.Note("text")
		if r.Client != client && !strings.Contains(text, " of "+client) {
			continue
		}
		nsp.until(r.At())
		switch what, stream, addresses := operation(text); what {
		case "open":
			if tapa == nil {
				tapa = NewLegacyTAPA(LegacyTAPAConfig{
					Conn: nsp.dial(), Trench: "trench-a", Conduit: "conduit-a", Addresses: addresses, Refresh: refresh, Draw: nsp.draw,
				})
				stop = inBackground(tapa.Run)
			}
			tapa.Open(stream)
		case "close":
			tapa.Close(stream)
		case "move":
			tapa.SetAddresses(addresses)
		}
	}
	nsp.finish(stop)
}

var (
	opens = regexp.MustCompile(`^TAP API Open\((.*)\), addresses \[(.*)\]$`)
	shuts = regexp.MustCompile(`^TAP API Close\((.*)\)$`)
	moves = regexp.MustCompile(`gets the address (\S+) instead`)
	turns = regexp.MustCompile(`^NSM reports the same two addresses`)
)

// operation reads a note.
func operation(text string) (what, stream string, addresses []string) {
	if m := opens.FindStringSubmatch(text); m != nil {
		return "open", m[1], strings.Fields(m[2])
	}
	if m := shuts.FindStringSubmatch(text); m != nil {
		return "close", m[1], nil
	}
	if m := moves.FindStringSubmatch(text); m != nil {
		return "move", "", []string{m[1]}
	}
	if turns.MatchString(text) {
		return "move", "", []string{"fd00:0:0:1::11/64", "172.16.1.1/24"}
	}
	return "", "", nil
}

func playLoadBalancer(t *testing.T, tr *conformance.Transcript) {
	nsp := startRecordedNSP(t, tr, "lb-1")
	stop := func() {}
	for _, r := range tr.Records {
		if r.Client != "lb-1" {
			continue
		}
		if r.Note("conn") == "open" {
			nsp.until(r.At())
			stop = inBackground(NewFullLegacyLB(nsp.dial(), "trench-a", "conduit-a", "lb-fe-1").Run)
		}
	}
	nsp.until(tr.Records[len(tr.Records)-1].At())
	nsp.finish(stop)
}

func inBackground(run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = run(ctx) // it returns nil when ctx ends
	}()
	return func() { cancel(); <-ended }
}

// recordedNSP answers one client as recorded, and holds its calls against the recorded ones.
type recordedNSP struct {
	*testing.T
	start    time.Time
	listener *bufconn.Listener
	conns    []*grpc.ClientConn
	stop     func()

	mu sync.Mutex
	// calls are those that were recorded and have not been made, by method and stream.
	calls map[string][][]*conformance.Record
	// said and recorded are the requests and ends of calls, by method and stream.
	said, recorded map[string][]string
	// drawn are the identifiers that the recorded client drew, by stream.
	drawn  map[string][]uint32
	wrong  []string
	closed bool
}

func startRecordedNSP(t *testing.T, tr *conformance.Transcript, client string) *recordedNSP {
	n := &recordedNSP{
		T: t, start: time.Now(), listener: bufconn.Listen(1 << 16), calls: map[string][][]*conformance.Record{},
		said: map[string][]string{}, recorded: map[string][]string{}, drawn: map[string][]uint32{},
	}
	n.read(tr, client)
	s := grpc.NewServer(grpc.ForceServerCodecV2(conformance.Raw{}), grpc.UnknownServiceHandler(n.serve))
	served := make(chan struct{})
	go func() { defer close(served); _ = s.Serve(n.listener) }()
	n.stop = func() { s.Stop(); <-served }
	return n
}

// read sorts the client's calls.
func (n *recordedNSP) read(tr *conformance.Transcript, client string) {
	order, has := make(map[int]string), make(map[string]uint32)
	for _, r := range tr.Records {
		if r.Client != client || r.Call == 0 {
			continue
		}
		if r.Dir == conformance.Request {
			m := decode(n.T, r)
			k := keyOf(r.RPC, m)
			order[r.Call] = k
			n.calls[k] = append(n.calls[k], tr.Call(r.Call))
			n.recorded[sayingKey(k)] = append(n.recorded[sayingKey(k)], saying(r.RPC, m))
			n.noteDrawn(r, has)
		}
		if r.Dir == conformance.End && r.By == "client" {
			k := sayingKey(order[r.Call])
			n.recorded[k] = append(n.recorded[k], r.Short()+" ends")
		}
	}
}

// noteDrawn reads off an identifier that was drawn: that of a DISABLED registration, unless the client had it already.
func (n *recordedNSP) noteDrawn(r *conformance.Record, has map[string]uint32) {
	t := r.Target()
	if t == nil || r.RPC != conformance.Register && r.RPC != conformance.Unregister {
		return
	}
	s := t.GetStream().GetName()
	var id uint32
	_, err := fmt.Sscan(t.GetContext()["identifier"], &id)
	require.NoError(n, err)
	switch {
	case r.RPC == conformance.Unregister:
		delete(has, s)
	case has[s] != id:
		n.drawn[s] = append(n.drawn[s], id)
		has[s] = id
	}
}

// draw is what the recorded client drew.
func (n *recordedNSP) draw(stream string, free []uint32) uint32 {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.drawn[stream]) == 0 || !slices.Contains(free, n.drawn[stream][0]) {
		n.wrong = append(n.wrong, fmt.Sprintf("an identifier is drawn from %v, recorded is %v", free, n.drawn[stream]))
		return free[0]
	}
	id := n.drawn[stream][0]
	n.drawn[stream] = n.drawn[stream][1:]
	return id
}

func decode(t *testing.T, r *conformance.Record) proto.Message {
	m, err := r.Message()
	require.NoError(t, err)
	return m
}

// keyOf is method and stream.
func keyOf(rpc string, m proto.Message) string {
	return rpc + " " + conformance.StreamOf(m)
}

// sayingKey joins what belongs to one sequence: all of the registry that concerns a stream.
func sayingKey(key string) string {
	rpc, stream, _ := strings.Cut(key, " ")
	if strings.Contains(rpc, "TargetRegistry") {
		return "registry " + stream
	}
	return key
}

func saying(rpc string, m proto.Message) string {
	b, err := protojson.Marshal(m)
	if err != nil {
		return err.Error()
	}
	// protojson varies its blanks on purpose.
	return rpc + " " + strings.ReplaceAll(string(b), " ", "")
}

// serve answers a call as the next recorded one of its method and stream.
func (n *recordedNSP) serve(_ any, ss grpc.ServerStream) error {
	rpc, _ := grpc.MethodFromServerStream(ss)
	var body []byte
	if err := ss.RecvMsg(&body); err != nil {
		return err
	}
	m, err := conformance.DecodeRequest(rpc, body)
	if err != nil {
		return err
	}
	key := keyOf(rpc, m)
	call := n.next(key, saying(rpc, m))
	if call == nil {
		return status.Error(codes.FailedPrecondition, "no such call was recorded")
	}
	began := time.Now()
	for _, r := range call[1:] {
		if r.Dir == conformance.End && r.By == "client" {
			break
		}
		select {
		case <-time.After(time.Until(began.Add(r.At() - call[0].At()))):
		case <-ss.Context().Done():
			n.says(sayingKey(key), call[0].Short()+" ends")
			return nil
		}
		if r.Dir == conformance.End {
			return nil
		}
		wire, err := r.Wire()
		if err != nil {
			return err
		}
		if err := ss.SendMsg(wire); err != nil {
			return err
		}
	}
	<-ss.Context().Done()
	n.says(sayingKey(key), call[0].Short()+" ends")
	return nil
}

func (n *recordedNSP) next(key, said string) []*conformance.Record {
	n.says(sayingKey(key), said)
	n.mu.Lock()
	defer n.mu.Unlock()
	calls := n.calls[key]
	if len(calls) == 0 {
		return nil
	}
	n.calls[key] = calls[1:]
	return calls[0]
}

func (n *recordedNSP) says(key, what string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.closed {
		n.said[key] = append(n.said[key], what)
	}
}

func (n *recordedNSP) dial() *grpc.ClientConn {
	c, err := grpc.NewClient("passthrough:///nsp", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return n.listener.DialContext(ctx) }))
	require.NoError(n, err)
	n.conns = append(n.conns, c)
	return c
}

// until waits for an instant of the scenario.
func (n *recordedNSP) until(at time.Duration) { time.Sleep(time.Until(n.start.Add(at))) }

// finish ends everything and holds what was said against what was recorded.
func (n *recordedNSP) finish(stop func()) {
	const calls = 100 * time.Millisecond // those that take a bit longer than recorded
	time.Sleep(calls)
	synctest.Wait()
	n.mu.Lock()
	n.closed = true
	n.mu.Unlock()
	stop()
	for _, c := range n.conns {
		_ = c.Close()
	}
	n.stop()
	require.Empty(n, n.wrong)
	for _, key := range keys(n.recorded, n.said) {
		require.Equal(n, strings.Join(n.recorded[key], "\n"), strings.Join(n.said[key], "\n"), key)
	}
}

func keys(ms ...map[string][]string) (out []string) {
	for _, m := range ms {
		for k := range m {
			out = append(out, k)
		}
	}
	slices.SortFunc(out, cmp.Compare[string])
	return slices.Compact(out)
}
