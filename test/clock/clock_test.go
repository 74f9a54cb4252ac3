package clock

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A step changes what the wall clock shows, and not how much time has passed, in a bubble of time too.
func TestStep(t *testing.T) {
	step := func(t *testing.T) {
		for _, by := range []time.Duration{0, time.Hour, -time.Hour, 1000 * time.Hour, -1000 * time.Hour} {
			var c Clock
			before := c.Now()
			require.Less(t, time.Until(before.Round(0)).Abs(), time.Minute)
			c.Step(by)
			after := c.Now()
			require.Less(t, after.Sub(before).Abs(), time.Minute, "time that has passed")
			require.Less(t, (after.Round(0).Sub(before.Round(0)) - by).Abs(), time.Minute, "what the wall clock shows")
		}
	}
	step(t)
	synctest.Test(t, step)
}
