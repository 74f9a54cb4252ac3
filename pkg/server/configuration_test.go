package server

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	"github.com/nordix/meridio-nsp/pkg/config"
)

var trenchA = &nspv1.Trench{Name: "trench-a"}

func configured() *config.Config {
	return &config.Config{
		Trench:   config.Trench{Name: "trench-a"},
		Conduits: []config.Conduit{{Name: "conduit-a", Trench: "trench-a"}},
		Streams:  []config.Stream{{Name: "stream-a", Conduit: "conduit-a", MaxTargets: 10}},
		Flows:    []config.Flow{{Name: "flow-a", Stream: "stream-a", Vips: []string{"vip-a"}}},
		Vips:     []config.Vip{{Name: "vip-a", Address: "20.0.0.1/32", Trench: "trench-a"}},
		Attractors: []config.Attractor{
			{Name: "attractor-a", Trench: "trench-a", Vips: []string{"vip-a"}, Gateways: []string{"gateway-a"}},
		},
		Gateways: []config.Gateway{{Name: "gateway-a", Trench: "trench-a"}},
	}
}

// everything asks for all resources of each kind of trench-a.
func everything() map[kind]query {
	c := &nspv1.Conduit{Trench: trenchA}
	return map[kind]query{
		kindTrench:    queryTrench(trenchA),
		kindConduit:   queryConduit(c),
		kindStream:    queryStream(&nspv1.Stream{Conduit: c}),
		kindFlow:      queryFlow(&nspv1.Flow{Stream: &nspv1.Stream{Conduit: c}}),
		kindVip:       queryVip(&nspv1.Vip{Trench: trenchA}),
		kindAttractor: queryAttractor(&nspv1.Attractor{Trench: trenchA}),
		kindGateway:   queryGateway(&nspv1.Gateway{Trench: trenchA}),
	}
}

// told are the kinds that are answered, or woken since the last time they were asked.
func told(all map[kind]*configurationWatch) (kinds []kind) {
	for k := kindTrench; k <= kindGateway; k++ {
		if _, _, ok, _ := all[k].answers.Next(); ok {
			kinds = append(kinds, k)
		}
	}
	return kinds
}

func watchAll(t *testing.T, c *Configuration) map[kind]*configurationWatch {
	all := map[kind]*configurationWatch{}
	for k, q := range everything() {
		all[k] = &configurationWatch{answers: c.watch(q)}
		t.Cleanup(all[k].answers.Close)
	}
	return all
}

var allKinds = []kind{kindTrench, kindConduit, kindStream, kindFlow, kindVip, kindAttractor, kindGateway}

// A change wakes the watches whose answer it changes, which are those of the resource and of all that bear it.
func TestOnlyChangedAnswersAreTold(t *testing.T) {
	for name, tt := range map[string]struct {
		edit func(*config.Config)
		want []kind
	}{
		"nothing":     {func(*config.Config) {}, nil},
		"trench":      {func(c *config.Config) { c.Trench.Name = "trench-z" }, allKinds},
		"conduit":     {func(c *config.Config) { c.Conduits = append(c.Conduits, config.Conduit{Name: "b", Trench: "trench-a"}) }, []kind{kindConduit}},
		"port NAT":    {func(c *config.Config) { c.Conduits[0].DestinationPortNats = []config.PortNat{{Port: 80}} }, []kind{kindConduit, kindStream, kindFlow}},
		"stream":      {func(c *config.Config) { c.Streams[0].MaxTargets = 20 }, []kind{kindStream, kindFlow}},
		"flow":        {func(c *config.Config) { c.Flows[0].Priority = 5 }, []kind{kindFlow}},
		"vip":         {func(c *config.Config) { c.Vips[0].Address = "20.0.0.2/32" }, []kind{kindFlow, kindVip, kindAttractor}},
		"attractor":   {func(c *config.Config) { c.Attractors = nil }, []kind{kindAttractor}},
		"gateway":     {func(c *config.Config) { c.Gateways[0].BFD = true }, []kind{kindAttractor, kindGateway}},
		"of another":  {func(c *config.Config) { c.Vips = append(c.Vips, config.Vip{Name: "vip-z", Trench: "trench-z"}) }, nil},
		"to nowhere":  {func(c *config.Config) { c.Streams = append(c.Streams, config.Stream{Name: "z", Conduit: "z"}) }, nil},
		"stream goes": {func(c *config.Config) { c.Streams = nil }, []kind{kindStream, kindFlow}},
	} {
		t.Run(name, func(t *testing.T) {
			c := NewConfiguration()
			watches := watchAll(t, c)
			require.Empty(t, told(watches), "nothing is told before it is known")
			c.Set(configured())
			require.Equal(t, allKinds, told(watches))
			next := configured()
			tt.edit(next)
			c.Set(next)
			require.Equal(t, tt.want, told(watches))
		})
	}
}

// An answer that would leave out what was never read, as if it were gone, is not given.
func TestUnreadKeysAreNotTold(t *testing.T) {
	plain := func(c *config.Config) {
		c.Flows[0].Vips, c.Attractors[0].Vips, c.Attractors[0].Gateways = nil, nil, nil
	}
	for name, tt := range map[string]struct {
		unread string
		edit   func(*config.Config)
		want   []kind
	}{
		"trench":                 {config.KeyTrench, nil, nil},
		"conduits":               {config.KeyConduits, nil, []kind{kindTrench, kindVip, kindAttractor, kindGateway}},
		"conduits, no stream":    {config.KeyConduits, func(c *config.Config) { c.Streams = nil; c.Flows = nil }, []kind{kindTrench, kindStream, kindFlow, kindVip, kindAttractor, kindGateway}},
		"streams":                {config.KeyStreams, nil, []kind{kindTrench, kindConduit, kindVip, kindAttractor, kindGateway}},
		"flows":                  {config.KeyFlows, nil, []kind{kindTrench, kindConduit, kindStream, kindVip, kindAttractor, kindGateway}},
		"vips":                   {config.KeyVips, nil, []kind{kindTrench, kindConduit, kindStream, kindGateway}},
		"vips, nobody names one": {config.KeyVips, plain, []kind{kindTrench, kindConduit, kindStream, kindFlow, kindAttractor, kindGateway}},
		"vips of a port NAT": {config.KeyVips, func(c *config.Config) {
			c.Conduits[0].DestinationPortNats = []config.PortNat{{Vips: []string{"vip-a"}}}
		}, []kind{kindTrench, kindGateway}},
		"attractors":              {config.KeyAttractors, nil, []kind{kindTrench, kindConduit, kindStream, kindFlow, kindVip, kindGateway}},
		"gateways":                {config.KeyGateways, nil, []kind{kindTrench, kindConduit, kindStream, kindFlow, kindVip}},
		"gateways, nobody's name": {config.KeyGateways, plain, []kind{kindTrench, kindConduit, kindStream, kindFlow, kindVip, kindAttractor}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := configured()
			if tt.edit != nil {
				tt.edit(cfg)
			}
			cfg.Unread = []string{tt.unread}
			c := NewConfiguration()
			watches := watchAll(t, c)
			c.Set(cfg)
			require.Equal(t, tt.want, told(watches))
		})
	}
}

// A trench without configuration answers as Meridio 1.x does before it has read one, and then to the end.
func TestNoConfigurationIsEmpty(t *testing.T) {
	c := NewConfiguration()
	c.Set(nil)
	require.Equal(t, allKinds, told(watchAll(t, c)))
	for _, q := range everything() {
		require.Zero(t, proto.Size(resolve(nil).answer(q)))
	}
}

// equalNames is the rule of Meridio 1.x, on messages: parents must be there, a name that is missing on either side is equal.
func equalNames(names ...[2]string) bool {
	for _, n := range names {
		if n[0] != "" && n[1] != "" && n[0] != n[1] {
			return false
		}
	}
	return true
}

// TestFilters compares the answers for flows, which have the longest names, with the rule as written above, and checks that
// watches are woken exactly when their answer changes and then agree with a fresh one.
func TestFilters(t *testing.T) {
	name := rapid.SampledFrom([]string{"", "a", "b", "A"})
	rapid.Check(t, func(t *rapid.T) {
		f := &nspv1.Flow{Name: name.Draw(t, "flow"), Priority: 99}
		depth := rapid.IntRange(0, 3).Draw(t, "parents")
		if depth > 0 {
			f.Stream = &nspv1.Stream{Name: name.Draw(t, "stream"), MaxTargets: 7}
		}
		if depth > 1 {
			f.Stream.Conduit = &nspv1.Conduit{Name: name.Draw(t, "conduit")}
		}
		if depth > 2 {
			f.Stream.Conduit.Trench = &nspv1.Trench{Name: name.Draw(t, "trench")}
		}
		q := queryFlow(f)
		c := NewConfiguration()
		w := c.watch(q)
		defer w.Close()
		var last []byte
		for i := range 4 {
			cfg := drawConfig(t, name)
			c.Set(cfg)
			r := resolve(cfg)
			var want []*nspv1.Flow
			for _, have := range r.flows {
				hs, fs := have.GetStream(), f.GetStream()
				if depth == 3 && equalNames([2]string{f.GetName(), have.GetName()}, [2]string{fs.GetName(), hs.GetName()},
					[2]string{fs.GetConduit().GetName(), hs.GetConduit().GetName()},
					[2]string{fs.GetConduit().GetTrench().GetName(), hs.GetConduit().GetTrench().GetName()}) {
					want = append(want, have)
				}
			}
			wire, err := proto.Marshal(&nspv1.FlowResponse{Flows: want})
			require.NoError(t, err)
			got, _, woken, _ := w.Next()
			require.Equal(t, i == 0 || string(wire) != string(last), woken)
			if woken {
				last = got
			}
			require.Equal(t, string(wire), string(last))
			fresh := c.watch(q)
			got, _, ok, _ := fresh.Next()
			fresh.Close()
			require.True(t, ok)
			require.Equal(t, string(wire), string(got))
		}
	})
}

func drawConfig(t *rapid.T, name *rapid.Generator[string]) *config.Config {
	c := &config.Config{Trench: config.Trench{Name: name.Draw(t, "trench")}}
	for range rapid.IntRange(0, 2).Draw(t, "conduits") {
		c.Conduits = append(c.Conduits, config.Conduit{Name: name.Draw(t, "name"), Trench: name.Draw(t, "of")})
	}
	for range rapid.IntRange(0, 3).Draw(t, "streams") {
		c.Streams = append(c.Streams, config.Stream{Name: name.Draw(t, "name"), Conduit: name.Draw(t, "of")})
	}
	for range rapid.IntRange(0, 4).Draw(t, "flows") {
		c.Flows = append(c.Flows, config.Flow{Name: name.Draw(t, "name"), Stream: name.Draw(t, "of")})
	}
	return c
}

// Whatever stands in the ConfigMap can be told.
func FuzzResolve(f *testing.F) {
	f.Add(config.KeyConduits, "items:\n- trench: a\n  destination-port-nats: [{vips: [v]}]\n")
	f.Add(config.KeyFlows, "items:\n- name: !!binary gIGC\n- ~\n")
	f.Add(config.KeyGateways, "items:\n- bfd: true\n  bgp-auth: {}\n  hold-time: 18446744073709551615\n")
	f.Fuzz(func(t *testing.T, key, text string) {
		cfg, _ := config.Parse(map[string]string{config.KeyTrench: "name: a", key: text}, nil)
		c := NewConfiguration()
		c.Set(cfg)
		for k, q := range everything() {
			q.names = [4]string{}
			w := c.watch(q)
			_, _, ok, _ := w.Next()
			w.Close()
			require.Equal(t, !resolve(cfg).unread[k], ok)
		}
	})
}

// Two watches show one version at a time: what is asked after a change was seen is of that version or a later one.
func TestVersionsAreWhole(t *testing.T) {
	n := start(t, setup{})
	client := nspv1.NewConfigurationManagerClient(n.dial())
	streams, err := client.WatchStream(n.ctx(), &nspv1.Stream{Conduit: &nspv1.Conduit{Trench: trenchA}})
	require.NoError(t, err)
	const versions = 200
	go func() {
		for i := uint32(1); i <= versions; i++ {
			c := configured()
			c.Streams[0].MaxTargets, c.Flows[0].Priority = i, int32(i)
			n.configuration.Set(c)
		}
	}()
	for seen := uint32(0); seen < versions; {
		list, err := streams.Recv()
		require.NoError(t, err)
		seen = list.GetStreams()[0].GetMaxTargets()
		flows, err := client.WatchFlow(n.ctx(), &nspv1.Flow{Stream: list.GetStreams()[0]})
		require.NoError(t, err)
		first, err := flows.Recv()
		require.NoError(t, err)
		flow := first.GetFlows()[0]
		require.GreaterOrEqual(t, uint32(flow.GetPriority()), seen)
		require.Equal(t, uint32(flow.GetPriority()), flow.GetStream().GetMaxTargets())
	}
}

// A watcher that does not read delays nobody, and gets the latest state when it reads again. // D7
func TestStalledConfigurationWatcher(t *testing.T) {
	n := start(t, setup{})
	filter := &nspv1.Vip{Trench: trenchA}
	stalled, err := nspv1.NewConfigurationManagerClient(n.dial()).WatchVip(n.ctx(), filter)
	require.NoError(t, err)
	reading, err := nspv1.NewConfigurationManagerClient(n.dial()).WatchVip(n.ctx(), filter)
	require.NoError(t, err)
	big := strings.Repeat("x", 1<<20)
	const versions = 30
	for i := range versions {
		c := configured()
		c.Vips = []config.Vip{{Name: fmt.Sprint("vip-", i), Address: big, Trench: "trench-a"}}
		n.configuration.Set(c)
		for {
			list, err := reading.Recv()
			require.NoError(t, err)
			if list.GetVips()[0].GetName() == fmt.Sprint("vip-", i) {
				break
			}
		}
	}
	lists := 0
	for name := ""; name != fmt.Sprint("vip-", versions-1); lists++ {
		list, err := stalled.Recv()
		require.NoError(t, err)
		name = list.GetVips()[0].GetName()
	}
	require.Less(t, lists, versions, "what was missed was left out")
}

// All seven are served, and end with the server.
func TestConfigurationManager(t *testing.T) {
	n := start(t, setup{})
	client := nspv1.NewConfigurationManagerClient(n.dial())
	n.configuration.Set(configured())
	conduit := &nspv1.Conduit{Trench: trenchA}
	trench, err := client.WatchTrench(n.ctx(), trenchA)
	first(t, trench, err, func(r *nspv1.TrenchResponse) string { return r.GetTrench().GetName() }, "trench-a")
	conduits, err := client.WatchConduit(n.ctx(), conduit)
	first(t, conduits, err, func(r *nspv1.ConduitResponse) string { return r.GetConduits()[0].GetName() }, "conduit-a")
	streams, err := client.WatchStream(n.ctx(), &nspv1.Stream{Conduit: conduit})
	first(t, streams, err, func(r *nspv1.StreamResponse) string { return r.GetStreams()[0].GetName() }, "stream-a")
	flows, err := client.WatchFlow(n.ctx(), &nspv1.Flow{Stream: &nspv1.Stream{Conduit: conduit}})
	first(t, flows, err, func(r *nspv1.FlowResponse) string { return r.GetFlows()[0].GetName() }, "flow-a")
	vips, err := client.WatchVip(n.ctx(), &nspv1.Vip{Trench: trenchA})
	first(t, vips, err, func(r *nspv1.VipResponse) string { return r.GetVips()[0].GetName() }, "vip-a")
	attractors, err := client.WatchAttractor(n.ctx(), &nspv1.Attractor{Trench: trenchA})
	first(t, attractors, err, func(r *nspv1.AttractorResponse) string { return r.GetAttractors()[0].GetName() }, "attractor-a")
	gateways, err := client.WatchGateway(n.ctx(), &nspv1.Gateway{Trench: trenchA})
	first(t, gateways, err, func(r *nspv1.GatewayResponse) string { return r.GetGateways()[0].GetName() }, "gateway-a")
	nothing, err := client.WatchGateway(n.ctx(), &nspv1.Gateway{})
	first(t, nothing, err, func(r *nspv1.GatewayResponse) string { return fmt.Sprint(len(r.GetGateways())) }, "0")

	go func() { _ = n.stop() }()
	_, err = nothing.Recv()
	require.Equal(t, codes.Unavailable, status.Code(err))
}

// first checks the first message of a watch.
func first[R any](t *testing.T, watch interface{ Recv() (*R, error) }, err error, of func(*R) string, want string) {
	t.Helper()
	require.NoError(t, err)
	r, err := watch.Recv()
	require.NoError(t, err)
	require.Equal(t, want, of(r))
}

// Calls wait until the server is opened, within their deadline; health does not.
func TestNothingIsAnsweredBeforeTheServerIsOpened(t *testing.T) {
	opened := make(chan struct{})
	n := start(t, setup{opened: opened})
	n.configuration.Set(configured())
	conn := n.dial()
	registry := nspv1.NewTargetRegistryClient(conn)
	registered := make(chan error, 1)
	go func() {
		_, err := registry.Register(n.ctx(), registration(x1, 1, "172.16.0.1/24"))
		registered <- err
	}()
	lists := n.legacy(conn, &nspv1.Target{Status: nspv1.Target_ANY})
	trench, err := nspv1.NewConfigurationManagerClient(conn).WatchTrench(n.ctx(), trenchA)
	require.NoError(t, err)
	_, err = grpc_health_v1.NewHealthClient(conn).Check(n.ctx(), &grpc_health_v1.HealthCheckRequest{})
	require.NoError(t, err)
	short, cancel := context.WithTimeout(n.ctx(), 20*time.Millisecond)
	defer cancel()
	_, err = registry.Unregister(short, registration(x2, 1, "172.16.0.9/24"))
	require.Equal(t, codes.DeadlineExceeded, status.Code(err))
	select {
	case err := <-registered:
		t.Fatalf("answered: %v", err)
	default:
	}
	close(opened)
	require.NoError(t, <-registered)
	n.next(lists)
	_, err = trench.Recv()
	require.NoError(t, err)
}
