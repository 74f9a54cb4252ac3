package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/pkg/config"
	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/pool"
	"github.com/nordix/meridio-nsp/pkg/stream"
	"github.com/nordix/meridio-nsp/test/spiffe"
)

// machines are an NSP with mTLS to which virtual machines connect. Machine vm-N has the UID uid-vm-N, and the SPIFFE ID /vm/N.
type machines struct {
	*nsp
	ca         *spiffe.Authority
	identities *auth.Targets
	// configurations are those of the trenches.
	configurations Configurations
}

func newMachines(t *testing.T) *machines {
	ca, err := spiffe.NewAuthority("example.org")
	require.NoError(t, err)
	m := &machines{ca: ca, identities: auth.NewTargets(auth.TargetsConfig{Log: slog.New(slog.DiscardHandler)})}
	roots := x509.NewCertPool()
	roots.AddCert(ca.Bundle().X509Authorities()[0])
	server := &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{m.certificate(t, "/ns/red/sa/nsp", time.Hour)},
		ClientCAs: roots, ClientAuth: tls.RequireAndVerifyClientCert,
	}
	m.nsp = start(t, setup{mode: auth.ByMTLS, edit: func(c *Config) {
		c.Credentials = auth.WithIdentity(credentials.NewTLS(server), spiffeid.RequireTrustDomainFromString("example.org"))
		c.ExternalTargets = m.identities
		c.Configuration, c.Configurations = nil, &m.configurations
		c.PermittedTarget = func(t auth.Target, k stream.Key) error {
			if m.engine.PermittedTarget(t.Namespace, t.Name, k) {
				return nil
			}
			return auth.Deny(auth.NoGrant, "no grant for %s", t)
		}
	}})
	m.identities.Replace(own, map[auth.Target]auth.TargetIdentity{vmOf(1): {SPIFFEID: id(1)}, vmOf(2): {SPIFFEID: id(2)}})
	m.grant("vm-1", "vm-2")
	m.engine.Post(service(x1), service(x2), known(1), known(2), machineSlice(x1, 1, 1, 2), machineSlice(x2, 1, 2))
	return m
}

func number(i int) string { return string(rune('0' + i)) }

func id(i int) string { return "spiffe://example.org/vm/" + number(i) }

func vmOf(i int) auth.Target {
	return auth.Target{Namespace: own, Name: "vm-" + number(i), UID: "uid-vm-" + number(i)}
}

func (m *machines) grant(names ...string) {
	var all []pool.Grant
	if len(names) > 0 {
		all = []pool.Grant{{Namespace: own, Externals: names, Trench: x1.Trench}}
	}
	m.engine.Post(engine.GrantsChanged{Grants: pool.NewGrants(all)})
}

// known is an ExternalTarget whose status confirms its address.
func known(i int) engine.TargetSet {
	return engine.TargetSet{Target: pool.Target{
		Ref: pool.Ref{Namespace: own, Name: vmOf(i).Name}, UID: vmOf(i).UID, Confirmed: []netip.Addr{addr("192.0.2." + number(i))},
	}}
}

func machineSlice(k stream.Key, version int, all ...int) engine.SliceSet {
	s := slice(k, version)
	for _, i := range all {
		s.Slice.Endpoints = append(s.Slice.Endpoints, pool.Endpoint{
			Addresses: []string{"192.0.2." + number(i)}, Target: &pool.TargetRef{Kind: "ExternalTarget", Name: vmOf(i).Name, UID: vmOf(i).UID},
		})
	}
	return s
}

func (m *machines) certificate(t *testing.T, path string, valid time.Duration) tls.Certificate {
	svid, err := m.ca.SVID(path, valid)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{svid.Certificates[0].Raw}, PrivateKey: svid.PrivateKey}
}

// dial connects with an SVID of the path.
func (m *machines) dial(path string, valid time.Duration) *grpc.ClientConn {
	m.Helper()
	conn, err := grpc.NewClient(m.addr, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, InsecureSkipVerify: true,
		Certificates: []tls.Certificate{m.certificate(m.T, path, valid)},
	})))
	require.NoError(m, err)
	m.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (m *machines) in(session string) context.Context {
	return metadata.AppendToOutgoingContext(m.ctx(), "meridio-session", session)
}

func (m *machines) watch(ctx context.Context, conn grpc.ClientConnInterface, w *targetpoolv1.Workload) poolClient {
	m.Helper()
	watch, err := targetpoolv1.NewTargetPoolClient(conn).Watch(ctx)
	require.NoError(m, err)
	_ = watch.Send(&targetpoolv1.TargetPoolWatchRequest{Workload: w})
	return watch
}

func machine(i int) *targetpoolv1.Workload {
	return &targetpoolv1.Workload{Namespace: own, ExternalTarget: vmOf(i).Name}
}

// registered are the registrations with their owners and states.
func (m *machines) registered() []string {
	m.Helper()
	rows, err := m.engine.Targets(m.ctx(), engine.Filter{})
	require.NoError(m, err)
	var out []string
	for _, r := range rows {
		out = append(out, r.PodUID+" "+r.Entry.Addrs+" "+stateNames[r.State]+" "+r.Reason)
	}
	return out
}

func (m *machines) register(ctx context.Context, conn grpc.ClientConnInterface, k stream.Key, id int, ip string) error {
	for range 2 { // the first is DISABLED
		if _, err := nspv1.NewTargetRegistryClient(conn).Register(ctx, registration(k, id, ip)); err != nil {
			return err
		}
	}
	return nil
}

// Whoever proves an ExternalTarget's identity sees and changes what is its own, and nothing else.
func TestMachineHasItsOwn(t *testing.T) {
	m := newMachines(t)
	one, two := m.dial("/vm/1", time.Hour), m.dial("/vm/2", time.Hour)
	require.Equal(t, []string{"x1"}, m.streams(m.watch(m.in("a"), one, machine(1))))
	require.Equal(t, []string{"x1", "x2"}, m.streams(m.watch(m.in("b"), two, machine(2))))

	// The secondary addresses are bound by the identity, wherever the call comes from.
	require.NoError(t, m.register(m.in("a"), one, x1, 1, "172.16.0.1/24"))
	require.NoError(t, m.register(m.in("b"), two, x1, 2, "172.16.0.2/24"))
	require.Equal(t, []string{"uid-vm-1 172.16.0.1/24 Active Ready", "uid-vm-2 172.16.0.2/24 Active Ready"}, m.registered())

	for name, do := range map[string]func() error{
		"register":   func() error { return m.register(m.in("b"), two, x1, 3, "172.16.0.1/24") },
		"unregister": func() error { return m.unregister(m.in("b"), two, x1, 1, "172.16.0.1/24") },
		"reserve": func() error {
			_, err := targetpoolv1.NewReservationClient(two).Reserve(m.in("b"), &targetpoolv1.ReserveRequest{
				Stream: wireStream(x1), Ips: []string{"172.16.0.1/24"},
			})
			return err
		},
		"another trench": func() error {
			other := x1
			other.Trench = "trench-b"
			return m.register(m.in("b"), two, other, 1, "172.16.0.2/24")
		},
		"a frontend": func() error {
			_, err := nspv1.NewTargetRegistryClient(two).Register(m.in("b"), &nspv1.Target{Ips: []string{"fe"}, Type: nspv1.Target_FRONTEND})
			return err
		},
	} {
		require.Equal(t, codes.PermissionDenied, status.Code(do()), name)
	}
	list, err := nspv1.NewTargetRegistryClient(two).Watch(m.ctx(), &nspv1.Target{Status: nspv1.Target_ANY, Stream: registration(x1, 0).GetStream()})
	require.NoError(t, err)
	shown, err := list.Recv()
	require.NoError(t, err)
	require.Len(t, shown.GetTargets(), 1)
	require.Equal(t, []string{"172.16.0.2/24"}, shown.GetTargets()[0].GetIps())

	m.refused(m.watch(m.in("a"), one, machine(2)), codes.PermissionDenied, "the certificate is that of ExternalTarget red/vm-1")
	m.refused(m.watch(m.in("a"), one, pod("vm-1")), codes.PermissionDenied, "vm-1")
	m.refused(m.watch(m.in("a"), one, &targetpoolv1.Workload{Address: "127.0.0.1"}), codes.PermissionDenied, "vm-1")
	feed, err := targetpoolv1.NewTargetFeedClient(one).Watch(m.ctx(), &targetpoolv1.TargetFeedWatchRequest{
		Conduit: &targetpoolv1.Conduit{Trench: x1.Trench, Name: x1.Conduit},
	})
	require.NoError(t, err)
	_, err = feed.Recv()
	require.Equal(t, codes.PermissionDenied, status.Code(err))
	require.ErrorContains(t, err, "ExternalTarget red/vm-1 is no load balancer")
}

// A machine has no way to the process of its trench, so it is told the VIPs of trenches that a grant names it for.
func TestMachineIsToldTheVIPs(t *testing.T) {
	m := newMachines(t)
	vips := func(vip string) *config.Config {
		c, errs := config.Parse(map[string]string{
			config.KeyTrench: "name: " + x1.Trench, config.KeyVips: "items: [{name: v, address: " + vip + ", trench: " + x1.Trench + "}]",
		}, nil)
		require.Empty(t, errs)
		return c
	}
	watch := func(path, trench string) grpc.ServerStreamingClient[nspv1.VipResponse] {
		w, err := nspv1.NewConfigurationManagerClient(m.dial(path, time.Hour)).WatchVip(m.ctx(), &nspv1.Vip{Trench: &nspv1.Trench{Name: trench}})
		require.NoError(t, err)
		return w
	}
	one := watch("/vm/1", x1.Trench) // before it is known
	for _, vip := range []string{"20.0.0.1/32", "20.0.0.2/32"} {
		m.configurations.Set(x1.Trench, vips(vip))
		told, err := one.Recv()
		require.NoError(t, err)
		require.Equal(t, vip, told.GetVips()[0].GetAddress())
	}
	for name, tt := range map[string]struct {
		path, trench string
		code         codes.Code
	}{
		"a trench without a grant": {"/vm/1", "trench-b", codes.PermissionDenied},
		"no trench":                {"/vm/1", "", codes.InvalidArgument},
		"a ServiceAccount":         {"/ns/red/sa/web", x1.Trench, codes.PermissionDenied},
		"a stranger":               {"/vm/9", x1.Trench, codes.PermissionDenied},
	} {
		_, err := watch(tt.path, tt.trench).Recv()
		require.Equal(t, tt.code, status.Code(err), "%s: %v", name, err)
	}
}

func (m *machines) unregister(ctx context.Context, conn grpc.ClientConnInterface, k stream.Key, id int, ip string) error {
	_, err := nspv1.NewTargetRegistryClient(conn).Unregister(ctx, registration(k, id, ip))
	return err
}

// Who does not prove the identity of an ExternalTarget does not get what is its own.
func TestNobodyElseIsTheMachine(t *testing.T) {
	m := newMachines(t)
	stranger, account := m.dial("/vm/9", time.Hour), m.dial("/ns/red/sa/web", time.Hour)
	m.refused(m.watch(m.in("x"), stranger, machine(1)), codes.PermissionDenied, "nor the spec.identity of an ExternalTarget")
	m.refused(m.watch(m.in("x"), account, machine(1)), codes.PermissionDenied, "the caller does not prove to be ExternalTarget red/vm-1")
	require.Equal(t, codes.PermissionDenied, status.Code(m.register(m.in("x"), stranger, x1, 1, "172.16.0.1/24")))

	// A pod that has the name of an ExternalTarget, in its namespace, is somebody else.
	byAddress := start(t, setup{})
	byAddress.engine.Post(engine.GrantsChanged{Grants: pool.NewGrants([]pool.Grant{{Namespace: own, Externals: []string{"vm-1"}, Trench: x1.Trench}, {Namespace: own, Trench: x1.Trench}})},
		service(x1), service(x2), known(1), machineSlice(x1, 1, 1))
	named := slice(x2, 1, ready(7))
	named.Slice.Endpoints[0].Target.Name = "vm-1"
	byAddress.engine.Post(named)
	require.Equal(t, []string{"x2"}, byAddress.streams(byAddress.assignments(byAddress.dial(from(7)), pod("vm-1"), nil)))
	byAddress.refused(byAddress.assignments(byAddress.dial(from(7)), machine(1), nil), codes.PermissionDenied, "does not prove")
}

func TestWorkloadsOfMachinesThatMakeNoSense(t *testing.T) {
	m := newMachines(t)
	one := m.dial("/vm/1", time.Hour)
	for _, w := range []*targetpoolv1.Workload{
		{ExternalTarget: "vm-1"}, {Namespace: own, ExternalTarget: "vm-1", Pod: "vm-1"}, {Namespace: own, ExternalTarget: "vm-1", Address: "192.0.2.1"},
		{Namespace: own, ExternalTarget: "vm-1", PodUid: "uid-vm-1"},
	} {
		m.refused(m.watch(m.in("a"), one, w), codes.InvalidArgument, "ExternalTarget")
	}
}

// The grant is needed from the beginning, and its end closes what it allowed.
func TestMachineNeedsAGrant(t *testing.T) {
	m := newMachines(t)
	m.grant("vm-1")
	one, two := m.dial("/vm/1", time.Hour), m.dial("/vm/2", time.Hour)
	require.Empty(t, m.streams(m.watch(m.in("b"), two, machine(2))))
	err := m.register(m.in("b"), two, x1, 2, "172.16.0.2/24")
	require.Equal(t, codes.PermissionDenied, status.Code(err))
	require.ErrorContains(t, err, "no grant for red/vm-2")

	watch := m.watch(m.in("a"), one, machine(1))
	require.Equal(t, []string{"x1"}, m.streams(watch))
	require.NoError(t, m.register(m.in("a"), one, x1, 1, "172.16.0.1/24"))
	require.Equal(t, []string{"uid-vm-1 172.16.0.1/24 Active Ready"}, m.registered())
	m.grant()
	require.Empty(t, m.streams(watch))
	require.Equal(t, []string{"uid-vm-1 172.16.0.1/24 Inactive LeftPool"}, m.registered())
	require.Equal(t, codes.PermissionDenied, status.Code(m.register(m.in("a"), one, x1, 1, "172.16.0.1/24")))
}

// What the status confirms no more is no member, whatever the slice says.
func TestMachineIsWhatItsStatusConfirms(t *testing.T) {
	m := newMachines(t)
	one := m.dial("/vm/1", time.Hour)
	watch := m.watch(m.in("a"), one, machine(1))
	require.Equal(t, []string{"x1"}, m.streams(watch))
	require.NoError(t, m.register(m.in("a"), one, x1, 1, "172.16.0.1/24"))
	moved := known(1)
	moved.Target.Confirmed[0] = addr("192.0.2.77")
	m.engine.Post(moved)
	require.Empty(t, m.streams(watch))
	again := machineSlice(x1, 2, 1, 2)
	again.Slice.Endpoints[0].Addresses = []string{"192.0.2.77"}
	m.engine.Post(again)
	require.Equal(t, []string{"x1"}, m.streams(watch), "it is the same one at its new address")
	require.Contains(t, m.registered(), "uid-vm-1 172.16.0.1/24 Active Ready")
}

// A machine is made anew while the old one runs on, at other addresses. The new one counts, whatever the old one says and however late.
func TestNewerMachineCounts(t *testing.T) {
	m := newMachines(t)
	old, anew := m.dial("/vm/1", time.Hour), m.dial("/vm/1", time.Hour)
	first := m.watch(m.in("old"), old, machine(1))
	require.Equal(t, []string{"x1"}, m.streams(first))
	require.NoError(t, m.register(m.in("old"), old, x1, 1, "172.16.0.1/24"))

	second := m.watch(m.in("new"), anew, machine(1))
	require.Equal(t, []string{"x1"}, m.streams(second))
	m.refused(first, codes.PermissionDenied, "another sidecar that proves to be ExternalTarget red/vm-1 came later")
	require.NoError(t, m.register(m.in("new"), anew, x1, 1, "172.16.0.99/24"), "the identifier of the old one is its own")
	require.Equal(t, []string{"uid-vm-1 172.16.0.99/24 Active Ready"}, m.registered(), "one machine is one target")

	require.Equal(t, codes.PermissionDenied, status.Code(m.unregister(m.in("old"), old, x1, 1, "172.16.0.99/24")))
	require.Equal(t, codes.PermissionDenied, status.Code(m.register(m.in("old"), old, x1, 1, "172.16.0.1/24")))
	m.refused(m.watch(m.in("old"), old, machine(1)), codes.PermissionDenied, "came later")
	require.Equal(t, []string{"uid-vm-1 172.16.0.99/24 Active Ready"}, m.registered())
	m.engine.Post(engine.SliceGone{Namespace: own, Name: "slice-x1"})
	require.Empty(t, m.streams(second), "it is still told")
}

// A sidecar comes back over a new connection before the server has seen the end of the old one.
func TestReconnectOvertakesDisconnect(t *testing.T) {
	m := newMachines(t)
	before, after := m.dial("/vm/1", time.Hour), m.dial("/vm/1", time.Hour)
	first := m.watch(m.in("a"), before, machine(1))
	require.NoError(t, first.Send(&targetpoolv1.TargetPoolWatchRequest{Report: &targetpoolv1.Report{Addresses: []string{"172.16.0.1"}}}))
	require.Equal(t, []string{"x1"}, m.streams(first))
	second := m.watch(m.in("a"), after, machine(1))
	require.Equal(t, []string{"x1"}, m.streams(second))
	m.refused(first, codes.PermissionDenied, "came later")
	require.NoError(t, before.Close())
	require.NoError(t, m.register(m.in("a"), after, x1, 1, "172.16.0.1/24"))
	require.Eventually(t, func() bool { return m.seen.watching() == 1 }, patience, time.Millisecond)
	require.Equal(t, []string{"uid-vm-1 172.16.0.1/24 Active Ready"}, m.registered())
	m.engine.Post(machineSlice(x2, 2, 1, 2))
	require.Equal(t, []string{"x1", "x2"}, m.streams(second))
}

// Streams end when the identity proves the machine no more, and with the certificate.
func TestMachineIsProvenAsLongAsItWatches(t *testing.T) {
	m := newMachines(t)
	one := m.dial("/vm/1", time.Hour)
	watch := m.watch(m.in("a"), one, machine(1))
	require.Equal(t, []string{"x1"}, m.streams(watch))
	thief := auth.Target{Namespace: "blue", Name: "vm-1", UID: "u"}
	m.identities.Replace("blue", map[auth.Target]auth.TargetIdentity{thief: {SPIFFEID: id(1)}})
	m.refused(watch, codes.PermissionDenied, "ExternalTargets blue/vm-1 and red/vm-1 both claim the identity")
	require.ErrorContains(t, m.register(m.in("a"), one, x1, 1, "172.16.0.1/24"), "both claim")
	m.identities.Replace("blue", nil)
	watch = m.watch(m.in("a"), one, machine(1))
	require.Equal(t, []string{"x1"}, m.streams(watch))
	m.identities.Replace(own, nil)
	m.refused(watch, codes.Unauthenticated, "is not the identity of ExternalTarget red/vm-1 any more")

	m.identities.Replace(own, map[auth.Target]auth.TargetIdentity{vmOf(1): {SPIFFEID: id(1)}})
	short := m.dial("/vm/1", 2*time.Second)
	watch = m.watch(m.in("a"), short, machine(1))
	require.Equal(t, []string{"x1"}, m.streams(watch))
	m.refused(watch, codes.Unauthenticated, "the certificate that this was opened with has expired")
	require.Equal(t, codes.Unauthenticated, status.Code(m.register(m.in("a"), short, x1, 1, "172.16.0.1/24")))
}

var stateNames = map[engine.State]string{engine.Pending: "Pending", engine.Active: "Active", engine.Draining: "Draining", engine.Inactive: "Inactive"}
