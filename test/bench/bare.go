package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/emptypb"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
)

// Bare, in a process of its own, serves the same protocols and does nothing: what it costs is the price of gRPC, TLS and the
// kernel on this machine, below which no server gets.
type Bare struct {
	mu      sync.Mutex
	latest  *targetpoolv1.TargetFeedWatchResponse
	changed chan struct{}
}

// BareArgs name the TLS files of the server.
type BareArgs struct{ Files dial }

// Serve begins to serve and returns the address.
func (b *Bare) Serve(a BareArgs, address *string) error {
	creds, err := bareCredentials(a.Files)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listening: %w", err)
	}
	b.announce("bare", false)
	s := grpc.NewServer(grpc.Creds(creds))
	nspv1.RegisterTargetRegistryServer(s, bareRegistry{})
	targetpoolv1.RegisterTargetFeedServer(s, bareFeed{bare: b})
	go func() { _ = s.Serve(l) }()
	*address = l.Addr().String()
	return nil
}

func bareCredentials(files dial) (credentials.TransportCredentials, error) {
	cert, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		return nil, fmt.Errorf("reading the certificate of the server: %w", err)
	}
	ca, err := os.ReadFile(files.CA)
	if err != nil {
		return nil, fmt.Errorf("reading the CA: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}, ClientCAs: roots,
		ClientAuth: tls.RequireAndVerifyClientCert,
	}), nil
}

// AnnounceArgs name what is told to all.
type AnnounceArgs struct {
	Pod string
	On  bool
}

// Announce tells all watchers, and returns when it began to.
func (b *Bare) Announce(a AnnounceArgs, at *int64) error {
	*at = time.Now().UnixNano()
	b.announce(a.Pod, a.On)
	return nil
}

func (b *Bare) announce(pod string, on bool) {
	state := targetpoolv1.Target_STATE_INACTIVE
	if on {
		state = targetpoolv1.Target_STATE_ACTIVE
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.latest = &targetpoolv1.TargetFeedWatchResponse{
		Kind: targetpoolv1.TargetFeedWatchResponse_KIND_SNAPSHOT, Commit: true,
		Version: &targetpoolv1.Version{Epoch: "bare", Revision: 1},
		Changes: []*targetpoolv1.Change{{Id: 1, Target: &targetpoolv1.Target{
			Stream: streamName(0), Identifier: 1, Addresses: []string{secondary(0) + "/24"}, State: state, Reason: "Ready", Pod: pod,
		}}},
	}
	if b.changed != nil {
		close(b.changed)
	}
	b.changed = make(chan struct{})
}

// bareRegistry answers at once.
type bareRegistry struct {
	nspv1.UnimplementedTargetRegistryServer
}

// Register implements nspv1.TargetRegistryServer.
func (bareRegistry) Register(context.Context, *nspv1.Target) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, nil
}

// bareFeed says what is announced.
type bareFeed struct {
	targetpoolv1.UnimplementedTargetFeedServer
	bare *Bare
}

// Watch implements targetpoolv1.TargetFeedServer.
func (f bareFeed) Watch(
	_ *targetpoolv1.TargetFeedWatchRequest, ss grpc.ServerStreamingServer[targetpoolv1.TargetFeedWatchResponse],
) error {
	b := f.bare
	for {
		b.mu.Lock()
		latest, changed := b.latest, b.changed
		b.mu.Unlock()
		if err := ss.Send(latest); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-ss.Context().Done():
			return nil
		}
	}
}

// machine measures what the figures of the other suites stand on: this machine, with a server that does nothing.
func machine(ctx context.Context, w *world) error {
	if err := fsyncs(w); err != nil {
		return err
	}
	peers, hangUp, err := w.peers(ctx, 3)
	if err != nil {
		return err
	}
	defer hangUp()
	address, err := call[string](ctx, peers[0], "Bare.Serve", BareArgs{w.authority.serverFiles()})
	if err != nil {
		return err
	}
	at := w.authority.dial(address)
	for _, n := range []int{1, 100} {
		if err := bareFanOut(ctx, w, peers[0], peers[1], at, n); err != nil {
			return err
		}
	}
	return bareCalls(ctx, w, peers[2], at, "a server that does nothing, mTLS")
}

// fsyncs measures what a durable write costs at least, on the disk that the registries are on.
func fsyncs(w *world) error {
	f, err := os.Create(filepath.Join(w.dir, "fsync"))
	if err != nil {
		return fmt.Errorf("making a file: %w", err)
	}
	defer f.Close()
	var each []time.Duration
	for range 200 {
		began := time.Now()
		if _, err := f.Write(make([]byte, 4096)); err != nil {
			return fmt.Errorf("writing a file: %w", err)
		}
		if err := f.Sync(); err != nil {
			return fmt.Errorf("writing a file: %w", err)
		}
		each = append(each, time.Since(began))
	}
	w.report.times("append 4 KiB and fsync", "directory of the registries", each)
	return nil
}

func bareFanOut(ctx context.Context, w *world, server, lbs *peer, at dial, n int) error {
	if _, err := call[time.Duration](ctx, lbs, "Balancers.Connect", BalancersArgs{Dial: at, Count: n}); err != nil {
		return err
	}
	var st stages
	for i := range pick(w, 200, 40) {
		began := time.Now()
		if err := bareEvent(ctx, server, lbs, i%2 == 0, began, &st); err != nil {
			return err
		}
		wait(ctx, 10*time.Millisecond)
	}
	setup := "a server that does nothing, mTLS, " + strconv.Itoa(n) + " LBs"
	w.report.times("one message to all: at the first LB", setup, st.first)
	w.report.times("one message to all: at the last LB", setup, st.last)
	w.report.floorTimes(floorFirst, st.first)
	w.report.floorTimes(floorLast, st.last)
	return nil
}

// bareEvent has the server that does nothing tell all, of something that was known at the given time.
func bareEvent(ctx context.Context, server, lbs *peer, on bool, known time.Time, st *stages) error {
	began, err := call[int64](ctx, server, "Bare.Announce", AnnounceArgs{Pod: "bare", On: on})
	if err != nil {
		return err
	}
	heard, err := call[[]int64](ctx, lbs, "Balancers.Heard", HeardArgs{Pod: "bare", On: on, Since: began})
	if err != nil {
		return err
	}
	st.first = append(st.first, time.Unix(0, slices.Min(heard)).Sub(known))
	st.last = append(st.last, time.Unix(0, slices.Max(heard)).Sub(known))
	return nil
}

// floor measures what a server that does nothing but tell of slice events would do among the same leases, heartbeats and writes
// to the API server. The process under test has no load balancers meanwhile.
func (s *scene) floor(ctx context.Context) error {
	const balancers = 100
	peers, hangUp, err := s.peers(ctx, 3)
	if err != nil {
		return err
	}
	defer hangUp()
	address, err := call[string](ctx, peers[0], "Bare.Serve", BareArgs{s.authority.serverFiles()})
	if err != nil {
		return err
	}
	at := s.authority.dial(address)
	if _, err := call[time.Duration](ctx, peers[1], "Balancers.Connect", BalancersArgs{Dial: at, Count: balancers}); err != nil {
		return err
	}
	var st stages
	for range pick(s.world, 100, 20) / 2 {
		i := rand.IntN(s.farm.size)
		for _, ready := range []bool{false, true} {
			if _, err := s.farm.ready(ctx, i, ready); err != nil {
				return err
			}
			announced, err := s.farm.seen.WaitReady(ctx, podName(i), ready)
			if err != nil {
				return err
			}
			if err := bareEvent(ctx, peers[0], peers[1], !ready, announced, &st); err != nil {
				return err
			}
			wait(ctx, 10*time.Millisecond+rand.N(20*time.Millisecond))
		}
	}
	setup := fmt.Sprintf("%s, a server that does nothing, %d LBs", s.setup(), balancers)
	s.report.times("slice event -> message at the first LB", setup, st.first)
	s.report.times("slice event -> message at the last LB", setup, st.last)
	s.report.floorTimes(floorFirst, st.first)
	s.report.floorTimes(floorLast, st.last)
	return bareCalls(ctx, s.world, peers[2], at, s.setup()+", a server that does nothing")
}

func bareCalls(ctx context.Context, w *world, fleet *peer, at dial, setup string) error {
	const members = 1000
	_, err := call[time.Duration](ctx, fleet, "Fleet.Connect", FleetArgs{
		Dial: at, Namespace: "bare", Members: members, Connections: sharedConnections, Streams: 10, MaxTargets: 200,
	})
	if err != nil {
		return err
	}
	for _, callers := range []int{8, 64} {
		r, err := call[ProbeReply](ctx, fleet, "Fleet.Probe", ProbeArgs{Count: members, Callers: callers, For: pick(w, 3*time.Second, time.Second)})
		if err != nil {
			return err
		}
		w.report.figure("Register", fmt.Sprintf("%s, %d callers", setup, callers), "calls/s", r.perSecond(), latency(r))
		w.report.floors[floorCalls] = floor{p50: r.perSecond()}
	}
	return nil
}
