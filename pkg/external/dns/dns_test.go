package dns

import (
	"context"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nordix/meridio-nsp/pkg/external"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is a real DNS server on loopback, over UDP and TCP.
type server struct {
	address string

	mu    sync.Mutex
	zone  []dns.RR
	rcode map[string]int // by name
	asked map[string]int // by network
	mute  map[string]bool
	edit  func(*dns.Msg)
}

func newServer(t *testing.T, records ...string) *server {
	t.Helper()
	s := &server{rcode: map[string]int{}, asked: map[string]int{}, mute: map[string]bool{}}
	s.set(t, records...)
	var packets net.PacketConn
	var listener net.Listener
	for packets == nil { // a port that is free for both
		var err error
		listener, err = net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		if packets, err = net.ListenPacket("udp", listener.Addr().String()); err != nil {
			packets = nil
			listener.Close()
		}
	}
	s.address = listener.Addr().String()
	for _, d := range []*dns.Server{{PacketConn: packets}, {Listener: listener}} {
		started := make(chan struct{})
		d.NotifyStartedFunc = func() { close(started) }
		d.Handler = s
		ended := make(chan error, 1)
		go func() { ended <- d.ActivateAndServe() }()
		<-started
		t.Cleanup(func() { require.NoError(t, d.Shutdown()); require.NoError(t, <-ended) })
	}
	return s
}

func (s *server) set(t *testing.T, records ...string) {
	t.Helper()
	var zone []dns.RR
	for _, record := range records {
		rr, err := dns.NewRR(record)
		require.NoError(t, err)
		zone = append(zone, rr)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.zone = zone
}

func (s *server) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// ServeDNS answers as a recursive resolver does: with the whole chain.
func (s *server) ServeDNS(w dns.ResponseWriter, question *dns.Msg) {
	s.mu.Lock()
	defer s.mu.Unlock()
	network := w.RemoteAddr().Network()
	s.asked[network]++
	if s.mute[network] {
		return
	}
	q := question.Question[0]
	answer := new(dns.Msg).SetReply(question)
	answer.Compress = true
	name := strings.ToLower(q.Name)
	for range 2 * maxHops {
		target := ""
		for _, rr := range s.zone {
			if strings.ToLower(rr.Header().Name) != name {
				continue
			}
			if c, ok := rr.(*dns.CNAME); ok {
				answer.Answer = append(answer.Answer, rr)
				target = strings.ToLower(c.Target)
			} else if rr.Header().Rrtype == q.Qtype {
				answer.Answer = append(answer.Answer, rr)
			}
		}
		if target == "" {
			break
		}
		name = target
	}
	answer.Rcode = s.rcode[name]
	if network == "udp" {
		answer.Truncate(udpSize)
	}
	if s.edit != nil {
		s.edit(answer)
	}
	_ = w.WriteMsg(answer)
}

func (s *server) config(name string) Config {
	return Config{Name: name, Families: []Family{IPv4, IPv6}, Resolvers: []string{s.address}, MinTTL: 10 * time.Millisecond,
		MaxTTL: 20 * time.Millisecond, Timeout: 5 * time.Second}
}

// resolved is what one resolution gives.
func resolved(t *testing.T, cfg Config) (addrs []string, ttl time.Duration, err error) {
	t.Helper()
	a, err := New(cfg).(*source).resolve(t.Context())
	slices.SortFunc(a.addrs, netip.Addr.Compare)
	for _, addr := range a.addrs {
		addrs = append(addrs, addr.String())
	}
	return addrs, a.ttl, err
}

func TestAnswers(t *testing.T) {
	s := newServer(t,
		"both.example. 300 A 192.0.2.2", "both.example. 300 A 192.0.2.1", "both.example. 60 AAAA 2001:db8::1",
		"v4.example. 300 A 192.0.2.1",
		"alias.example. 30 CNAME Middle.example.", "middle.example. 300 CNAME both.example.",
		"zero.example. 0 A 192.0.2.1",
		"loop.example. 300 CNAME loop2.example.", "loop2.example. 300 CNAME loop.example.",
		"dangling.example. 300 CNAME missing.example.",
		"negative.example. 4294967295 A 192.0.2.1",
		"text.example. 300 TXT hello")
	s.change(func() {
		s.rcode["missing.example."] = dns.RcodeNameError
		s.rcode["broken.example."] = dns.RcodeServerFailure
	})
	tests := map[string]struct {
		name  string
		addrs []string
		ttl   time.Duration
		err   string
	}{
		"both families, lowest TTL":      {"both.example", []string{"192.0.2.1", "192.0.2.2", "2001:db8::1"}, time.Minute, ""},
		"one family is enough":           {"v4.example.", []string{"192.0.2.1"}, 5 * time.Minute, ""},
		"upper case":                     {"V4.Example", []string{"192.0.2.1"}, 5 * time.Minute, ""},
		"the TTLs of aliases count":      {"alias.example", []string{"192.0.2.1", "192.0.2.2", "2001:db8::1"}, 30 * time.Second, ""},
		"TTL 0":                          {"zero.example", []string{"192.0.2.1"}, 0, ""},
		"TTL beyond the allowed":         {"negative.example", []string{"192.0.2.1"}, 0, ""},
		"does not exist":                 {"missing.example", nil, 0, errNotFound.Error()},
		"alias of what does not exist":   {"dangling.example", nil, 0, errNotFound.Error()},
		"exists without addresses":       {"text.example", nil, 0, errNoAddresses.Error()},
		"a circle":                       {"loop.example", nil, 0, "loop"},
		"the resolver cannot":            {"broken.example", nil, 0, "answers SERVFAIL"},
		"the resolver knows no such TLD": {"other", nil, 0, errNoAddresses.Error()},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			cfg := s.config(test.name)
			cfg.MaxTTL = 24 * time.Hour
			addrs, ttl, err := resolved(t, cfg)
			if test.err != "" {
				require.ErrorContains(t, err, test.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, test.addrs, addrs)
			require.Equal(t, test.ttl, ttl)
		})
	}
}

// TestChainInPieces is a resolver that gives only the next alias, as an authoritative server does.
func TestChainInPieces(t *testing.T) {
	s := newServer(t, "a.example. 300 CNAME b.example.", "b.example. 20 CNAME c.example.", "c.example. 300 A 192.0.2.1")
	s.change(func() {
		s.edit = func(m *dns.Msg) {
			if len(m.Answer) > 1 {
				m.Answer = m.Answer[:1]
			}
		}
	})
	cfg := s.config("a.example")
	cfg.MaxTTL = time.Hour
	addrs, ttl, err := resolved(t, cfg)
	require.NoError(t, err)
	require.Equal(t, []string{"192.0.2.1"}, addrs)
	require.Equal(t, 20*time.Second, ttl)
	s.set(t, "a.example. 300 CNAME b.example.", "b.example. 20 CNAME a.example.")
	_, _, err = resolved(t, cfg)
	require.ErrorContains(t, err, "loop")
}

func TestTruncatedAnswersComeByTCP(t *testing.T) {
	var records []string
	for i := range 3000 { // close to what one message can hold
		records = append(records, fmt.Sprintf("many.example. 60 A 10.0.%d.%d", i/200, i%200+1))
	}
	s := newServer(t, records...)
	addrs, _, err := resolved(t, s.config("many.example"))
	require.NoError(t, err)
	require.Len(t, addrs, 3000)
	s.change(func() { require.Equal(t, 1, s.asked["tcp"]) })
	s.change(func() { s.mute["tcp"] = true })
	cfg := s.config("many.example")
	cfg.Timeout = 100 * time.Millisecond
	_, _, err = resolved(t, cfg)
	require.ErrorContains(t, err, "over tcp") // half an answer is none
}

func TestRecordsOfOtherNamesDoNotCount(t *testing.T) {
	s := newServer(t, "a.example. 60 A 192.0.2.1")
	foreign, err := dns.NewRR("b.example. 60 A 192.0.2.66")
	require.NoError(t, err)
	s.change(func() { s.edit = func(m *dns.Msg) { m.Answer = append(m.Answer, foreign) } })
	addrs, _, err := resolved(t, s.config("a.example"))
	require.NoError(t, err)
	require.Equal(t, []string{"192.0.2.1"}, addrs)
	s.change(func() { s.edit = func(m *dns.Msg) { m.Question[0].Name = "b.example." } })
	_, _, err = resolved(t, s.config("a.example"))
	require.Error(t, err)
}

func TestTheNextResolverIsAsked(t *testing.T) {
	hanging, refusing, working := newServer(t), newServer(t), newServer(t, "a.example. 60 A 192.0.2.1")
	hanging.change(func() { hanging.mute["udp"], hanging.mute["tcp"] = true, true })
	refusing.change(func() { refusing.rcode["a.example."] = dns.RcodeRefused })
	cfg := working.config("a.example")
	cfg.Resolvers = []string{hanging.address, "127.0.0.1:1", refusing.address, working.address}
	cfg.Timeout = 300 * time.Millisecond
	addrs, _, err := resolved(t, cfg)
	require.NoError(t, err)
	require.Equal(t, []string{"192.0.2.1"}, addrs)
	// That a name does not exist is an answer, and no reason to ask others.
	refusing.change(func() { refusing.rcode["a.example."] = dns.RcodeNameError })
	_, _, err = resolved(t, cfg)
	require.ErrorIs(t, err, errNotFound)
}

// reports collects what a running source reports.
type reports struct {
	mu   sync.Mutex
	list []string
}

func (r *reports) add(report external.Report) {
	text := ""
	if report.Failure != nil {
		text = report.Failure.Reason
	}
	var addrs []string
	for _, e := range report.Endpoints {
		addrs = append(addrs, e.Addr.String())
	}
	slices.Sort(addrs)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, text+strings.Join(addrs, ","))
}

func (r *reports) await(t *testing.T, want string) {
	t.Helper()
	require.Eventually(t, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.list) > 0 && r.list[len(r.list)-1] == want
	}, 20*time.Second, time.Millisecond, want)
}

func TestRunFollowsTheName(t *testing.T) { // D11
	s := newServer(t, "a.example. 0 A 192.0.2.1", "a.example. 0 A 192.0.2.2")
	ctx, cancel := context.WithCancel(t.Context())
	var r reports
	var running sync.WaitGroup
	running.Go(func() { New(s.config("a.example")).Run(ctx, r.add) })
	r.await(t, "192.0.2.1,192.0.2.2")
	s.set(t)
	s.change(func() { s.rcode["a.example."] = dns.RcodeNameError })
	r.await(t, external.ReasonNameNotFound)
	s.change(func() { s.rcode["a.example."] = dns.RcodeServerFailure })
	r.await(t, external.ReasonResolverFailed)
	s.change(func() { delete(s.rcode, "a.example.") })
	r.await(t, external.ReasonNoAddresses)
	s.set(t, "a.example. 0 A 192.0.2.1", "a.example. 0 A 192.0.2.3")
	r.await(t, "192.0.2.1,192.0.2.3")
	cancel()
	running.Wait()
}

// As long as the same is wrong the same is said: another message would be another write to the cluster.
func TestTheSameFailureIsSaidTheSame(t *testing.T) {
	s := newServer(t)
	cfg := s.config("a.example")
	gone, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, gone.Close())
	cfg.Resolvers = []string{gone.LocalAddr().String()}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	said := map[string]int{}
	n := 0
	New(cfg).Run(ctx, func(r external.Report) {
		said[r.Failure.Message]++
		if n++; n == 20 {
			cancel()
		}
	})
	require.Len(t, said, 1)
}

func TestTTLIsHonouredWithinBounds(t *testing.T) {
	s := newServer(t, "zero.example. 0 A 192.0.2.1", "long.example. 86400 A 192.0.2.1")
	for name, bounds := range map[string][2]time.Duration{
		"zero.example": {50 * time.Millisecond, time.Hour}, "long.example": {time.Millisecond, 50 * time.Millisecond}} {
		cfg := s.config(name)
		cfg.MinTTL, cfg.MaxTTL = bounds[0], bounds[1]
		cfg.Families = []Family{IPv4}
		start := time.Now()
		n := 0
		ctx, cancel := context.WithCancel(t.Context())
		New(cfg).Run(ctx, func(external.Report) {
			if n++; n == 5 {
				cancel()
			}
		})
		require.GreaterOrEqual(t, time.Since(start), 4*50*time.Millisecond, name)
	}
}

func TestHostPort(t *testing.T) {
	for in, want := range map[string]string{
		"192.0.2.53": "192.0.2.53:53", "192.0.2.53:5353": "192.0.2.53:5353", "2001:db8::53": "[2001:db8::53]:53",
		"[2001:db8::53]": "[2001:db8::53]:53", "[2001:db8::53]:5353": "[2001:db8::53]:5353"} {
		require.Equal(t, want, HostPort(in))
	}
}

// FuzzAnswer feeds whatever a server may send to what reads it.
func FuzzAnswer(f *testing.F) {
	m := new(dns.Msg).SetQuestion("a.example.", dns.TypeA)
	for _, text := range []string{"a.example. 60 CNAME b.example.", "b.example. 60 CNAME a.example.", "b.example. 60 A 192.0.2.1"} {
		rr, err := dns.NewRR(text)
		require.NoError(f, err)
		m.Answer = append(m.Answer, rr)
	}
	wire, err := m.Pack()
	require.NoError(f, err)
	f.Add(wire)
	f.Fuzz(func(t *testing.T, wire []byte) {
		m := new(dns.Msg)
		if m.Unpack(wire) != nil {
			return
		}
		for _, family := range []Family{IPv4, IPv6} {
			end, ttl, hops := follow(m, "a.example.")
			addrs, addrTTL := addresses(m, end, family)
			require.LessOrEqual(t, hops, maxHops+1)
			require.GreaterOrEqual(t, min(ttl, addrTTL), time.Duration(0))
			require.LessOrEqual(t, len(addrs), len(m.Answer))
			for _, a := range addrs {
				require.Equal(t, family == IPv4, a.Is4())
			}
			if len(addrs) == 0 {
				require.Equal(t, time.Duration(math.MaxInt64), addrTTL)
			}
		}
	})
}
