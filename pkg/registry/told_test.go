package registry_test

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/registry/memory"
)

type lockedBuffer struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.String()
}

// A registration that has to wait for its identifier is counted and logged when that begins, and again when it waits for another one,
// and not with every refresh.
func TestWaitingForAnIdentifierIsTold(t *testing.T) {
	var log lockedBuffer
	var blocked atomic.Int64
	r := run(t, registry.Config{
		Store: memory.New(), Log: slog.New(slog.NewTextHandler(&log, nil)),
		Observe: func(x registry.Round) { blocked.Add(int64(x.Blocked)) },
	})
	register := func(id uint64, ip string) {
		for range 3 {
			require.NoError(t, r.Register(t.Context(), target("s", id, ip), nobody))
		}
	}
	told := func(times int, of string) {
		t.Helper()
		require.NoError(t, r.Unregister(t.Context(), target("s", 9, "192.0.2.9"), nobody)) // the rounds before are over
		require.EqualValues(t, times, blocked.Load())
		require.Equal(t, times, strings.Count(log.String(), "another one holds its identifier"))
		require.Contains(t, log.String(), of)
	}
	register(1, "192.0.2.1")
	register(2, "192.0.2.2")
	told(0, "")
	register(1, "192.0.2.3")
	told(1, "192.0.2.3/32")
	register(2, "192.0.2.3")
	told(2, "identifier=2")
}

// Conclusions alone are reason enough to write, soon and not only at the end.
func TestRememberIsWrittenSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		r := run(t, registry.Config{Store: store})
		require.NoError(t, r.Register(t.Context(), target("s", 1, "192.0.2.1"), nobody))
		for _, reason := range []string{"first", "second"} {
			r.Remember(map[uint64]registry.Memory{1: {Reason: reason}})
			time.Sleep(time.Second) // of the clock of this bubble
			saved, err := store.Load(t.Context())
			require.NoError(t, err)
			require.Equal(t, reason, saved.Entries[0].Memory.Reason)
		}
	})
}
