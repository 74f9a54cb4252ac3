package conformance

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
)

// Run tests a server of nsp.v1. start makes a fresh one with an empty registry, whose trench-a has conduit-a with stream-a and stream-b, each
// with max-targets 10, and cleans up after itself. The server must let entries live for a minute or more.
func Run(t *testing.T, start func(t *testing.T) Target) {
	all, err := Transcripts()
	require.NoError(t, err)
	target := start(t)
	for _, name := range timeless {
		t.Run(name, func(t *testing.T) {
			defer sweep(t, target)
			r := &Replay{Target: registryOnly{target}, Transcript: all[name], Await: await}
			if one, ok := target.(OneTrench); ok {
				r.OneTrench = one.OneTrench()
			}
			require.NoError(t, r.Run(t.Context()))
		})
	}
	t.Run("histories", func(t *testing.T) { testHistories(t, target) })
}

// sweep unregisters everything.
func sweep(t *testing.T, target Target) {
	conn, err := target.Dial()
	require.NoError(t, err)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	registry := nspv1.NewTargetRegistryClient(conn)
	const odd = 9 // a type that a recorded client made up
	for _, kind := range []nspv1.Target_Type{nspv1.Target_DEFAULT, nspv1.Target_FRONTEND, odd} {
		watch, err := registry.Watch(ctx, &nspv1.Target{Status: nspv1.Target_ANY, Type: kind}, grpc.WaitForReady(true))
		require.NoError(t, err)
		for {
			list, err := watch.Recv()
			require.NoError(t, err)
			if len(list.GetTargets()) == 0 {
				break
			}
			for _, left := range list.GetTargets() {
				_, err := registry.Unregister(ctx, left)
				require.NoError(t, err)
			}
		}
	}
}

// RunHistories lets random clients loose on a fresh server, as Run does, and checks what they saw.
func RunHistories(t *testing.T, target Target) { testHistories(t, target) }

// timeless are the scenarios in which nothing times out.
var timeless = []string{
	"close", "collision-livelock", "collision-race", "dual-stack", "frontend", "ip-change", "ip-order", "lb-watch", "max-targets-full",
	"nsp-down-long", "nsp-restart", "nsp-restart-config-late", "odd-inputs", "open-one", "open-two-streams", "refresh", "tapa-restart",
	"unregister-unknown",
}

// registryOnly hides what else a target can do.
type registryOnly struct{ Target }

// await waits in real time.
func await(condition func() bool) bool {
	for end := time.Now().Add(patience); !condition(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}
