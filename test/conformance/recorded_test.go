package conformance

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The model of Meridio 1.x is right because it explains every list that was recorded, in each scenario.
func TestTheModelExplainsTheRecordings(t *testing.T) {
	all, err := Transcripts()
	require.NoError(t, err)
	require.Len(t, all, 24)
	lists := 0
	for name, tr := range all {
		t.Run(name, func(t *testing.T) { lists += explainRecording(t, tr) })
	}
	require.Greater(t, lists, 700)
}

// recordedWatch is a recorded Watch, and what it got.
type recordedWatch struct {
	filter *nspv1.Target
	first  int
	heard  []Heard
}

func explainRecording(t *testing.T, tr *Transcript) (lists int) {
	line := newTimeline(tr)
	watches := make(map[int]*recordedWatch)
	for i, r := range tr.Records {
		switch {
		case r.RPC != Watch:
		case r.Dir == Request && r.Target() != nil:
			watches[r.Call] = &recordedWatch{filter: r.Target(), first: line.done[i]}
		case r.Dir == Response:
			list := &nspv1.TargetResponse{}
			require.NoError(t, r.Decode(list))
			w := watches[r.Call]
			w.heard = append(w.heard, Heard{List: render(list.GetTargets()), First: w.first, Last: line.begun[i]})
			lists++
		}
	}
	for call, w := range watches {
		_, err := line.course.Explain(w.filter, w.heard)
		require.NoErrorf(t, err, "call %d", call)
	}
	return lists
}

// timeline is the course of a recorded scenario. A write took effect between its request and its answer; since the NSP has one writer,
// answers come in the order of writes.
type timeline struct {
	course *Course
	// done and begun are, by record, the states that every list must, and may, show.
	done, begun []int
}

// slack is how late an entry of Meridio 1.x may go.
const slack = 100 * time.Millisecond

func newTimeline(tr *Transcript) *timeline {
	l := &timeline{
		course: NewCourse(&Model{Timeout: scenarioOf(tr.Name).timeout}),
		done:   make([]int, len(tr.Records)), begun: make([]int, len(tr.Records)),
	}
	requests := make(map[int]int)
	expired := 0
	for i, r := range tr.Records {
		before := l.course.Now()
		l.course.Elapse(r.At())
		if l.course.Now() > before {
			expired = l.course.Now()
			l.mark(l.begun, i, expired)
			if late := slices.IndexFunc(tr.Records, func(o *Record) bool { return o.At() > r.At()+slack }); late >= 0 {
				l.mark(l.done, late, expired)
			}
		}
		switch {
		case fateOf(r.Note("text")) == started, fateOf(r.Note("text")) == startedUnread:
			l.course.Do(func(m *Model) codes.Code { m.Renew(r.At()); return codes.OK })
			l.mark(l.done, i, l.course.Now())
			l.mark(l.begun, i, l.course.Now())
		case fateOf(r.Note("text")) == startedEmpty:
			l.course.Do(func(m *Model) codes.Code { m.Clear(); return codes.OK })
			l.mark(l.done, i, l.course.Now())
			l.mark(l.begun, i, l.course.Now())
		case r.RPC != Register && r.RPC != Unregister:
		case r.Dir == Request && r.Target() != nil:
			requests[r.Call] = i
		case r.Dir == End:
			at, ok := requests[r.Call]
			if !ok {
				continue
			}
			perform(l.course, r.RPC, tr.Records[at].Target(), tr.Records[at].At())
			l.mark(l.begun, at, l.course.Now())
			l.mark(l.done, i, l.course.Now())
		}
	}
	return l
}

// mark says that from a record on a state counts.
func (l *timeline) mark(of []int, from, state int) {
	for i := from; i < len(of); i++ {
		of[i] = max(of[i], state)
	}
}

func perform(c *Course, rpc string, t *nspv1.Target, now time.Duration) codes.Code {
	return c.Do(func(m *Model) codes.Code {
		if rpc == Register {
			return m.Register(t, now)
		}
		return m.Unregister(t)
	})
}
