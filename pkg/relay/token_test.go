package relay

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/registry/memory"
)

// expiring are credentials for a connection of ten minutes.
type expiring struct{ calls *int }

func (e expiring) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer x"}, nil
}
func (expiring) RequireTransportSecurity() bool { return false }
func (e expiring) Reopen() time.Duration        { *e.calls++; return 10 * time.Minute }

// A connection is made anew before its token expires. That is no outage: nobody is answered by the mirror alone.
func TestConnectionOutlivesItsToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNSP(t).start()
		connections := 0
		p := n.relay(memory.New(), func(c *Config) { c.PerRPC = expiring{&connections} }).live()
		start := p.value("outage_seconds_total")
		for i := 1; i < 40; i++ {
			time.Sleep(time.Minute - time.Microsecond)
			require.NoError(t, p.Register(t.Context(), as(target(i), registry.Disabled), from(i)))
			require.Len(t, p.read(registered), i)
		}
		require.Equal(t, 4, connections)
		require.Zero(t, p.value("outages_total"))
		require.InDelta(t, start, p.value("outage_seconds_total"), 0)
		n.kill()
		p.away()
		require.EqualValues(t, 1, p.value("outages_total"))
		n.start()
		p.live()
		p.stop()
		n.stop()
	})
}
