package relay

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/registry/memory"
	"github.com/nordix/meridio-nsp/pkg/sources"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// heard is what a relay tells of from where streams may be used.
type heard struct {
	mu   sync.Mutex
	told []string
}

func (h *heard) edit(c *Config) {
	c.Limits = func(limits map[stream.Key]*sources.Set) {
		h.mu.Lock()
		defer h.mu.Unlock()
		var all []string
		for _, k := range slices.SortedFunc(maps.Keys(limits), stream.Compare) {
			all = append(all, fmt.Sprintf("%v%v", k, limits[k].Strings()))
		}
		h.told = append(h.told, strings.Join(all, " "))
	}
}

func (h *heard) all() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.told)
}

// limiting limits streams of the trench, and one of another.
func limiting(of map[string]string) engine.AccessChanged {
	ev := engine.AccessChanged{Sources: map[stream.Key]*sources.Set{
		{Namespace: own, Trench: "trench-b", Conduit: "conduit-a", Name: "x1"}: sources.Of(),
	}}
	for name, prefix := range of {
		ev.Sources[key(name)] = sources.Of(netip.MustParsePrefix(prefix))
	}
	return ev
}

// What limits the streams of the trench comes over the line, is kept through an outage and a restart without the namespace process, and
// is known to be nothing once that has said so.
func TestLimitsAreRelayed(t *testing.T) {
	const one, two = "red/trench-a/conduit-a/x1[10.0.0.0/8]", "red/trench-a/conduit-a/x2[192.0.2.0/24]"
	n, store := newNSP(t).start(), memory.New()
	var h heard
	p := n.relay(store, h.edit).live()
	require.Equal(t, []string{""}, h.all(), "nothing limits anything, and that is known")
	has := func(h *heard, want ...string) {
		t.Helper()
		p.until(fmt.Sprint(want, " told"), func() bool { return slices.Equal(h.all(), want) })
	}
	n.post(limiting(map[string]string{"x1": "10.0.0.0/8"}))
	has(&h, "", one)
	n.post(limiting(map[string]string{"x1": "10.0.0.0/8", "x2": "192.0.2.0/24"}))
	has(&h, "", one, one+" "+two)
	p.open(1)
	require.Len(t, h.all(), 3, "a registration changes no limit")

	n.kill()
	p.away()
	p.stop()
	var again heard
	p = n.relay(store, again.edit)
	require.Equal(t, []string{one + " " + two}, again.all(), "known without the namespace process")
	n.start()
	p.live()
	require.Equal(t, []string{t1}, p.read(registered))
	require.Len(t, again.all(), 1, "the namespace process says the same")
	n.post(limiting(nil))
	has(&again, one+" "+two, "")
	n.partition(true)
	p.away()
	n.post(limiting(map[string]string{"x2": "192.0.2.0/24"}))
	n.partition(false)
	has(&again, one+" "+two, "", two)
}

// A process that was never told says nothing, so that nobody takes that for "as configured".
func TestLimitsThatWereNeverHeardAreNotTold(t *testing.T) {
	n, store := newNSP(t), memory.New()
	var h heard
	p := n.relay(store, h.edit)
	require.Empty(t, h.all())
	p.SaveDocument(LimitsDocument, []byte("nonsense"))
	p.stop()
	p = n.relay(store, h.edit)
	require.Empty(t, h.all())
	n.start()
	p.live()
	require.Equal(t, []string{""}, h.all())
}
