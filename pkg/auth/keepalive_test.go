package auth_test

import (
	"context"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/test/bufconn"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/registry/memory"
	nsp "github.com/nordix/meridio-nsp/pkg/server"
)

// observer implements server.Observer and looks at nothing.
type observer struct{}

func (observer) Watching(string) func()               { return func() {} }
func (observer) Sent(string, int)                     {}
func (observer) Called(string, string, time.Duration) {}

// late breaks the circle of registry and engine.
type late struct{ *engine.Engine }

// A 1.x client watches for days without a word and pings every 20 s: gRPC's own policy would throw it out, here over mTLS.
func TestQuietClientStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := authority(t, "example.org")
		source := auth.NewStatic(&workloadapi.X509Context{
			SVIDs: []*x509svid.SVID{svid(t, ca, nspPath, time.Hour)}, Bundles: x509bundle.NewSet(ca.Bundle()),
		})
		sink := &late{}
		targets := registry.New(registry.Config{Store: memory.New(), Sink: sink, Namespace: "red", Timeout: 2 * time.Hour})
		saved, err := targets.Load(t.Context())
		require.NoError(t, err)
		sink.Engine = engine.New(engine.Config{
			Namespace: "red", Namespaces: []string{"red"}, WantConfig: func(string) {}, Remember: targets.Remember,
		}, saved.Entries)
		sink.Post(engine.NamespaceSynced{Namespace: "red"})
		server := nsp.New(nsp.Config{
			Targets: sink.Engine, Registry: targets, Namespace: "red", Epoch: "e", Auth: auth.PeerAddress,
			Credentials: source.Server(nil), Observer: observer{}, Log: slog.New(slog.DiscardHandler), Grace: time.Second,
		})
		l := bufconn.Listen(1 << 16)
		stops := []func(){
			background(t, sink.Run), background(t, targets.Run),
			background(t, func(ctx context.Context) error { return server.Serve(ctx, l) }),
		}

		var dialled atomic.Int64
		conn, err := grpc.NewClient("passthrough:///nsp",
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
				dialled.Add(1)
				return l.DialContext(ctx)
			}),
			grpc.WithTransportCredentials(as(svid(t, ca, "/ns/red/sa/tapa", time.Hour), ca.Bundle())),
			grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, PermitWithoutStream: true}))
		require.NoError(t, err)
		client := nspv1.NewTargetRegistryClient(conn)
		watching, end := context.WithCancel(t.Context())
		watch, err := client.Watch(watching, &nspv1.Target{Type: nspv1.Target_FRONTEND, Status: nspv1.Target_ANY})
		require.NoError(t, err)
		list, err := watch.Recv()
		require.NoError(t, err)
		require.Empty(t, list.GetTargets())

		time.Sleep(50 * time.Minute) // of the bubble's clock
		_, err = client.Register(t.Context(), &nspv1.Target{Ips: []string{"fe-1"}, Type: nspv1.Target_FRONTEND})
		require.NoError(t, err)
		list, err = watch.Recv()
		require.NoError(t, err)
		require.Len(t, list.GetTargets(), 1, "the watch of 50 minutes ago goes on")
		end()
		time.Sleep(9 * time.Minute) // without a stream
		_, err = client.Register(t.Context(), &nspv1.Target{Ips: []string{"fe-1"}, Type: nspv1.Target_FRONTEND})
		require.NoError(t, err)
		require.EqualValues(t, 1, dialled.Load(), "over the same connection")

		require.NoError(t, conn.Close())
		for i := range stops {
			stops[len(stops)-1-i]()
		}
	})
}

// background runs something until the returned function is called, which waits for the end.
func background(t *testing.T, run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	return func() {
		cancel()
		require.NoError(t, <-ended)
	}
}
