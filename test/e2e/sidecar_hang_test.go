package e2e

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/health/grpc_health_v1"
)

// holding has the TAPA hang in every call that opens, or closes, a stream, and counts these calls. What is returned lets all go on.
func (t *target) holding(open bool, stream string) (calls *atomic.Int32, release func()) {
	calls = new(atomic.Int32)
	held := make(chan struct{})
	hold := func(opens bool, name string) <-chan struct{} {
		if opens != open || name != stream {
			return nil
		}
		calls.Add(1)
		return held
	}
	t.hold.Store(&hold)
	return calls, func() {
		t.hold.Store(nil)
		close(held)
	}
}

// hangs waits until the sidecar has given up a call and is at the next.
func (t *target) hangs(calls *atomic.Int32) {
	t.Helper()
	require.Eventually(t, func() bool { return calls.Load() > 1 }, patience, time.Millisecond, "%s", t.tail())
}

// A TAPA that does not answer an Open is asked again, holds up no other stream and keeps no pod out of service. What it opens at last
// is closed where nobody wants it any more. // P14
func TestSidecarAndATAPAThatHangsInOpen(t *testing.T) {
	s := newRelayScene(t)
	one := s.target("web-1", 1, "--operation-timeout=1s")
	opens, release := one.holding(true, "stream-a")
	s.service("web", "stream-a")
	one.hangs(opens)
	one.open("stream-b")
	one.lists(map[string]string{"stream-b": openNow})
	require.Equal(t, grpc_health_v1.HealthCheckResponse_SERVING, one.health("Readiness"))
	st, ok := one.sidecar.Status(t.Context())
	require.True(t, ok)
	require.Equal(t, "stream-a", st.Streams[0].Name)
	require.NotEmpty(t, st.Streams[0].Error)

	require.NoError(t, s.cluster.DeleteService(t.Context(), s.namespace, "web"))
	require.Eventually(t, func() bool {
		st, ok := one.sidecar.Status(t.Context())
		return ok && len(st.Streams) == 1
	}, patience, 10*time.Millisecond, "%s", one.tail())
	release() // What was given up has its effect now.
	one.lists(map[string]string{"stream-b": openNow})
	s.service("web", "stream-a")
	one.lists(map[string]string{"stream-a": openNow, "stream-b": openNow})
	s.has(1)
}

// A TAPA that does not answer a Close is asked again, and where it restarts in the middle nothing stays open or wanted. // P15
func TestSidecarAndATAPAThatHangsInClose(t *testing.T) {
	s := newRelayScene(t)
	one := s.target("web-1", 1, "--operation-timeout=1s")
	for _, restarts := range []bool{false, true} {
		s.service("web", "stream-a")
		one.lists(map[string]string{"stream-a": openNow})
		closes, release := one.holding(false, "stream-a")
		require.NoError(t, s.cluster.DeleteService(t.Context(), s.namespace, "web"))
		one.hangs(closes)
		require.Equal(t, map[string]string{"stream-a": openNow}, one.tapa.Statuses())
		if restarts {
			one.tapa.Kill()
			one.loses("connector")
			require.NoError(t, one.tapa.Start())
		}
		release()
		one.lists(map[string]string{})
		require.Eventually(t, func() bool {
			st, ok := one.sidecar.Status(t.Context())
			return ok && st.Connector.Connected && len(st.Streams) == 0
		}, patience, 10*time.Millisecond, "%s", one.tail())
	}
	s.service("web", "stream-a")
	one.lists(map[string]string{"stream-a": openNow})
}
