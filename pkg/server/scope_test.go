package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

func refusedFor(err error) auth.Reason {
	if r, ok := errors.AsType[*auth.Refusal](err); ok {
		return r.Reason
	}
	return ""
}

func account(ns, name string) auth.Identity {
	return auth.Identity{Account: auth.ServiceAccount{Namespace: ns, Name: name}}
}

// callers are those that the table is tried with, as the server has found out who they are.
var callers = map[string]auth.Caller{
	"nobody":         {Mode: auth.ByToken, Addr: netip.MustParseAddr("10.0.0.9"), Unproven: auth.Unproven(auth.NoToken, "")},
	"local nobody":   {Mode: auth.ByToken, Addr: netip.MustParseAddr("127.0.0.1"), Unproven: auth.Unproven(auth.NoToken, "")},
	"pod":            {Mode: auth.ByToken, Identity: account("red", "web"), Pod: auth.Pod{Namespace: "red", Name: "web-0", UID: "u0"}, Addr: netip.MustParseAddr("10.0.0.1")},
	"foreign pod":    {Mode: auth.ByToken, Identity: account("blue", "web"), Pod: auth.Pod{Namespace: "blue", Name: "web-0", UID: "u1"}, Addr: netip.MustParseAddr("10.0.0.2")},
	"trench process": {Mode: auth.ByToken, Identity: account("red", "nsp"), TrenchProcess: true, Addr: netip.MustParseAddr("10.0.0.3")},
	"inspector":      {Mode: auth.ByToken, Identity: account("ops", "eye"), Inspector: true, Addr: netip.MustParseAddr("10.0.0.4")},
	"old client":     {Mode: auth.Legacy, Addr: netip.MustParseAddr("10.0.0.5")},
	"anybody":        {Mode: auth.None, Addr: netip.MustParseAddr("10.0.0.6")},
}

// What each of them may call at all. Every RPC of every service stands here.
func TestWhoMayCallWhat(t *testing.T) {
	const everyone = "nobody, local nobody, pod, foreign pod, trench process, inspector, old client, anybody"
	const identified = "pod, foreign pod, trench process, inspector, old client, anybody"
	const atHome = "pod, trench process, old client, anybody"
	may := map[string]string{
		targetpoolv1.TargetPool_Watch_FullMethodName:      identified,
		targetpoolv1.TargetFeed_Watch_FullMethodName:      identified,
		targetpoolv1.Reservation_Reserve_FullMethodName:   identified,
		nspv1.TargetRegistry_Register_FullMethodName:      identified,
		nspv1.TargetRegistry_Unregister_FullMethodName:    identified,
		nspv1.TargetRegistry_Watch_FullMethodName:         identified,
		targetpoolv1.Relay_Watch_FullMethodName:           "trench process, anybody",
		targetpoolv1.Relay_Position_FullMethodName:        "trench process, anybody",
		targetpoolv1.Relay_Register_FullMethodName:        "trench process, anybody",
		targetpoolv1.Relay_Unregister_FullMethodName:      "trench process, anybody",
		targetpoolv1.Relay_Restore_FullMethodName:         "trench process, anybody",
		targetpoolv1.Inspector_ListPools_FullMethodName:   "local nobody, inspector, anybody",
		targetpoolv1.Inspector_ListTargets_FullMethodName: "local nobody, inspector, anybody",
		targetpoolv1.Inspector_Describe_FullMethodName:    "local nobody, inspector, anybody",
		grpc_health_v1.Health_Check_FullMethodName:        everyone,
		grpc_health_v1.Health_List_FullMethodName:         everyone,
		grpc_health_v1.Health_Watch_FullMethodName:        everyone,
	}
	for _, method := range []string{"Trench", "Conduit", "Stream", "Flow", "Vip", "Attractor", "Gateway"} {
		may["/nsp.v1.ConfigurationManager/Watch"+method] = atHome
	}
	for method := range access {
		allowed, known := may[method]
		require.True(t, known, "say here who may call %s", method)
		for name, c := range callers {
			err := admit(&Config{Namespace: own}, method, c)
			if strings.Contains(", "+allowed+",", ", "+name+",") {
				require.NoError(t, err, "%s by %s", method, name)
			} else {
				require.Error(t, err, "%s by %s", method, name)
				require.NotEmpty(t, refusedFor(err), "%s by %s: %v", method, name, err)
			}
		}
	}
	require.Len(t, may, len(access), "an RPC that is not served any more")
}

func TestGrantsDecideForOtherNamespaces(t *testing.T) {
	granted := x1
	cfg := &Config{Namespace: own, Permitted: func(a auth.ServiceAccount, k stream.Key) error {
		if a.Namespace == "blue" && (k == granted || k == stream.Key{Namespace: own}) {
			return nil
		}
		return auth.Deny(auth.NoGrant, "%s has no grant for %s", a, k)
	}}
	foreign := callers["foreign pod"]
	require.NoError(t, resident(cfg, foreign))
	require.NoError(t, cfg.mayRegister(foreign, registry.Target{Stream: x1}))
	require.Equal(t, auth.NoGrant, refusedFor(cfg.mayRegister(foreign, registry.Target{Stream: x2})))
	require.NoError(t, cfg.mayList(foreign, engine.Filter{Trench: x1.Trench, Conduit: x1.Conduit, Stream: x1.Name}))
	require.Equal(t, auth.NoGrant, refusedFor(cfg.mayList(foreign, engine.Filter{Trench: x1.Trench})), "that is more than it was granted")
	require.Equal(t, auth.NoRole, refusedFor(cfg.mayFeed(foreign, x1.Of())))

	none := &Config{Namespace: own}
	require.Equal(t, auth.NoGrant, refusedFor(resident(none, foreign)))
	require.Equal(t, auth.NoGrant, refusedFor(none.mayRegister(foreign, registry.Target{Stream: x1})))
	require.NoError(t, none.mayRegister(callers["pod"], registry.Target{Stream: x1}))
}

func TestLoadBalancersHaveTheirConduits(t *testing.T) {
	lb := auth.Caller{Mode: auth.ByMTLS, Identity: account("red", "lb")}
	conduit := stream.Conduit{Namespace: own, Trench: "t1", Name: "c1"}
	for name, tt := range map[string]struct {
		accounts []LoadBalancer
		caller   auth.Caller
		ok       bool
	}{
		"nobody is named":      {nil, lb, true},
		"of another namespace": {nil, auth.Caller{Mode: auth.ByMTLS, Identity: account("blue", "lb")}, false},
		"all conduits":         {[]LoadBalancer{{Account: lb.Account}}, lb, true},
		"its trench":           {[]LoadBalancer{{Account: lb.Account, Trench: "t1"}}, lb, true},
		"its conduit":          {[]LoadBalancer{{Account: lb.Account, Trench: "t1", Conduit: "c1"}}, lb, true},
		"another conduit":      {[]LoadBalancer{{Account: lb.Account, Trench: "t1", Conduit: "c2"}}, lb, false},
		"another trench":       {[]LoadBalancer{{Account: lb.Account, Trench: "t2"}}, lb, false},
		"another account":      {[]LoadBalancer{{Account: auth.ServiceAccount{Namespace: "red", Name: "x"}}}, lb, false},
		"a trench process":     {[]LoadBalancer{}, auth.Caller{Mode: auth.ByMTLS, Identity: account("blue", "nsp"), TrenchProcess: true}, true},
		"no accounts at all":   {[]LoadBalancer{{Account: lb.Account}}, auth.Caller{Mode: auth.PeerAddress}, true},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := &Config{Namespace: own, LoadBalancers: tt.accounts}
			for _, err := range []error{cfg.mayFeed(tt.caller, conduit), cfg.mayRegister(tt.caller, registry.Target{
				Type: registry.Frontend, Stream: stream.Key{Trench: "t1", Conduit: "c1"},
			})} {
				if tt.ok {
					require.NoError(t, err)
				} else {
					require.Equal(t, auth.NoRole, refusedFor(err))
				}
			}
		})
	}
}

func TestLegacyRegistration(t *testing.T) {
	for policy, may := range map[LegacyRegistration]string{
		"":                 "allow stranger home", // as LegacyAllow
		LegacyAllow:        "stranger home",
		LegacyOwnNamespace: "home",
		LegacyDeny:         "",
	} {
		counted := 0
		cfg := &Config{Namespace: own, LegacyRegistration: policy, LegacyRegistered: func() { counted++ }}
		for name, c := range map[string]auth.Caller{
			"stranger": {Mode: auth.Legacy, Identity: account("blue", "tapa")},
			"home":     {Mode: auth.Legacy, Identity: account("red", "tapa")},
		} {
			err := cfg.mayRegister(c, registry.Target{Stream: x1})
			require.Equal(t, strings.Contains(may, name), err == nil, "%s under %q: %v", name, policy, err)
			if err != nil {
				require.Equal(t, auth.LegacyDenied, refusedFor(err))
			}
		}
		require.Equal(t, strings.Count(may, "stranger")+strings.Count(may, "home"), counted)
		require.NoError(t, cfg.mayRegister(callers["pod"], registry.Target{Stream: x1}), "it proves its pod")
	}
}

func TestTrenchProcessesSpeakForTheirTrench(t *testing.T) {
	for pod, trench := range map[string]string{"nsp-trench-a-0": "trench-a", "nsp-a-12": "a", "my-nsp-0": "whatever", "": "whatever"} {
		require.NoError(t, mayRelay(auth.Caller{Pod: auth.Pod{Name: pod}}, trench), pod)
	}
	require.Equal(t, auth.OtherTrench, refusedFor(mayRelay(auth.Caller{Pod: auth.Pod{Namespace: "red", Name: "nsp-trench-a-0"}}, "trench-b")))
}

// tokens are verified by what they are called: pod N of namespace red is "red/N".
type tokens struct {
	mu      sync.Mutex
	expires map[string]time.Time
}

func (v *tokens) Verify(_ context.Context, raw string) (auth.Token, error) {
	ns, n, ok := strings.Cut(raw, "/")
	if !ok {
		return auth.Token{}, auth.Unproven(auth.BadToken, "forged")
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	expires, known := v.expires[raw]
	if !known {
		expires = time.Now().Add(time.Hour)
	}
	return auth.Token{
		Account: auth.ServiceAccount{Namespace: ns, Name: "web"}, Expires: expires,
		Pod: auth.Pod{Namespace: ns, Name: "pod-" + n, UID: "uid-" + n},
	}, nil
}

func byToken(t *testing.T, more func(*Config)) (*nsp, *tokens) {
	v := &tokens{expires: map[string]time.Time{}}
	n := start(t, setup{mode: auth.ByToken, edit: func(c *Config) {
		c.Tokens = auth.NewTokens(auth.TokensConfig{Verifier: v})
		if more != nil {
			more(c)
		}
	}})
	return n, v
}

func (n *nsp) as(token string) context.Context { return n.asIn(n.ctx(), token) }

func (n *nsp) asIn(ctx context.Context, token string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
}

// watchPod opens a watch for pod i and returns its first list's streams.
func (n *nsp) watchPod(ctx context.Context, conn grpc.ClientConnInterface, i int, uid string) ([]string, error) {
	watch, err := targetpoolv1.NewTargetPoolClient(conn).Watch(ctx)
	require.NoError(n, err)
	_ = watch.Send(&targetpoolv1.TargetPoolWatchRequest{
		Workload: &targetpoolv1.Workload{Namespace: own, Pod: fmt.Sprint("pod-", i), PodUid: uid},
	})
	resp, err := watch.Recv()
	var streams []string
	for _, a := range resp.GetAssignments().GetItems() {
		streams = append(streams, a.GetStream().GetName())
	}
	return streams, err
}

// Two hostNetwork pods share an address, and a third one is beside them. With tokens each is told its own. // D4
func TestTokensTellPodsOfOneAddressApart(t *testing.T) {
	n, _ := byToken(t, nil)
	n.engine.Post(service(x1), service(x2),
		slice(x1, 1, member{i: 1, addr: "10.0.0.9", ready: true}), slice(x2, 1, member{i: 2, addr: "10.0.0.9", ready: true}))
	conn := n.dial(from(9))
	streams, err := n.watchPod(n.as("red/1"), conn, 1, "uid-1")
	require.NoError(t, err)
	require.Equal(t, []string{"x1"}, streams)
	streams, err = n.watchPod(n.as("red/2"), conn, 2, "")
	require.NoError(t, err)
	require.Equal(t, []string{"x2"}, streams)
	for _, wrong := range []struct {
		token string
		pod   int
		uid   string
	}{{"red/3", 1, "uid-1"}, {"red/2", 1, ""}, {"blue/1", 1, "uid-1"}, {"red/1", 1, "uid-of-a-predecessor"}} {
		_, err := n.watchPod(n.as(wrong.token), conn, wrong.pod, wrong.uid)
		require.Equal(t, codes.PermissionDenied, status.Code(err), "%+v", wrong)
		require.ErrorContains(t, err, "the token is of pod")
	}
	_, err = n.watchPod(n.as("forged"), conn, 1, "")
	require.Equal(t, codes.Unauthenticated, status.Code(err))
	_, err = n.watchPod(n.ctx(), conn, 1, "")
	require.Equal(t, codes.Unauthenticated, status.Code(err))
}

// A proven caller's registration is its pod's, wherever the call comes from.
func TestProvenCallerRegistersForItsPod(t *testing.T) {
	var mu sync.Mutex
	counted := map[auth.Reason]int{}
	reasons := func() map[auth.Reason]int { mu.Lock(); defer mu.Unlock(); return maps.Clone(counted) }
	n, _ := byToken(t, func(c *Config) {
		c.Refused = func(why auth.Reason) { mu.Lock(); defer mu.Unlock(); counted[why]++ }
	})
	n.engine.Post(service(x1), slice(x1, 1, ready(1), ready(2)))
	conn := n.dial(from(9))
	target := registration(x1, 1, "172.16.0.1/24")
	_, err := nspv1.NewTargetRegistryClient(conn).Register(n.as("red/2"), target)
	require.NoError(t, err)
	rows, err := n.engine.Targets(n.ctx(), engine.Filter{})
	require.NoError(t, err)
	require.Len(t, rows, 1)
	require.Equal(t, "uid-2", rows[0].PodUID)
	for name, do := range map[string]func(context.Context) error{
		"register": func(ctx context.Context) error {
			_, err := nspv1.NewTargetRegistryClient(conn).Register(ctx, target)
			return err
		},
		"unregister": func(ctx context.Context) error {
			_, err := nspv1.NewTargetRegistryClient(conn).Unregister(ctx, target)
			return err
		},
		"reserve": func(ctx context.Context) error {
			_, err := targetpoolv1.NewReservationClient(conn).Reserve(ctx, &targetpoolv1.ReserveRequest{
				Stream: wireStream(x1), Ips: target.GetIps(),
			})
			return err
		},
	} {
		err := do(n.as("red/1"))
		require.Equal(t, codes.PermissionDenied, status.Code(err), name)
		require.ErrorContains(t, err, "registered by pod uid-2", name)
	}
	require.Positive(t, reasons()[auth.OtherPod])
	_, err = nspv1.NewTargetRegistryClient(conn).Register(n.as("red/2"), target)
	require.NoError(t, err, "a refresh by its own")
	_, err = nspv1.NewTargetRegistryClient(conn).Register(n.as("blue/2"), target)
	require.Equal(t, codes.PermissionDenied, status.Code(err))
	require.ErrorContains(t, err, "nothing grants it")
}

// A stream ends with the token that it was opened with.
func TestStreamEndsWithItsToken(t *testing.T) {
	reasons := make(chan auth.Reason, 10)
	n, v := byToken(t, func(c *Config) { c.Refused = func(why auth.Reason) { reasons <- why } })
	v.expires["red/1"] = time.Now().Add(2 * time.Second)
	watch, err := targetpoolv1.NewTargetFeedClient(n.dial(from(9))).Watch(n.as("red/1"),
		&targetpoolv1.TargetFeedWatchRequest{Conduit: &targetpoolv1.Conduit{Trench: x1.Trench, Name: x1.Conduit}})
	require.NoError(t, err)
	for err == nil {
		_, err = watch.Recv()
	}
	require.Equal(t, codes.Unauthenticated, status.Code(err))
	require.ErrorContains(t, err, "open again")
	require.False(t, time.Now().Before(v.expires["red/1"]))
	require.Equal(t, auth.ExpiredToken, <-reasons)
}

func TestWatchesAreBounded(t *testing.T) {
	n, _ := byToken(t, func(c *Config) { c.Limits = Limits{Watches: 3, WatchesPerPod: 2, WatchesPerPeer: 1} })
	feed := func(ctx context.Context) error {
		watch, err := targetpoolv1.NewTargetFeedClient(n.dial(from(9))).Watch(ctx,
			&targetpoolv1.TargetFeedWatchRequest{Conduit: &targetpoolv1.Conduit{Trench: "t", Name: "c"}})
		require.NoError(t, err)
		n.engine.Post(engine.TrenchConfigured{Trench: "t"})
		_, err = watch.Recv()
		return err
	}
	first, end := context.WithCancel(n.as("red/1"))
	require.NoError(t, feed(first))
	require.NoError(t, feed(n.as("red/1")))
	err := feed(n.as("red/1"))
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	require.ErrorContains(t, err, "this caller has 2")
	require.NoError(t, feed(n.as("red/2")), "from the same address, but another pod")
	require.ErrorContains(t, feed(n.as("red/3")), "3 watches")
	end()
	require.Eventually(t, func() bool { return feed(n.as("red/3")) == nil }, patience, 10*time.Millisecond)
}

func TestConnectionsAreBounded(t *testing.T) {
	refused := make(chan auth.Reason, 1000)
	n := start(t, setup{mode: auth.None, edit: func(c *Config) {
		c.Limits = Limits{ConnectionsPerPeer: 2}
		c.Refused = func(why auth.Reason) { refused <- why }
	}})
	check := func(conn *grpc.ClientConn) error {
		_, err := grpc_health_v1.NewHealthClient(conn).Check(n.ctx(), &grpc_health_v1.HealthCheckRequest{})
		return err
	}
	first := n.dial(from(9))
	require.NoError(t, check(first))
	require.NoError(t, check(n.dial(from(9))))
	require.Equal(t, codes.Unavailable, status.Code(check(n.dial(from(9)))))
	require.Equal(t, auth.TooManyCalls, <-refused)
	require.NoError(t, check(n.dial(from(8))), "another peer")
	for range 5 {
		require.NoError(t, check(n.dial()), "loopback")
	}
	require.NoError(t, first.Close())
	require.Eventually(t, func() bool { return check(n.dial(from(9))) == nil }, patience, 10*time.Millisecond)
}

// A crowd of refused callers does not fill the log, and each is counted.
func TestRefusalsAreCountedAndLoggedSparingly(t *testing.T) {
	var mu sync.Mutex
	reasons := map[auth.Reason]int{}
	n, _ := byToken(t, func(c *Config) {
		c.Refused = func(why auth.Reason) { mu.Lock(); defer mu.Unlock(); reasons[why]++ }
	})
	conn := n.dial(from(9))
	for range 500 {
		_, err := nspv1.NewTargetRegistryClient(conn).Register(n.ctx(), registration(x1, 1, "172.16.0.1/24"))
		require.Equal(t, codes.Unauthenticated, status.Code(err))
	}
	require.Equal(t, map[auth.Reason]int{auth.NoToken: 500}, reasons)
	n.log.mu.Lock()
	defer n.log.mu.Unlock()
	require.Less(t, strings.Count(n.log.buf.String(), "call failed"), 100)
}
