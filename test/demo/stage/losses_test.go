package stage

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/test/demo/traffic"
)

// Of a phase only its own packets count, and of those that were lost it is told how many came to the dead pod, and when the last.
func TestLossesOfAPhase(t *testing.T) {
	udp, tcp := traffic.NewLedger(start), traffic.NewLedger(start)
	for ms := range 100 {
		number := udp.Send(after(float64(ms)))
		switch {
		case ms < 40: // before
		case ms < 45:
			udp.Came(number, 2)
		case ms == 45: // on the way
		default:
			udp.Took(number, 1)
		}
	}
	tcp.Send(after(50))
	tcp.Took(tcp.Send(after(51)), 1)
	p := phaseResult{phase{dead: []int{2}}, after(40), after(90)}
	require.Equal(t, losses{sent: 50, lost: 6, dead: 5, failed: 1, last: 4 * time.Millisecond}, p.lossesOf(udp, tcp, start))
	p.dead = nil
	require.Equal(t, losses{sent: 50, lost: 6, failed: 1}, p.lossesOf(udp, tcp, start))
}

func TestLossTable(t *testing.T) {
	phases := []phaseResult{
		{phase: phase{short: "a dies", dead: []int{1}}}, {phase: phase{short: "b comes"}}, {phase: phase{short: "c dies", dead: []int{3}}},
		{phase: phase{short: "d fails", dead: []int{4}, endless: true}},
	}
	on := losses{sent: 100, lost: 2, dead: 1, failed: 1, last: 3 * time.Millisecond}
	off := losses{sent: 100, lost: 30, dead: 20, failed: 4, last: 70 * time.Millisecond}
	got := lossTable(phases, func(p phaseResult) (losses, losses) {
		if len(p.dead) == 0 {
			return losses{}, losses{lost: 5}
		}
		return on, off
	})
	require.Equal(t, []string{
		"                                 UDP lost     at dead pods     last one, ms       TCP failed",
		"  fast path                    on     off       on     off       on     off       on     off",
		"  a dies                        2      30        1      20        3      70        1       4",
		"  b comes                       0       5        -       -        -       -        0       0",
		"  c dies                        2      30        1      20        3      70        1       4",
		"  d fails                       2     30+        1     20+        3 endless        1       4",
		"  sum of deaths                 4      60        2      40        3      70        2       8",
	}, got)
	for _, l := range got {
		require.LessOrEqual(t, len(l), width)
	}
}

// Without network namespaces the demo has fewer scenes; with them each phase is one.
func TestRealPacketsNeedNamespaces(t *testing.T) {
	require.Empty(t, realPackets(&world{}))
	require.Len(t, realPackets(&world{real: true}), 1+len(phases()))
}
