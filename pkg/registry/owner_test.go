package registry_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/registry/memory"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// What a pod has proven to be its own nobody else changes, until the pod is gone.
func TestAnEntryIsItsPods(t *testing.T) {
	var gone atomic.Bool
	r := registry.New(registry.Config{
		Store: memory.New(), Namespace: "red", Timeout: time.Hour,
		Gone: func(uid string) bool { return uid == "one" && gone.Load() },
	})
	_, err := r.Load(t.Context())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	defer func() { cancel(); require.NoError(t, <-ended) }()

	target := registry.Target{
		Scope: "t", Stream: stream.Key{Namespace: "red", Trench: "t", Conduit: "c", Name: "s"}, IPs: []string{"172.16.0.1/24"},
		Context: map[string]string{"identifier": "1"},
	}
	one, two, nobody := registry.Caller{PodUID: "one"}, registry.Caller{PodUID: "two"}, registry.Caller{}
	require.NoError(t, r.Register(ctx, target, nobody))
	require.NoError(t, r.Register(ctx, target, one), "nobody's may become somebody's")
	for _, other := range []registry.Caller{two, nobody} {
		require.ErrorIs(t, r.Register(ctx, target, other), registry.ErrForeign)
		require.ErrorIs(t, r.Unregister(ctx, target, other), registry.ErrForeign)
		_, err := r.Reserve(ctx, target, other, false)
		require.ErrorIs(t, err, registry.ErrForeign)
	}
	require.NoError(t, r.Register(ctx, target, one))
	gone.Store(true)
	require.NoError(t, r.Register(ctx, target, two), "the address of a pod that is gone is given to another")
	require.ErrorIs(t, r.Unregister(ctx, target, one), registry.ErrForeign)
	require.NoError(t, r.Unregister(ctx, target, two))
}
