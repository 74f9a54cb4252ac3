package registry_test

import (
	"context"
	"flag"
	"fmt"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// The default of 100 checks misses rules that need several events to meet; a flag of the caller wins.
func TestMain(m *testing.M) {
	_ = flag.Set("rapid.checks", "2000")
	goleak.VerifyTestMain(m)
}

const own = "ns"

// run is a loaded registry that runs until the test ends, and closes its store then.
func run(t testing.TB, cfg registry.Config) *registry.Registry {
	t.Helper()
	r, stop := start(t, cfg)
	t.Cleanup(stop)
	return r
}

// start is run for tests that end the registry themselves.
func start(t testing.TB, cfg registry.Config) (*registry.Registry, func()) {
	t.Helper()
	cfg.Namespace = own
	r := registry.New(cfg)
	_, err := r.Load(context.Background())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	return r, sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-done)
		require.NoError(t, cfg.Store.Close())
	})
}

// everyone calls f for all at once.
func everyone[T any](t testing.TB, all []T, f func(T) error) {
	t.Helper()
	var g errgroup.Group
	for _, one := range all {
		g.Go(func() error { return f(one) })
	}
	require.NoError(t, g.Wait())
}

func target(name string, id uint64, ips ...string) registry.Target {
	return registry.Target{
		Status: registry.Enabled, Stream: stream.Key{Trench: "t", Conduit: "c", Name: name}, IPs: ips,
		Context: map[string]string{"identifier": strconv.FormatUint(id, 10)},
	}
}

func numbered(n int) []registry.Target {
	list := make([]registry.Target, n)
	for i := range list {
		list[i] = target("s", uint64(i+1), fmt.Sprintf("10.%d.%d.%d/8", i>>16, i>>8&0xff, i&0xff))
	}
	return list
}

// record is a sink that remembers all that it is told.
type record struct {
	mu    sync.Mutex
	calls [][]registry.Change
}

func (r *record) Registered(_ context.Context, changes []registry.Change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, changes)
}

// all are the changes of all calls, in order.
func (r *record) all() []registry.Change {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []registry.Change
	for _, c := range r.calls {
		all = append(all, c...)
	}
	return all
}

func (r *record) take() [][]registry.Change {
	r.mu.Lock()
	defer r.mu.Unlock()
	calls := r.calls
	r.calls = nil
	return calls
}

// state is what the changes add up to, by addresses.
func (r *record) state() map[string]registry.Status {
	state := map[string]registry.Status{}
	for _, c := range r.all() {
		if c.New == nil {
			delete(state, c.Old.Addrs)
		} else {
			state[c.New.Addrs] = c.New.Status
		}
	}
	return state
}
