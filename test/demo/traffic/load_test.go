package traffic

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/test/netns"
)

// While the application lives, everything is taken; when it has died, what comes is seen and lost there.
func TestLoadOnRealPackets(t *testing.T) {
	client, target := netns.Test(t, "client"), netns.Test(t, "target")
	netns.Connect(t, netns.End{Space: client, Link: "eth0", Addresses: []string{"10.0.0.1/24"}},
		netns.End{Space: target, Link: "eth0", Addresses: []string{"10.0.0.2/24"}})
	began := time.Now()
	udp, tcp := NewLedger(began), NewLedger(began)
	to := netip.MustParseAddrPort("10.0.0.2:5000")
	sink, err := OpenSink(SinkConfig{Space: target, Link: "eth0", Number: 7, At: to, UDP: udp})
	require.NoError(t, err)
	defer sink.Close()
	require.NoError(t, sink.Live())
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	load := Load{Space: client, To: to, Packets: 1000, Connections: 100, Flows: 10, UDP: udp, TCP: tcp}
	go func() { done <- load.Run(ctx) }()
	wait := func(what string, holds func() bool) {
		t.Helper()
		require.Eventually(t, holds, 10*time.Second, 5*time.Millisecond, what)
	}
	wait("the neighbour is found", func() bool { return udp.Count(began, time.Now()).Took[7] > 0 })
	flows := time.Now()
	wait("all is taken", func() bool {
		return udp.Count(flows, time.Now()).Took[7] > 200 && tcp.Count(flows, time.Now()).Took[7] > 20
	})
	sink.Die()
	died := time.Now()
	wait("all is lost", func() bool {
		u, c := udp.Count(died, time.Now().Add(-Grace)), tcp.Count(died, time.Now().Add(-Grace))
		return u.Lost[7] > 100 && c.Lost[Nowhere] > 5
	})
	lived := time.Now()
	require.NoError(t, sink.Live())
	wait("all is taken again", func() bool { return udp.Count(lived, time.Now()).Took[7] > 100 })
	stop()
	require.NoError(t, <-done)
	require.Empty(t, udp.Count(flows, died.Add(-Grace)).Lost)
	u := udp.Count(died, lived)
	require.Equal(t, map[int]int{7: u.Sent}, u.Lost)
}

func TestParseOnlyTheLoad(t *testing.T) {
	at := netip.MustParseAddrPort("20.0.0.1:5000")
	packet := func(change func([]byte)) []byte {
		b := make([]byte, 32)
		b[0], b[9] = 0x45, 17
		copy(b[16:], []byte{20, 0, 0, 1})
		b[22], b[23] = 5000>>8, 5000&255
		b[31] = 9
		change(b)
		return b
	}
	number, ok := parse(packet(func([]byte) {}), at)
	require.True(t, ok)
	require.EqualValues(t, 9, number)
	for name, change := range map[string]func([]byte){
		"TCP":             func(b []byte) { b[9] = 6 },
		"another address": func(b []byte) { b[19] = 2 },
		"another port":    func(b []byte) { b[23]++ },
		"IPv6":            func(b []byte) { b[0] = 0x65 },
		"a long header":   func(b []byte) { b[0] = 0x4f },
		"a short header":  func(b []byte) { b[0] = 0x40 },
	} {
		_, ok := parse(packet(change), at)
		require.False(t, ok, name)
	}
	for n := range 32 {
		_, ok := parse(packet(func([]byte) {})[:n], at)
		require.False(t, ok, n)
	}
}
