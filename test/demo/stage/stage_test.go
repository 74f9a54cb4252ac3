package stage

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var start = time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)

func after(ms float64) time.Time { return start.Add(time.Duration(ms * float64(time.Millisecond))) }

// quietWorld has no cluster, and load balancers that hear nothing by themselves.
func quietWorld() (*world, *strings.Builder) {
	var out strings.Builder
	side := &side{name: "red", journal: newJournal(), lbs: map[string]interface{ Live() bool }{"lb-1": nil, "lb-2": nil}}
	return &world{screen: &screen{out: &out}, red: side}, &out
}

func TestSceneFails(t *testing.T) {
	nothing := func(context.Context, *world) error { return nil }
	for _, test := range []struct {
		name, says string
		scene      scene
	}{
		{"in what it does", "scene 1/1, a: broken", scene{what: "a", do: func(context.Context, *world) error { return errors.New("broken") }}},
		{"in what it expects", "expected: all three load balancers send stream-a to web-1: context deadline exceeded",
			scene{what: "a", do: nothing, expect: []expectation{sentTo("stream-a", "web-1")}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			w, _ := quietWorld()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			require.ErrorContains(t, w.play(ctx, "1/1", test.scene), test.says)
		})
	}
}

func TestSentToMeansExactlyAndEverybody(t *testing.T) {
	w, _ := quietWorld()
	j := w.red.journal
	holds := func(pods ...string) bool { return sentTo("s", pods...).holds(t.Context(), w) }
	require.True(t, holds())
	j.send(start, route{"lb-1", "s"}, "a", true, "")
	require.False(t, holds("a"), "one has not heard")
	require.False(t, holds())
	j.send(start, route{"lb-2", "s"}, "a", true, "")
	require.True(t, holds("a"))
	require.False(t, holds("a", "b"))
	j.send(start, route{"lb-2", "s"}, "b", true, "")
	require.False(t, holds("a"), "one sends to too many")
}

func TestOnlyChangesOfTrafficAreEvents(t *testing.T) {
	j := newJournal()
	r := route{"lb-1", "s"}
	j.send(after(1), r, "a", false, "Disabled")
	j.send(after(2), r, "a", true, "")
	j.send(after(3), r, "a", true, "")
	j.send(after(4), r, "a", false, "NotReady")
	j.send(after(5), r, "a", false, "LeftPool")
	var got []string
	for _, e := range entries(j.since(start)) {
		got = append(got, e.when(start)+" "+e.text())
	}
	require.Equal(t, []string{"+2.0 ms s goes to a", "+4.0 ms s no longer goes to a (NotReady)"}, got)
}

func TestTimelineGathers(t *testing.T) {
	var out strings.Builder
	(&screen{out: &out}).timeline(start, []event{
		{after(1), sends, "lb-2", "s goes to %s", "b"},
		{after(2.5), sends, "lb-1", "s goes to %s", "a"},
		{after(3), held, "sidecar", "of %s: opened s", "a"},
		{after(1500), sends, "lb-1", "s goes to %s", "b"},
	})
	require.Equal(t, ""+
		"     +1.0..1500 ms     lb-1 lb-2         s goes to a, b\n"+
		"     +3.0 ms           sidecar           of a: opened s\n", out.String())
}

func TestStagesOf(t *testing.T) {
	w, _ := quietWorld()
	s, f := w.red, flip{pod: "a"}
	s.journal.add(event{after(-1), announced, "EndpointSlice", "", "a"})
	s.journal.add(event{after(2), announced, "EndpointSlice", "", "a"})
	s.journal.add(event{after(3), sends, "lb-2", "", "a"})
	s.journal.add(event{after(4), sends, "lb-1", "", "other"})
	_, ok := s.stagesOf(f, start, false)
	require.False(t, ok, "lb-1 has not heard")
	s.journal.add(event{after(5), sends, "lb-1", "", "a"})
	got, ok := s.stagesOf(f, start, false)
	require.True(t, ok)
	require.Equal(t, stages{slice: 2 * time.Millisecond, first: 3 * time.Millisecond, last: 5 * time.Millisecond}, got)
	s.lbs[oldLB] = nil
	_, ok = s.stagesOf(f, start, false)
	require.False(t, ok, "the old one has not heard")
	s.journal.add(event{after(7), sends, oldLB, "", "a"})
	got, ok = s.stagesOf(f, start, false)
	require.True(t, ok)
	require.Equal(t, 5*time.Millisecond, got.last, "the old one is neither first nor last")
	require.Equal(t, 7*time.Millisecond, got.all())
	_, ok = s.stagesOf(f, start, true)
	require.False(t, ok, "the sidecar has done nothing")
}

// Each chapter may need what the world lacks; the others are played nevertheless.
func TestMachineWithoutAnAddress(t *testing.T) {
	all, few := script(&world{hostAddress: netip.MustParseAddr("192.0.2.1")}), script(&world{})
	require.Len(t, all, len(few)+len(oldPod(&world{hostAddress: netip.MustParseAddr("192.0.2.1")})))
	require.NotEmpty(t, few)
}

func TestMedian(t *testing.T) {
	of := func(s stages) time.Duration { return s.last }
	require.Zero(t, median(nil, of))
	require.EqualValues(t, 2, median([]stages{{last: 9}, {last: 1}, {last: 2}}, of))
	require.EqualValues(t, 5, median([]stages{{last: 9}, {last: 1}, {last: 2}, {last: 8}}, of))
}

func TestWrapKeepsWordsAndWidth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.SliceOf(rapid.StringMatching(`[a-zä]{1,12}`)).Draw(t, "words")
		width := rapid.IntRange(12, 40).Draw(t, "width")
		lines := wrap(strings.Join(words, " "), width)
		require.NotEmpty(t, lines)
		require.Equal(t, strings.Join(words, " "), strings.Join(lines, " "))
		for _, l := range lines {
			require.LessOrEqual(t, utf8.RuneCountInString(l), width)
		}
	})
}

func TestColourOnlyWhereAsked(t *testing.T) {
	require.Equal(t, "a", (&screen{}).paint(green, "a"))
	require.Equal(t, "\x1b[32ma\x1b[0m", (&screen{colour: true}).paint(green, "a"))
	require.Equal(t, "a", (&screen{colour: true}).paint("", "a"), "no style is no colour")
}
