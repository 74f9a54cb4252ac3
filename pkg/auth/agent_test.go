package auth_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nordix/meridio-nsp/pkg/auth"
)

// The agent may start after the process, and the workload may be registered later still.
func TestFirstSVIDIsWaitedFor(t *testing.T) {
	w := newWorld(t)
	w.stop()
	cfg := w.config()
	cfg.Socket = w.agent.Path() // a bare path will do
	type opened struct {
		source *auth.SPIFFE
		err    error
	}
	done := make(chan opened, 1)
	go func() {
		s, err := auth.OpenSPIFFE(t.Context(), cfg)
		done <- opened{s, err}
	}()
	require.Eventually(t, func() bool { return w.log.count("no SVID from the workload API yet") == 1 }, patience, time.Millisecond)
	w.start()
	require.Eventually(t, func() bool { return w.agent.Asked() > 2 }, patience, time.Millisecond)
	require.Empty(t, done)
	w.issue(time.Hour)
	o := <-done
	require.NoError(t, o.err)
	defer o.source.Close()
	require.Equal(t, "spiffe://example.org"+nspPath, o.source.ID().String())
	require.WithinDuration(t, time.Now().Add(time.Hour), o.source.Expires(), time.Minute)
	require.Equal(t, 1, w.log.count("waiting for the first SVID"))
	require.Equal(t, 1, w.log.count("no SVID from the workload API yet"))
	require.Equal(t, 1, w.log.count("got an SVID"))
}

func TestWaitIsBounded(t *testing.T) {
	w := newWorld(t)
	cfg := w.config()
	cfg.Timeout = 300 * time.Millisecond
	_, err := auth.OpenSPIFFE(t.Context(), cfg)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, w.agent.Socket())
	require.ErrorContains(t, err, "no identity issued", "what the agent says is told")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = auth.OpenSPIFFE(ctx, w.config())
	require.ErrorIs(t, err, context.Canceled)

	cfg.Socket = "http://agent"
	_, err = auth.OpenSPIFFE(t.Context(), cfg)
	require.ErrorContains(t, err, "connecting to the workload API")
}

// The agent is updated: its last word counts meanwhile.
func TestAgentRestarts(t *testing.T) {
	w := newWorld(t)
	first := w.issue(time.Hour)
	source := w.open(w.config())
	s := serve(t, source.Server(nil))
	w.stop()
	require.Eventually(t, func() bool { return w.log.count("the last SVID counts until it expires") == 1 }, patience, time.Millisecond)
	shown, err := s.call(source.Client())
	require.NoError(t, err)
	require.Equal(t, first, shown)

	// It comes back and does not know us yet.
	w.agent.Deny(status.Error(codes.PermissionDenied, "no identity issued"))
	w.start()
	asked := w.agent.Asked()
	require.Eventually(t, func() bool { return w.agent.Asked() > asked+1 }, patience, time.Millisecond)
	_, err = s.call(source.Client())
	require.NoError(t, err)

	second := w.issue(time.Hour)
	w.has(source, second)
	shown, err = s.call(source.Client())
	require.NoError(t, err)
	require.Equal(t, second, shown)
	require.Equal(t, 1, w.log.count("the last SVID counts until it expires"), "said once")
	require.Equal(t, 2, w.log.count("got an SVID"), "the first one, and that it is back")
}

// After these answers the library stops asking for good; a process that lives on must not.
func TestAgentSaysStop(t *testing.T) {
	for _, code := range []codes.Code{codes.InvalidArgument, codes.Canceled} {
		t.Run(code.String(), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.issue(time.Hour)
			source := w.open(w.config())
			w.agent.Deny(status.Error(code, "going away"))
			require.Eventually(t, func() bool { return w.log.count("going away") == 1 }, patience, time.Millisecond)
			w.has(source, w.issue(time.Hour))
		})
	}
}

// An expired SVID is not shown: peers would refuse it, and the reason shall be in our log.
func TestSVIDExpires(t *testing.T) {
	w := newWorld(t)
	w.issue(2 * time.Second)
	source := w.open(w.config())
	s := serve(t, source.Server(nil))
	w.stop()
	require.Eventually(t, func() bool {
		_, err := source.GetX509SVID()
		return err != nil
	}, patience, 10*time.Millisecond)
	client := as(svid(t, w.ca, "/any", time.Hour), w.ca.Bundle())
	for range 2 {
		_, err := s.call(client)
		require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	}
	require.Equal(t, 1, w.log.count("the SVID has expired"), "said once")

	w.start()
	w.has(source, w.issue(time.Hour))
	_, err := s.call(client)
	require.NoError(t, err)
}
