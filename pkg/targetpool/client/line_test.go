package client

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
)

func TestSilentServerIsGivenUp(t *testing.T) {
	bubble(t, func(t *testing.T, f *fake, config Config) {
		feed, updates := follow(t, config)
		began := time.Now()
		next(t, f.feeds) // Accepted, and never a word.
		c, _ := nextFeed(t, f)
		silent := time.Since(began)
		require.GreaterOrEqual(t, silent, DefaultHeartbeatTimeout)
		require.LessOrEqual(t, silent, DefaultHeartbeatTimeout+DefaultBackoffBase)
		require.ErrorIs(t, feed.Status().Err, errSilent)

		play(t, c, snapshot(version("E", 1)))
		next(t, updates)
		for range 10 { // Heartbeats keep it.
			time.Sleep(DefaultHeartbeatTimeout - time.Millisecond)
			play(t, c, heartbeat(version("E", 1)))
		}
		require.Empty(t, f.feeds)
		heard := time.Now()
		_, req := nextFeed(t, f)
		require.LessOrEqual(t, time.Since(heard), DefaultHeartbeatTimeout+DefaultBackoffBase)
		require.NotNil(t, req.GetResume())
	})
}

// The address accepts connections and no server reads them, as a suspended process does.
func TestSilentConnectionIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dials atomic.Int32
		config := testConfig("passthrough:///hole")
		config.Backoff = Backoff{}
		var held []net.Conn
		config.DialOptions = []grpc.DialOption{grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			dials.Add(1)
			ours, theirs := net.Pipe()
			held = append(held, theirs) // One connection at a time, so no lock.
			go func() {
				for buf := make([]byte, 1024); ; {
					if _, err := theirs.Read(buf); err != nil {
						return
					}
				}
			}()
			return ours, nil
		})}
		feed, _ := follow(t, config)
		time.Sleep(30 * time.Second)
		require.GreaterOrEqual(t, dials.Load(), int32(3)) // No 20 s for one handshake.
		require.LessOrEqual(t, dials.Load(), int32(10))
		require.Error(t, feed.Status().Err)
	})
}

// busy is a server that takes hands one after the other, and long for each.
type busy struct {
	credentials.TransportCredentials
	takes time.Duration
	turn  chan struct{}
	// wasted counts handshakes whose clients had gone.
	wasted *atomic.Int32
}

func (b busy) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	hello := make([]byte, 1)
	if _, err := conn.Read(hello); err != nil {
		return nil, nil, err
	}
	b.turn <- struct{}{}
	time.Sleep(b.takes)
	<-b.turn
	if _, err := conn.Write(hello); err != nil {
		b.wasted.Add(1)
		return nil, nil, err
	}
	return b.TransportCredentials.ServerHandshake(conn)
}

func (b busy) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if _, err := conn.Write([]byte{1}); err != nil {
		return nil, nil, err
	}
	if _, err := conn.Read(make([]byte, 1)); err != nil {
		return nil, nil, err
	}
	return b.TransportCredentials.ClientHandshake(ctx, authority, conn)
}

func (b busy) Clone() credentials.TransportCredentials { return b }

// 300 clients come to a server that needs 100 ms for each handshake, half a minute for all, and does the work of those who
// have gone too. With one limit for all tries nobody beyond the first 50 would ever be let in.
func TestAllConnectToABusyServer(t *testing.T) { // P26
	synctest.Test(t, func(t *testing.T) {
		const clients = 300
		b := busy{insecure.NewCredentials(), 100 * time.Millisecond, make(chan struct{}, 1), new(atomic.Int32)}
		f, l := newFake(), bufconn.Listen(1<<20)
		f.feeds = make(chan *feedCall, clients)
		stop := f.serve(l, grpc.Creds(b))
		defer stop()
		config := inMemory(l)
		config.Credentials = b
		began := time.Now()
		for range clients {
			follow(t, config)
		}
		late := time.After(3 * time.Minute)
		for range clients {
			var c *feedCall
			select {
			case c = <-f.feeds:
			case <-late:
				require.FailNow(t, "not all connected")
			}
			play(t, c, snapshot(version("E", 1)))
			go func() { // Heartbeats, lest silence is taken for an end.
				for beat := time.Tick(5 * time.Second); ; {
					select {
					case <-c.ctx.Done():
						return
					case <-beat:
						_ = c.send(heartbeat(version("E", 1)))
					}
				}
			}()
		}
		t.Logf("all connected after %v, %d handshakes wasted", time.Since(began), b.wasted.Load())
	})
}

func TestConnectLimitGrows(t *testing.T) {
	for slow, limit := range []time.Duration{5 * time.Second, 10 * time.Second, 20 * time.Second, 40 * time.Second, 40 * time.Second} {
		for range 100 {
			got := connectLimit(slow)
			require.GreaterOrEqual(t, got, limit)
			require.LessOrEqual(t, got, limit*3/2)
		}
	}
	require.LessOrEqual(t, connectLimit(1_000_000), maxConnectTimeout*3/2)
}

func TestStreamIsReopenedBeforeItsTokenExpires(t *testing.T) {
	bubble(t, func(t *testing.T, f *fake, config Config) {
		config.MaxAge = time.Minute
		_, updates := follow(t, config)
		c, _ := nextFeed(t, f)
		play(t, c, snapshot(version("E", 1)))
		next(t, updates)
		for range 3 {
			opened := time.Now()
			for range 4 {
				time.Sleep(11 * time.Second)
				play(t, c, heartbeat(version("E", 1)))
			}
			require.Empty(t, f.feeds)
			c = next(t, f.feeds)
			age := time.Since(opened)
			require.NotNil(t, (<-c.requests).GetResume())
			require.GreaterOrEqual(t, age, 48*time.Second)
			require.LessOrEqual(t, age, time.Minute)
			play(t, c, heartbeat(version("E", 1)))
		}
		require.Empty(t, updates)
	})
}

// logged collects lines.
type logged struct {
	mu sync.Mutex
	bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Buffer.Write(p)
}

func TestRefusalsAreRetriedSlowlyAndSaidOnce(t *testing.T) {
	for _, code := range []codes.Code{
		codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented, codes.FailedPrecondition,
	} {
		t.Run(code.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T, f *fake, config Config) {
				log := &logged{}
				config.Log = slog.New(slog.NewTextHandler(log, nil))
				_, updates := follow(t, config)
				began, tries := time.Now(), 0
				for time.Since(began) < 10*time.Minute {
					c, _ := nextFeed(t, f)
					c.finish(status.Error(code, "no grant"))
					tries++
				}
				require.Greater(t, tries, 100) // At most Backoff.Max apart,
				require.Less(t, tries, 250)    // and at least half of it.
				require.Equal(t, 1, strings.Count(log.String(), "level=WARN"), log.String())

				c, _ := nextFeed(t, f)
				c.finish(status.Error(code, "another reason"))
				c, _ = nextFeed(t, f)
				require.Equal(t, 2, strings.Count(log.String(), "level=WARN"), log.String())
				play(t, c, snapshot(version("E", 1))) // The policy changed.
				require.True(t, next(t, updates).First)
				synctest.Wait()
				require.Contains(t, log.String(), "live again")
			})
		})
	}
}

// A refusal keeps the connection for a while and not for ever: who answers may have got the address of the NSP.
func TestRefusalRedialsAfterAWhile(t *testing.T) {
	bubble(t, func(t *testing.T, f *fake, config Config) {
		var dials atomic.Int32
		config.DialOptions = append(config.DialOptions, grpc.WithStreamInterceptor(
			func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, m string, s grpc.Streamer, o ...grpc.CallOption) (grpc.ClientStream, error) {
				if cc.GetState().String() == "IDLE" { // A connection that was not used yet.
					dials.Add(1)
				}
				return s(ctx, d, cc, m, o...)
			}))
		follow(t, config)
		for began := time.Now(); time.Since(began) < 5*time.Minute; {
			c, _ := nextFeed(t, f)
			c.finish(status.Error(codes.PermissionDenied, "no grant"))
		}
		require.GreaterOrEqual(t, dials.Load(), int32(8))
		require.LessOrEqual(t, dials.Load(), int32(11))
	})
}

func TestBackoffGrowsAndStartsAgainAfterACommit(t *testing.T) {
	bubble(t, func(t *testing.T, f *fake, config Config) {
		follow(t, config)
		var longest time.Duration
		for range 200 {
			began := time.Now()
			c, _ := nextFeed(t, f)
			longest = max(longest, time.Since(began))
			c.finish(status.Error(codes.Unavailable, "restart"))
		}
		require.Greater(t, longest, DefaultBackoffMax/2)
		require.LessOrEqual(t, longest, DefaultBackoffMax)

		longest = 0
		next(t, f.feeds).finish(nil)
		for i := range 50 {
			began := time.Now()
			c, _ := nextFeed(t, f)
			if i > 0 {
				longest = max(longest, time.Since(began))
			}
			play(t, c, snapshot(version("E", 1)))
			c.finish(status.Error(codes.Unavailable, "restart"))
		}
		require.LessOrEqual(t, longest, DefaultBackoffBase)
	})
}

func TestBackoffDelay(t *testing.T) {
	b := Backoff{Base: 100, Max: 1000}
	for failures, limit := range []time.Duration{100, 200, 400, 800, 1000, 1000, 1000} {
		low, high := limit, time.Duration(0)
		for range 2000 {
			d := b.delay(failures)
			low, high = min(low, d), max(high, d)
		}
		require.LessOrEqual(t, high, limit)
		require.Greater(t, high, limit*9/10)
		require.Less(t, low, limit/10)
	}
	require.LessOrEqual(t, b.delay(1_000_000), b.Max)
	require.GreaterOrEqual(t, b.refused(), b.Max/2)
}

func TestServerRestarts20Times(t *testing.T) {
	f, l := newFake(), loopback(t, "127.0.0.1:0")
	address := l.Addr().String()
	stop := f.serve(l)
	feed, updates := follow(t, testConfig(address))
	for i := range 20 {
		c, _ := nextFeed(t, f)
		play(t, c, snapshot(version("E"+string(rune('a'+i)), 1), set(uint64(i), target("s1", uint32(i), "10.0.0.1/32"))))
		u := next(t, updates)
		require.Equal(t, i == 0, u.First)
		require.Len(t, u.Set, 1)
		stop()
		require.Len(t, feed.Targets(), 1) // Kept while the server is away.
		stop = f.serve(loopback(t, address))
	}
	stop()
}

// nameService is asked once per connection, as gRPC's DNS resolver asks once in a while.
type nameService struct{ address atomic.Pointer[string] }

func (n *nameService) Scheme() string { return "names" }

func (n *nameService) Build(_ resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) (resolver.Resolver, error) {
	var state resolver.State
	if a := n.address.Load(); a != nil {
		state.Addresses = []resolver.Address{{Addr: *a}}
	}
	_ = cc.UpdateState(state) // Without addresses it is an error, which the RPC reports.
	return n, nil
}

// ResolveNow does nothing: the DNS resolver does not look again soon either.
func (*nameService) ResolveNow(resolver.ResolveNowOptions) {}
func (*nameService) Close()                                {}

func TestServerMovesToAnotherAddress(t *testing.T) { // D8 P11
	names := &nameService{}
	config := testConfig("names:///nsp-service.red:7778")
	config.DialOptions = []grpc.DialOption{grpc.WithResolvers(names)}
	f, l := newFake(), loopback(t, "127.0.0.1:0")
	stop := f.serve(l)
	names.address.Store(new(l.Addr().String()))
	feed, updates := follow(t, config)
	c, _ := nextFeed(t, f)
	play(t, c, snapshot(version("E", 1), set(1, target("s1", 1, "10.0.0.1/32"))))
	next(t, updates)

	names.address.Store(nil) // All replicas are away.
	stop()
	require.Eventually(t, func() bool {
		return status.Code(feed.Status().Err) == codes.Unavailable && strings.Contains(feed.Status().Err.Error(), "zero addresses")
	}, 20*time.Second, time.Millisecond)

	l = loopback(t, "127.0.0.2:0")
	defer f.serve(l)()
	names.address.Store(new(l.Addr().String()))
	c, req := nextFeed(t, f)
	require.Equal(t, version("E", 1).String(), req.GetResume().String())
	play(t, c, delta(version("E", 2), set(1, nil)))
	require.Len(t, next(t, updates).Removed, 1)
}

// Quiet streams with the shortest interval allowed do not offend a server that wants 9 s between pings.
func TestKeepaliveSuitsTheServer(t *testing.T) { // P10
	bubble(t, func(t *testing.T, f *fake, config Config) {
		config.Keepalive, config.HeartbeatTimeout = minKeepalive, time.Hour
		feed, updates := follow(t, config)
		c, _ := nextFeed(t, f)
		play(t, c, snapshot(version("E", 1)))
		next(t, updates)
		time.Sleep(50 * time.Minute)
		require.True(t, feed.Status().Live)
		require.NoError(t, c.ctx.Err())
		require.Empty(t, f.feeds)
	})
}
