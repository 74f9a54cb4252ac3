package registry

import (
	"errors"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/pkg/stream"
)

func TestCanonicalAddresses(t *testing.T) {
	for _, c := range []struct {
		ips  []string
		want string
	}{
		{[]string{"172.16.1.1/24"}, "172.16.1.1/24"}, // an address and its length, not the network
		{[]string{"172.16.1.1"}, "172.16.1.1/32"},
		{[]string{"fd00:0000::0001:0012"}, "fd00::1:12/128"},
		{[]string{"FD00::1/64", "10.0.0.1"}, "10.0.0.1/32,fd00::1/64"},
		{[]string{"10.0.0.1", "10.0.0.1/32", "10.0.0.1"}, "10.0.0.1/32"},
		{[]string{"10.0.0.2", "10.0.0.1"}, "10.0.0.1/32,10.0.0.2/32"},
		{[]string{"10.0.0.1/24", "10.0.0.1/25"}, "10.0.0.1/24,10.0.0.1/25"},
		{[]string{"::ffff:10.0.0.1"}, "10.0.0.1/32"},
		{[]string{"::ffff:10.0.0.1/120"}, "10.0.0.1/24"},
	} {
		e := want(t, "x", "192.0.2.1", "", Enabled)
		k, err := KeyOf(Target{Stream: e.Stream, IPs: c.ips}, "ns")
		require.NoError(t, err, c.ips)
		require.Equal(t, c.want, k.Addrs, c.ips)
	}
}

func TestKeyScopeAndNamespace(t *testing.T) {
	k, err := KeyOf(Target{Scope: "stamped", Stream: stream.Key{Trench: "t", Conduit: "c", Name: "s"}, IPs: []string{"10.0.0.1"}}, "ns")
	require.NoError(t, err)
	require.Equal(t, "t", k.Scope, "the stream's trench goes first")
	require.Equal(t, "ns", k.Stream.Namespace)
	k, err = KeyOf(Target{Scope: "stamped", Type: Frontend, IPs: []string{"host"}}, "ns")
	require.NoError(t, err)
	require.Equal(t, Key{Scope: "stamped", Type: Frontend, Stream: stream.Key{Namespace: "ns"}, Addrs: `"host"`}, k)
}

func TestInvalid(t *testing.T) { // P29
	st := stream.Key{Trench: "t", Conduit: "c", Name: "s"}
	ip := []string{"10.0.0.1"}
	many := make([]string, 4097)
	for i := range many {
		many[i] = "10.0.0.1"
	}
	for name, c := range map[string]struct {
		target Target
		says   string
	}{
		"no addresses":    {Target{Stream: st}, "at least one IP"},
		"empty address":   {Target{Stream: st, IPs: []string{""}}, "no address"},
		"separator":       {Target{Stream: st, IPs: []string{"10.0.0.1;10.0.0.2"}}, "no address"},
		"comma":           {Target{Stream: st, IPs: []string{"10.0.0.1,10.0.0.2"}}, "no address"},
		"zone":            {Target{Stream: st, IPs: []string{"fe80::1%eth0"}}, "without zone"},
		"zone in prefix":  {Target{Stream: st, IPs: []string{"fe80::1%eth0/64"}}, "without zone"},
		"long prefix":     {Target{Stream: st, IPs: []string{"10.0.0.1/33"}}, "no address"},
		"one bad of two":  {Target{Stream: st, IPs: []string{"10.0.0.1", "host"}}, `"host" is no address`},
		"no stream":       {Target{IPs: ip}, "name its stream"},
		"no conduit":      {Target{Stream: stream.Key{Trench: "t", Name: "s"}, IPs: ip}, "name its stream"},
		"no trench":       {Target{Stream: stream.Key{Conduit: "c", Name: "s"}, IPs: ip}, "name its stream"},
		"other namespace": {Target{Stream: stream.Key{Namespace: "o", Trench: "t", Conduit: "c", Name: "s"}, IPs: ip}, "another namespace"},
		"large context":   {Target{Stream: st, IPs: ip, Context: map[string]string{"k": strings.Repeat("x", 8192)}}, "8193 bytes"},
		"many addresses":  {Target{Stream: st, IPs: many}, "4097 addresses"},
		"not UTF-8":       {Target{Stream: st, IPs: ip, Context: map[string]string{"k": "\xff"}}, "UTF-8"},
		"key not UTF-8":   {Target{Stream: st, IPs: ip, Context: map[string]string{"\xff": "v"}}, "UTF-8"},
		"name not UTF-8":  {Target{Stream: stream.Key{Trench: "t", Conduit: "c", Name: "\xff"}, IPs: ip}, "UTF-8"},
		"host not UTF-8":  {Target{Type: Frontend, IPs: []string{"host", "\xff"}}, "UTF-8"},
		"long host":       {Target{Type: Frontend, IPs: []string{strings.Repeat("h", 254), "host"}}, "254 characters"},
		"long scope":      {Target{Type: Frontend, Scope: strings.Repeat("t", 254), IPs: []string{"host"}}, "254 characters"},
		"long trench":     {Target{Stream: stream.Key{Trench: strings.Repeat("t", 254), Conduit: "c", Name: "s"}, IPs: ip}, "254 characters"},
		"long conduit":    {Target{Stream: stream.Key{Trench: "t", Conduit: strings.Repeat("c", 254), Name: "s"}, IPs: ip}, "254 characters"},
		"long stream":     {Target{Stream: stream.Key{Trench: "t", Conduit: "c", Name: strings.Repeat("s", 254)}, IPs: ip}, "254 characters"},
		"larger context":  {Target{Type: Frontend, IPs: []string{"host"}, Context: map[string]string{"k": strings.Repeat("x", 8*8192)}}, "65537 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := newEntry(c.target, Caller{}, "ns", Limits{}.withDefaults())
			require.ErrorIs(t, err, ErrInvalid)
			require.ErrorContains(t, err, c.says)
			require.Less(t, len(err.Error()), 1000)
		})
	}
}

// What is as large as may be is taken.
func TestTheLargestIsTaken(t *testing.T) {
	long := strings.Repeat("x", 253)
	many := slices.Repeat([]string{"10.0.0.1"}, 4096)
	for name, target := range map[string]Target{
		"DEFAULT":  {Stream: stream.Key{Trench: long, Conduit: long, Name: long}, IPs: many, Context: map[string]string{"k": strings.Repeat("x", 8191)}},
		"FRONTEND": {Type: Frontend, Scope: long, IPs: []string{long}, Context: map[string]string{"k": strings.Repeat("x", 8*8192-1)}},
	} {
		e, err := newEntry(target, Caller{}, "ns", Limits{}.withDefaults())
		require.NoError(t, err, name)
		require.Equal(t, target.IPs, e.IPs, name)
	}
	_, err := newEntry(Target{Type: Frontend, Context: map[string]string{"k": "v"}}, Caller{}, "ns", Limits{Context: math.MaxInt})
	require.NoError(t, err, "without a limit there is none for others either")
}

// TestOtherTypesAreFree: load balancers register host names without a stream, and 1.x keeps whatever comes.
func TestOtherTypesAreFree(t *testing.T) { // P29
	keys := map[Key][]string{}
	for _, ips := range [][]string{nil, {""}, {"host-a"}, {"a;b"}, {"a", "b"}, {"a,b"}, {`a","b`}, {`a"`, `"b`}, {"10.0.0.1/33"}} {
		target := Target{Type: Frontend, IPs: ips, Context: map[string]string{"identifier": strings.Repeat("x", 10_000)}}
		e, err := newEntry(target, Caller{}, "ns", Limits{}.withDefaults())
		require.NoError(t, err, ips)
		require.Empty(t, e.Prefixes)
		require.NotContains(t, keys, e.Key, ips)
		require.Equal(t, ips, e.IPs)
		keys[e.Key] = ips
	}
	a, _ := KeyOf(Target{Type: 9, IPs: []string{"FD00::1", "host"}}, "ns")
	b, _ := KeyOf(Target{Type: 9, IPs: []string{"host", "fd00::1/128", "host"}}, "ns")
	require.Equal(t, a, b)
	c, _ := KeyOf(Target{Type: Frontend, IPs: []string{"host", "fd00::1"}}, "ns")
	require.NotEqual(t, a, c)
}

func TestDerive(t *testing.T) {
	e := want(t, "x", "10.0.0.1/8", "7", Enabled)
	bare := e
	bare.Prefixes, bare.Identifier = nil, 0
	got, err := derive(bare)
	require.NoError(t, err)
	require.Equal(t, &e, got)
	bare.Addrs = "10.0.0.2/8"
	_, err = derive(bare)
	require.ErrorIs(t, err, ErrInvalid)
}

// FuzzTarget: the canonical form is its own canonical form, order and repetition do not matter, and two sets have one key
// only if they are the same set of addresses.
func FuzzTarget(f *testing.F) {
	f.Add(int32(0), "10.0.0.1/24\nfd00::1", "10.0.0.1\nfd00::1", "t", "7")
	f.Add(int32(0), "::ffff:1.2.3.4\n1.2.3.4", "1.2.3.4", "t", "x")
	f.Add(int32(1), "host\na\",\"b", "host\na\nb", "", "")
	f.Add(int32(9), "", "\n", "a/b", "\xff")
	f.Fuzz(func(t *testing.T, kind int32, first, second, trench, identifier string) {
		build := func(ips []string) (Entry, error) {
			return newEntry(Target{
				Type: Type(kind), Stream: stream.Key{Trench: trench, Conduit: "c", Name: "s"}, IPs: ips,
				Context: map[string]string{"identifier": identifier},
			}, Caller{}, "ns", Limits{}.withDefaults())
		}
		a, err := build(strings.Split(first, "\n"))
		if err != nil {
			require.True(t, errors.Is(err, ErrInvalid))
			return
		}
		reversed := strings.Split(first+"\n"+first, "\n")
		slices.Reverse(reversed)
		r, err := build(reversed)
		if err == nil { // twice as many may be too many
			require.Equal(t, a.Key, r.Key)
		}
		if a.Type == Default {
			again, err := build(strings.Split(a.Addrs, ","))
			require.NoError(t, err)
			require.Equal(t, a.Key, again.Key)
			require.Equal(t, a.Prefixes, again.Prefixes)
			require.Equal(t, a.Identifier, again.Identifier)
		}
		if b, err := build(strings.Split(second, "\n")); err == nil {
			require.Equal(t, maps.Equal(meant(a.IPs), meant(b.IPs)), a.Key == b.Key)
		}
	})
}

// meant is the set that the strings stand for.
func meant(ips []string) map[string]bool {
	set := map[string]bool{}
	for _, s := range ips {
		if p, err := ParseAddress(s); err == nil {
			s = p.String()
		}
		set[s] = true
	}
	return set
}
