package kube

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Failures are spaced out to 5 s and a bit; after a run that lasted the next try is soon; the end of ctx ends a pause.
func TestForever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var pauses []time.Duration
		var last time.Time
		forever(ctx, func(context.Context) {
			if !last.IsZero() {
				pauses = append(pauses, time.Since(last))
			}
			switch len(pauses) {
			case 10:
				time.Sleep(lasting)
			case 12:
				time.AfterFunc(time.Millisecond, cancel)
			}
			last = time.Now()
		})
		require.Less(t, time.Since(last), 2*time.Millisecond)
		require.Len(t, pauses, 12)
		for i, pause := range pauses {
			require.LessOrEqual(t, pause, 7500*time.Millisecond)
			if i > 5 && i < 10 {
				require.GreaterOrEqual(t, pause, 5*time.Second)
			}
		}
		require.Less(t, pauses[0], 400*time.Millisecond)
		require.Less(t, pauses[10], 400*time.Millisecond)
	})
}
