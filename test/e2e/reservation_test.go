package e2e

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/targetpool/client"
	"github.com/nordix/meridio-nsp/test/play"
)

// reserve asks for an identifier in stream-a, for the target with that number.
func (s *scene) reserve(ctx context.Context, number int, wait bool) (uint32, error) {
	return s.client().Reserve(ctx, client.ReserveConfig{
		Stream: &targetpoolv1.Stream{Namespace: s.namespace, Trench: "trench-a", Conduit: "conduit-a", Name: "stream-a"},
		IPs:    secondary(number), Wait: wait,
	})
}

func legacyStreamA() *nspv1.Stream {
	return &nspv1.Stream{Name: "stream-a", Conduit: &nspv1.Conduit{Name: "conduit-a", Trench: &nspv1.Trench{Name: "trench-a"}}}
}

// taken are the identifiers in stream-a as a TAPA of Meridio 1.x is shown them, each with its status.
func (s *scene) taken() map[string]nspv1.Target_Status {
	s.Helper()
	conn, err := s.nsp.Dial()
	require.NoError(s, err)
	defer conn.Close()
	watch, err := nspv1.NewTargetRegistryClient(conn).Watch(s.within(), &nspv1.Target{Status: nspv1.Target_ANY, Stream: legacyStreamA()})
	require.NoError(s, err)
	list, err := watch.Recv()
	require.NoError(s, err)
	taken := map[string]nspv1.Target_Status{}
	for _, t := range list.GetTargets() {
		taken[t.GetContext()["identifier"]] = t.GetStatus()
	}
	return taken
}

// TestReservedIdentifiers: each target gets one, the third waits for the slot of the first, and a TAPA of Meridio 1.x sees what is
// reserved, and draws from what is left. // D9, P18
func TestReservedIdentifiers(t *testing.T) {
	s := newScene(t)
	configure := func(most int) {
		require.NoError(t, play.Configure(t.Context(), s.cluster.Client(), s.namespace, "trench-a", "conduit-a", map[string]int{"stream-a": most}))
	}
	configure(2)
	s.service("web", "stream-a") // so that somebody wants the configuration
	for number := 1; number <= 2; number++ {
		id, err := s.reserve(s.within(), number, false)
		require.NoError(t, err)
		require.EqualValues(t, number, id)
	}
	require.Equal(t, map[string]nspv1.Target_Status{"1": nspv1.Target_DISABLED, "2": nspv1.Target_DISABLED}, s.taken())
	_, err := s.reserve(s.within(), 3, false)
	require.ErrorContains(t, err, "all 2 of stream")

	got := make(chan uint32, 1)
	s.background(func(context.Context) error {
		id, err := s.reserve(s.within(), 3, true)
		got <- id
		return err
	})
	require.Never(t, func() bool { return len(got) > 0 }, time.Second, 50*time.Millisecond, "there is none")
	conn, err := s.nsp.Dial()
	require.NoError(t, err)
	defer conn.Close()
	registry := nspv1.NewTargetRegistryClient(conn)
	_, err = registry.Unregister(s.within(), &nspv1.Target{Ips: secondary(1), Stream: legacyStreamA()})
	require.NoError(t, err)
	require.EqualValues(t, 1, <-got)
	require.Len(t, s.taken(), 2)

	// What was reserved outlives the process.
	s.nsp.Kill()
	require.NoError(t, s.nsp.Start(t.Context()))
	for number, want := range map[int]uint32{2: 2, 3: 1} {
		id, err := s.reserve(s.within(), number, false)
		require.NoError(t, err)
		require.Equal(t, want, id)
	}

	configure(3)
	old := play.NewLegacyTAPA(play.LegacyTAPAConfig{
		Conn: conn, Trench: "trench-a", Conduit: "conduit-a", Addresses: secondary(4), MaxTargets: map[string]int{"stream-a": 3},
		Draw: func(_ string, free []uint32) uint32 { return slices.Min(free) },
	})
	s.background(old.Run)
	old.Open("stream-a")
	require.True(t, waitFor(func() bool { return s.taken()["3"] == nspv1.Target_ENABLED && len(s.taken()) == 3 }), "%v", s.taken())

	// Whoever has reserved is enabled as asked.
	_, err = registry.Register(s.within(), &nspv1.Target{
		Ips: secondary(2), Context: map[string]string{"identifier": strconv.Itoa(2)}, Status: nspv1.Target_ENABLED, Stream: legacyStreamA(),
	})
	require.NoError(t, err)
	require.Equal(t, nspv1.Target_ENABLED, s.taken()["2"])
	require.ElementsMatch(t, []string{"1", "2", "3"}, slices.Collect(maps.Keys(s.taken())))
}
