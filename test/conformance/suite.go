package conformance

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Run tests a server of nsp.v1. start makes a fresh one with an empty registry, whose trench-a has conduit-a with stream-a and stream-b, each
// with max-targets 10, and cleans up after itself. The server must let entries live for a minute or more.
func Run(t *testing.T, start func(t *testing.T) Target) {
	all, err := Transcripts()
	require.NoError(t, err)
	for _, name := range timeless {
		t.Run(name, func(t *testing.T) {
			r := &Replay{Target: registryOnly{start(t)}, Transcript: all[name], Await: await}
			require.NoError(t, r.Run(t.Context()))
		})
	}
	t.Run("histories", func(t *testing.T) { testHistories(t, start(t)) })
}

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
