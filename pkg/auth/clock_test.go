package auth

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/test/clock"
)

// A wall clock that is stepped makes no answer count for longer than a minute, or for less; only the end of tokens, which is a time of
// the wall clock, comes nearer or goes away. A token that ended by it is good again when it is set right.
func TestTokensAndTheWallClock(t *testing.T) {
	for _, step := range []time.Duration{2 * time.Hour, -2 * time.Hour} {
		bubbled(t, FailureLimits{}, func(t *testing.T, v *verifier, check func(string) error, tokens *Tokens) {
			var wall clock.Clock
			tokens.clock = wall.Now
			v.set(goodFor(100*time.Hour), nil)
			require.NoError(t, check("long"))
			time.Sleep(keepGood / 2)
			wall.Step(step)
			require.NoError(t, check("long"))
			require.EqualValues(t, 1, v.asked.Load(), "the answer counts still")
			time.Sleep(keepGood/2 + time.Second)
			require.NoError(t, check("long"))
			require.EqualValues(t, 2, v.asked.Load(), "it does not count any more")

			v.set(goodFor(time.Hour), nil)
			if step > 0 {
				require.Equal(t, ExpiredToken, reasonOf(check("short")))
				wall.Step(-step)
			}
			require.NoError(t, check("short"))
			wall.Step(2 * time.Hour)
			wall.Step(max(0, -step))
			require.Equal(t, ExpiredToken, reasonOf(check("short")))
		})
	}
}
