package server

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/test/netns"
)

// Receivers whose packets are dropped, so that nothing ever says that they are gone, are found by keepalive and give back all that
// they held: one that nothing is sent to but heartbeats, and one for which more is under way than the network takes in.
func TestHalfOpenConnections(t *testing.T) {
	servers, clients := netns.Test(t, "servers"), netns.Test(t, "clients")
	require.NoError(t, netns.Cable(netns.End{Space: servers, Link: "eth0", Addresses: []string{"10.9.0.1/24"}},
		netns.End{Space: clients, Link: "eth0", Addresses: []string{"10.9.0.2/24"}}))
	n := start(t, setup{mode: auth.None})
	var l net.Listener
	require.NoError(t, servers.Do(func() (err error) {
		l, err = (&net.ListenConfig{}).Listen(t.Context(), "tcp", "10.9.0.1:0")
		return err
	}))
	go func() { _ = n.server.grpc.Serve(limitedListener{l, n.server}) }() // it ends with the server
	dial := grpc.WithContextDialer(func(ctx context.Context, _ string) (c net.Conn, err error) {
		err = clients.Do(func() error {
			c, err = (&net.Dialer{}).DialContext(ctx, "tcp", l.Addr().String())
			return err
		})
		return c, err
	})
	quiet, err := targetpoolv1.NewTargetPoolClient(n.dial(dial)).Watch(n.ctx())
	require.NoError(t, err)
	require.NoError(t, quiet.Send(&targetpoolv1.TargetPoolWatchRequest{Workload: pod("pod-2")}))
	_, err = quiet.Recv()
	require.NoError(t, err)
	n.next(n.legacy(n.dial(dial), &nspv1.Target{Type: nspv1.Target_FRONTEND, Status: nspv1.Target_ANY}))
	open := func() int {
		n.server.watches.mu.Lock()
		defer n.server.watches.mu.Unlock()
		return n.server.watches.total
	}
	require.Equal(t, 2, open())

	link, err := clients.Netlink().LinkByName("eth0")
	require.NoError(t, err)
	require.NoError(t, clients.Netlink().LinkSetDown(link))
	began := time.Now()
	near := n.dial()
	for i := range 60 { // each is sent as a whole list
		n.register(near, &nspv1.Target{
			Type: nspv1.Target_FRONTEND, Ips: []string{strings.Repeat("x", 200) + string(rune('a'+i%26)) + strings.Repeat("y", i%40)},
			Context: map[string]string{"text": strings.Repeat("z", 60_000)},
		})
	}
	const keepalive = 30 * time.Second
	require.Eventually(t, func() bool { return open() == 0 }, 3*keepalive, 10*time.Millisecond)
	t.Logf("found after %s", time.Since(began).Round(time.Second))
	n.server.connections.mu.Lock()
	defer n.server.connections.mu.Unlock()
	require.Equal(t, 1, n.server.connections.total, "the one from nearby")
}
