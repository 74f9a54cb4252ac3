package relay

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/registry/memory"
)

// proven is a caller who has proven to be pod id, from an address that says nothing.
func proven(id string) registry.Caller {
	return registry.Caller{Peer: from(250).Peer, PodUID: "uid-" + id}
}

// What a caller has proven to a trench process counts at the namespace process as if that had seen the proof, also after either was
// restarted, and nobody else may change what is proven to be somebody's own: while the namespace process is there, while it is
// away, and when it is back.
func TestProvenPodIsPassedOn(t *testing.T) {
	n := newNSP(t).start()
	store := memory.New()
	p := n.relay(store).live()
	n.post(pods(1, true, 1, 2)...)
	ctx := t.Context()
	require.NoError(t, p.Register(ctx, as(target(1), registry.Disabled), proven("1")))
	require.NoError(t, p.Register(ctx, target(1), proven("1")))
	owner := func() {
		t.Helper()
		rows, err := n.engine.Targets(ctx, engine.Filter{})
		require.NoError(t, err)
		require.Len(t, rows, 1)
		require.Equal(t, "uid-1", rows[0].PodUID)
		require.Equal(t, engine.BoundByProof, rows[0].Binding)
		require.Equal(t, registry.Enabled, rows[0].Entry.Status)
	}
	owner()
	others := []registry.Caller{proven("2"), from(1), {}}
	refused := func() {
		t.Helper()
		for _, c := range others {
			require.Equal(t, codes.PermissionDenied, status.Code(p.Register(ctx, target(1), c)), "%+v", c)
			require.Equal(t, codes.PermissionDenied, status.Code(p.Unregister(ctx, target(1), c)), "%+v", c)
		}
	}
	refused()

	n.kill()
	p.away()
	for _, c := range others {
		require.ErrorIs(t, p.Unregister(ctx, target(1), c), registry.ErrForeign, "%+v", c)
		require.False(t, p.refresh(mustEntry(t, target(1), c)), "%+v", c)
	}
	require.NoError(t, p.Register(ctx, target(1), proven("1")), "a refresh by its own")
	require.Equal(t, []string{"172.16.0.1/24"}, p.read(active))

	p.stop()
	n.store = memory.New() // it has lost what it had, and is told
	p = n.relay(store)
	p.away()
	for _, c := range others {
		require.ErrorIs(t, p.Unregister(ctx, target(1), c), registry.ErrForeign, "%+v, after a restart", c)
	}
	require.NoError(t, p.Register(ctx, target(1), proven("1")))
	n.start()
	p.live()
	owner()
	refused()
	require.NoError(t, p.Unregister(ctx, target(1), proven("1")))
	require.Empty(t, p.read(registered))
}

func mustEntry(t *testing.T, target registry.Target, c registry.Caller) registry.Entry {
	e, err := registry.EntryOf(target, c, own)
	require.NoError(t, err)
	return e
}
