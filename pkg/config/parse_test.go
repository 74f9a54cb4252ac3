package config

import (
	"maps"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.yaml.in/yaml/v2"

	"github.com/nordix/meridio-nsp/pkg/stream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func full() map[string]string {
	return map[string]string{
		KeyTrench:   "name: trench-a\n",
		KeyConduits: "items:\n- name: conduit-a\n  trench: trench-a\n  destination-port-nats:\n  - port: 80\n    target-port: 8080\n    vips: [vip-a]\n    protocol: tcp\n",
		KeyStreams:  "items:\n- name: stream-a\n  conduit: conduit-a\n  max-targets: 10\n- name: stream-b\n  conduit: conduit-a\n",
		KeyFlows: "items:\n- name: flow-a\n  source-subnets: [\"0.0.0.0/0\"]\n  destination-port-ranges: [\"4000\"]\n  source-port-ranges: [\"1024-65535\"]\n" +
			"  protocols: [tcp]\n  vips: [vip-a]\n  priority: 1\n  stream: stream-a\n  byte-matches: [\"tcp[4:2] & 0xff = 5\"]\n",
		KeyVips:       "items:\n- name: vip-a\n  address: 20.0.0.1/32\n  trench: trench-a\n",
		KeyAttractors: "items:\n- name: attractor-a\n  vips: [vip-a]\n  gateways: [gateway-a]\n  trench: trench-a\n",
		KeyGateways: "items:\n- name: gateway-a\n  address: 169.254.100.150\n  remote-asn: 4248829953\n  local-asn: 8103\n  remote-port: 10179\n" +
			"  local-port: 10179\n  ip-family: ipv4\n  bfd: true\n  min-tx: 300\n  min-rx: 300\n  multiplier: 5\n  protocol: bgp\n  hold-time: 24\n" +
			"  trench: trench-a\n  bgp-auth:\n    key: k\n    source: s\n",
	}
}

func TestParseFull(t *testing.T) {
	c, errs := Parse(full(), nil)
	require.Empty(t, errs)
	require.Equal(t, &Config{
		Trench: Trench{Name: "trench-a"},
		Conduits: []Conduit{{Name: "conduit-a", Trench: "trench-a",
			DestinationPortNats: []PortNat{{Port: 80, TargetPort: 8080, Vips: []string{"vip-a"}, Protocol: "tcp"}}}},
		Streams: []Stream{{Name: "stream-a", Conduit: "conduit-a", MaxTargets: 10}, {Name: "stream-b", Conduit: "conduit-a"}},
		Flows: []Flow{{Name: "flow-a", SourceSubnets: []string{"0.0.0.0/0"}, DestinationPortRanges: []string{"4000"},
			SourcePortRanges: []string{"1024-65535"}, Protocols: []string{"tcp"}, Vips: []string{"vip-a"}, Priority: 1,
			Stream: "stream-a", ByteMatches: []string{"tcp[4:2] & 0xff = 5"}}},
		Vips:       []Vip{{Name: "vip-a", Address: "20.0.0.1/32", Trench: "trench-a"}},
		Attractors: []Attractor{{Name: "attractor-a", Vips: []string{"vip-a"}, Gateways: []string{"gateway-a"}, Trench: "trench-a"}},
		Gateways: []Gateway{{Name: "gateway-a", Address: "169.254.100.150", RemoteASN: 4248829953, LocalASN: 8103, RemotePort: 10179,
			LocalPort: 10179, IPFamily: "ipv4", BFD: true, Protocol: "bgp", HoldTime: 24, MinTx: 300, MinRx: 300, Multiplier: 5,
			Trench: "trench-a", BGPAuth: &BGPAuth{Key: "k", Source: "s"}}},
	}, c)
	require.Equal(t, map[stream.Key]uint32{{Namespace: "ns", Trench: "trench-a", Conduit: "conduit-a", Name: "stream-a"}: 10},
		c.MaxTargets("ns", "trench-a"))
}

// A malformed key spoils itself only; the values are those that Meridio 1.x refuses.
func TestParseMalformedKey(t *testing.T) {
	good, _ := Parse(full(), nil)
	for name, tc := range map[string]struct{ key, text string }{
		"yaml":                 {KeyStreams, "items:\n- name: [\n"},
		"unknown field":        {KeyStreams, "items:\n- name: stream-a\n  conduit: conduit-a\n  max-targets: 10\n  colour: blue\n"},
		"negative max-targets": {KeyStreams, "items:\n- name: stream-a\n  conduit: conduit-a\n  max-targets: -1\n"},
		"absurd max-targets":   {KeyStreams, "items:\n- name: stream-a\n  conduit: conduit-a\n  max-targets: 4294967296\n"},
		"repeated field":       {KeyStreams, "items:\n- name: stream-a\n  name: stream-b\n"},
		"no list":              {KeyVips, "items: 7\n"},
		"case":                 {KeyTrench, "Name: trench-a\n"},
		"no text":              {KeyFlows, "items:\n- name: f\n  vips: [!!binary gIGC]\n"},
		"no text, nested":      {KeyGateways, "items:\n- name: g\n  bgp-auth: {key: !!binary gIGC}\n"},
		"port":                 {KeyGateways, "items:\n- name: g\n  remote-port: 65536\n"},
	} {
		t.Run(name, func(t *testing.T) {
			data := full()
			data[tc.key] = tc.text
			data[KeyAttractors] = ""
			want := *good
			want.Attractors = nil

			c, errs := Parse(data, good)
			require.Len(t, errs, 1)
			require.ErrorContains(t, errs[0], "key "+tc.key+":")
			require.Equal(t, &want, c, "the last good value stays, the other key of the same write counts")

			first, errs := Parse(data, nil)
			require.Len(t, errs, 1)
			require.Equal(t, []string{tc.key}, first.Unread)
			require.False(t, first.IsRead(tc.key))
			require.True(t, first.IsRead(KeyAttractors))

			again, _ := Parse(data, first)
			require.False(t, again.IsRead(tc.key), "unread stays unread")
			mended, errs := Parse(full(), again)
			require.Empty(t, errs)
			require.Equal(t, good, mended)
		})
	}
}

func TestParseEmpty(t *testing.T) {
	good, _ := Parse(full(), nil)
	for name, data := range map[string]map[string]string{"nil": nil, "empty keys": {KeyStreams: "", KeyTrench: ""}, "unknown key": {"foo": "]["}} {
		t.Run(name, func(t *testing.T) {
			c, errs := Parse(data, good)
			require.Empty(t, errs)
			require.Equal(t, &Config{}, c)
		})
	}
}

// Whatever the text: no panic, keys independent of each other, and what was read means the same when written again.
func FuzzParse(f *testing.F) {
	for key, text := range full() {
		f.Add(key, text)
	}
	f.Add(KeyStreams, "items:\n- ~\n- {}\n")
	f.Add(KeyStreams, "items: &a\n- max-targets: -1\n- *a\n")
	good, _ := Parse(full(), nil)
	f.Fuzz(func(t *testing.T, key, text string) {
		data := full()
		data[key] = text
		c, errs := Parse(data, good)
		if len(errs) > 0 {
			require.Len(t, errs, 1)
			require.Equal(t, good, c)
			return
		}
		others := maps.Clone(data)
		delete(others, key)
		without, _ := Parse(others, nil)
		for _, k := range Keys {
			if k != key {
				require.Equal(t, value(good, k), value(c, k))
				require.Equal(t, value(good, k), value(without, k))
			}
		}
		if value(c, key) == nil {
			return // an unknown key
		}
		again, errs := Parse(map[string]string{key: written(t, c, key)}, nil)
		require.Empty(t, errs)
		require.Equal(t, written(t, c, key), written(t, again, key))
	})
}

func written(t *testing.T, c *Config, key string) string {
	t.Helper()
	v := value(c, key)
	if key != KeyTrench {
		v = map[string]any{"items": v}
	}
	b, err := yaml.Marshal(v)
	require.NoError(t, err)
	return string(b)
}

func value(c *Config, key string) any {
	return map[string]any{KeyTrench: c.Trench, KeyConduits: c.Conduits, KeyStreams: c.Streams, KeyFlows: c.Flows, KeyVips: c.Vips,
		KeyAttractors: c.Attractors, KeyGateways: c.Gateways}[key]
}
