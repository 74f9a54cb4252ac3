package registry_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
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

// One machine is one target of a stream: under a new address it takes the place of what it was under the old one, and its number.
func TestSoleRegistration(t *testing.T) {
	machine, other := registry.Caller{PodUID: "vm", Sole: true}, registry.Caller{PodUID: "other", Sole: true}
	sink := new(record)
	r := run(t, registry.Config{Store: memory.New(), Sink: sink})
	limit(r, 100)
	enable := func(c registry.Caller, target registry.Target) {
		for range 2 {
			require.NoError(t, r.Register(t.Context(), target, c))
		}
	}
	before, after := target("s", 1, "172.16.0.1/24"), target("s", 1, "172.16.0.99/24")
	beside, another := target("s2", 1, "172.16.0.1/24"), target("s", 2, "172.16.0.2/24")
	enable(machine, before)
	enable(machine, beside)
	enable(other, another)
	waiting := target("s", 1, "172.16.0.3/24")
	enable(registry.Caller{PodUID: "waits"}, waiting)
	require.Equal(t, map[string]registry.Status{
		"s 172.16.0.1/24": registry.Enabled, "s2 172.16.0.1/24": registry.Enabled, "s 172.16.0.2/24": registry.Enabled, "s 172.16.0.3/24": registry.Disabled,
	}, sink.byName())

	require.NoError(t, r.Register(t.Context(), after, machine))
	require.NotContains(t, sink.byName(), "s 172.16.0.1/24")
	require.Equal(t, registry.Enabled, sink.byName()["s 172.16.0.3/24"], "who waited for the number has it, for the machine did not ask to be enabled yet")
	require.Equal(t, registry.Enabled, sink.byName()["s2 172.16.0.1/24"], "another stream")
	require.Equal(t, registry.Enabled, sink.byName()["s 172.16.0.2/24"], "another machine")

	id, err := r.Reserve(t.Context(), target("s", 0, "172.16.0.100/24"), machine, false)
	require.NoError(t, err)
	require.EqualValues(t, 3, id)
	require.NotContains(t, sink.byName(), "s 172.16.0.99/24")

	pod := registry.Caller{PodUID: "pod"}
	enable(pod, target("s", 11, "172.16.1.1/24"))
	enable(pod, target("s", 12, "172.16.1.2/24"))
	require.Contains(t, sink.byName(), "s 172.16.1.1/24", "a pod may have several")
}

// byName are the statuses of all registrations by stream and addresses.
func (r *record) byName() map[string]registry.Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[string]registry.Status{}
	for _, call := range r.calls {
		for _, c := range call {
			switch {
			case c.Waiting:
			case c.New == nil:
				delete(out, c.Old.Stream.Name+" "+c.Old.Addrs)
			default:
				out[c.New.Stream.Name+" "+c.New.Addrs] = c.New.Status
			}
		}
	}
	return out
}

// One caller has so many entries and no more; what it has it may refresh, change and unregister.
func TestEntriesOfOneCallerAreBounded(t *testing.T) {
	for name, tt := range map[string]struct {
		caller, other registry.Caller
		free          bool
	}{
		"a pod":    {caller: registry.Caller{PodUID: "one", Peer: peer("10.0.0.1")}, other: registry.Caller{PodUID: "two", Peer: peer("10.0.0.1")}},
		"a peer":   {caller: registry.Caller{Peer: peer("10.0.0.1")}, other: registry.Caller{Peer: peer("10.0.0.2")}},
		"loopback": {caller: registry.Caller{Peer: peer("127.0.0.1")}, other: registry.Caller{Peer: peer("10.0.0.2")}, free: true},
		"nobody":   {other: registry.Caller{Peer: peer("10.0.0.2")}, free: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := run(t, registry.Config{Store: memory.New(), Timeout: time.Hour, MostPerPod: 3, MostPerPeer: 3})
			r.SetLimits("t", nil)
			ctx := t.Context()
			at := func(i uint64) registry.Target { return target("s", i, fmt.Sprintf("172.16.0.%d", i)) }
			for i := range uint64(3) {
				require.NoError(t, r.Register(ctx, at(i+1), tt.caller))
			}
			err := r.Register(ctx, at(4), tt.caller)
			_, reserved := r.Reserve(ctx, at(5), tt.caller, false)
			if tt.free {
				require.NoError(t, errors.Join(err, reserved))
				return
			}
			for _, err := range []error{err, reserved} {
				require.ErrorIs(t, err, registry.ErrTooMany)
				require.ErrorContains(t, err, "unregister some first")
			}
			require.NoError(t, r.Register(ctx, at(1), tt.caller))
			require.NoError(t, r.Register(ctx, at(4), tt.other), "others have their own")
			require.NoError(t, r.Unregister(ctx, at(2), tt.caller))
			_, err = r.Reserve(ctx, at(5), tt.caller, false)
			require.NoError(t, err)
			require.ErrorIs(t, r.Register(ctx, at(6), tt.caller), registry.ErrTooMany)
		})
	}
}

func peer(a string) netip.Addr { return netip.MustParseAddr(a) }
