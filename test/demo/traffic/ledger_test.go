package traffic

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var start = time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)

func after(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }

func TestCount(t *testing.T) {
	l := NewLedger(start)
	for ms := range 10 {
		l.Send(after(ms))
	}
	l.Took(0, 1)
	l.Came(1, 1)
	l.Took(1, 1)
	l.Took(2, 2)
	l.Came(2, 2) // the tap may be behind the application
	l.Came(3, 2)
	l.Came(4, 2)
	l.Took(99, 1) // not ours
	c := l.Count(start, after(6))
	require.Equal(t, Count{
		Sent: 6, Took: map[int]int{1: 2, 2: 1}, Lost: map[int]int{2: 2, Nowhere: 1},
		Last: map[int]time.Duration{2: 4 * time.Millisecond, Nowhere: 5 * time.Millisecond},
	}, c)
	require.Equal(t, 3, c.LostAll())
	require.Equal(t, 2, c.LostAt(1, 2))
	require.Equal(t, 3, c.TookAll())
	require.Equal(t, 4, l.Count(after(6), after(100)).Lost[Nowhere])
	require.Zero(t, l.Count(after(10), after(100)).Sent)
}

// Whatever happens to packets, each is in one window and is either taken or lost there, and series say the same as counts.
func TestEveryPacketCountsOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := NewLedger(start)
		times := rapid.SliceOfN(rapid.IntRange(0, 50), 0, 60).Draw(t, "pauses")
		at, took := 0, 0
		for _, pause := range times {
			at += pause
			jitter := rapid.IntRange(0, 20).Draw(t, "late") // another sender may be a little ahead
			number := l.Send(after(max(0, at-jitter)))
			if target := rapid.IntRange(0, 3).Draw(t, "came"); target > 0 {
				l.Came(number, target)
				if rapid.Bool().Draw(t, "took") {
					l.Took(number, target)
					took++
				}
			}
		}
		cut := after(rapid.IntRange(0, at+1).Draw(t, "cut"))
		a, b := l.Count(start, cut), l.Count(cut, after(at+1))
		require.Equal(t, len(times), a.Sent+b.Sent)
		require.Equal(t, took, a.TookAll()+b.TookAll())
		require.Equal(t, len(times)-took, a.LostAll()+b.LostAll())
		s := l.Series(7*time.Millisecond, after(at+1))
		lost := 0
		for _, n := range s.Lost {
			lost += n
		}
		require.Equal(t, len(times)-took, lost)
		for target, counts := range s.Took {
			n := 0
			for _, c := range counts {
				n += c
			}
			require.Equal(t, a.Took[target]+b.Took[target], n)
		}
	})
}
