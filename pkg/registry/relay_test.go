package registry_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/registry/memory"
)

// A removal that comes late is void where the registration is alive again, and only there.
func TestWithdraw(t *testing.T) {
	one := target("s", 7, "10.0.0.1")
	for name, c := range map[string]struct {
		since func(*testing.T, *registry.Registry)
		seen  func(registry.Seen) registry.Seen
		void  bool
	}{
		"as seen": {},
		"refreshed since": {
			since: func(t *testing.T, r *registry.Registry) { require.NoError(t, r.Register(t.Context(), one, nobody)) }, void: true,
		},
		"another one refreshed since": {
			since: func(t *testing.T, r *registry.Registry) {
				require.NoError(t, r.Register(t.Context(), target("s", 8, "10.0.0.2"), nobody))
			},
		},
		"registered anew since": {
			since: func(t *testing.T, r *registry.Registry) {
				require.NoError(t, r.Unregister(t.Context(), one, nobody))
				require.NoError(t, r.Register(t.Context(), one, nobody))
			},
			void: true,
		},
		"another ID": {seen: func(s registry.Seen) registry.Seen { s.ID++; return s }, void: true},
		"seen in an earlier run, registered in this one": {
			seen: func(s registry.Seen) registry.Seen { s.Registrations = 0; return s }, void: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			sink := new(record)
			r := run(t, registry.Config{Store: memory.New(), Sink: sink})
			require.NoError(t, r.Register(t.Context(), one, nobody))
			seen := registry.Seen{ID: sink.all()[0].New.ID, Registrations: r.Registrations()}
			if c.since != nil {
				c.since(t, r)
			}
			if c.seen != nil {
				seen = c.seen(seen)
			}
			require.NoError(t, r.Withdraw(t.Context(), one, seen))
			_, there := sink.state()["10.0.0.1/32"]
			require.Equal(t, c.void, there)
		})
	}
}

// What is only loaded was not registered in this run.
func TestWithdrawAfterRestart(t *testing.T) {
	store, one := memory.New(), target("s", 7, "10.0.0.1")
	sink := new(record)
	first := run(t, registry.Config{Store: store, Sink: sink})
	require.NoError(t, first.Register(t.Context(), one, nobody))
	id := sink.all()[0].New.ID
	second := run(t, registry.Config{Store: store, Sink: sink})
	require.NoError(t, second.Withdraw(t.Context(), one, registry.Seen{ID: id}))
	require.Empty(t, sink.state())
}

func TestRestoreKeepsStatus(t *testing.T) {
	sink := new(record)
	r := run(t, registry.Config{Store: memory.New(), Sink: sink})
	there, back, rival := target("s", 7, "10.0.0.1"), target("s", 8, "10.0.0.2"), target("s", 8, "10.0.0.3")
	require.NoError(t, r.Register(t.Context(), there, nobody))
	require.NoError(t, r.Restore(t.Context(), []registry.Restored{{Target: there}, {Target: back}, {Target: rival}}))
	require.Equal(t, map[string]registry.Status{
		"10.0.0.1/32": registry.Disabled, // what is there stays as it is
		"10.0.0.2/32": registry.Enabled,
		"10.0.0.3/32": registry.Disabled, // the identifier is taken
	}, sink.state())
	require.EqualValues(t, 1, r.Registrations(), "nobody registered")
}

// What was reserved blocks its identifier again, unless that is another's by now.
func TestRestoreKeepsReservation(t *testing.T) {
	sink := new(record)
	r := run(t, registry.Config{Store: memory.New(), Sink: sink})
	r.SetLimits("t", nil)
	reserved := func(id uint64, ip string) registry.Restored {
		one := target("s", id, ip)
		one.Status = registry.Disabled
		return registry.Restored{Target: one, Reserved: true}
	}
	none := target("s", 0, "10.0.0.4")
	none.Context = nil
	require.NoError(t, r.Restore(t.Context(), []registry.Restored{
		reserved(1, "10.0.0.1"), {Target: target("s", 2, "10.0.0.2")}, reserved(2, "10.0.0.3"), {Target: none, Reserved: true},
	}))
	flags := map[string]bool{}
	for _, c := range sink.all() {
		flags[c.New.Addrs] = c.New.Reserved
	}
	require.Equal(t, map[string]bool{"10.0.0.1/32": true, "10.0.0.2/32": false, "10.0.0.3/32": false, "10.0.0.4/32": false}, flags)
}

func TestRestoreRenewsLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := new(record)
		r := run(t, registry.Config{Store: memory.New(), Sink: sink, Timeout: time.Minute})
		one := target("s", 7, "10.0.0.1")
		require.NoError(t, r.Register(t.Context(), one, nobody))
		time.Sleep(50 * time.Second)
		require.NoError(t, r.Restore(t.Context(), []registry.Restored{{Target: one}}))
		time.Sleep(50 * time.Second)
		require.NotEmpty(t, sink.state())
		time.Sleep(15 * time.Second)
		require.Empty(t, sink.state())
	})
}

// A store that fails leaves no trace of who could not be registered.
func TestWithdrawAfterFailedRegister(t *testing.T) {
	store, written := watched()
	sink := new(record)
	r := run(t, registry.Config{Store: store, Sink: sink})
	one := target("s", 7, "10.0.0.1")
	written.setFail(errors.New("full"))
	require.Error(t, r.Register(t.Context(), one, nobody))
	written.setFail(nil)
	require.NoError(t, r.Restore(t.Context(), []registry.Restored{{Target: one}}))
	require.NoError(t, r.Withdraw(t.Context(), one, registry.Seen{ID: sink.all()[0].New.ID}))
	require.Empty(t, sink.state())
}
