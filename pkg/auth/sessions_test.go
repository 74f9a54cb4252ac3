package auth_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/nordix/meridio-nsp/pkg/auth"
)

var vm = auth.Target{Namespace: "apps", Name: "vm-1", UID: "u1"}

// room is a Sessions with what was done to it.
type room struct {
	sessions auth.Sessions
	now      time.Time
	turns    map[string]*turn
}

type turn struct {
	ended error
	done  func()
}

func newRoom() *room {
	r := &room{now: time.Unix(1000, 0), turns: map[string]*turn{}}
	r.sessions.SetClock(func() time.Time { return r.now })
	return r
}

// do is one of "watch SESSION as NAME", "call SESSION as NAME", "close NAME", "wait DURATION"; ok is whether it was let in.
func (r *room) do(what string) (ok bool) {
	var kind, session, name string
	_, _ = fmt.Sscanf(what, "%s %s as %s", &kind, &session, &name)
	one := &turn{}
	end := func(err error) { one.ended = errors.Join(one.ended, err) }
	var err error
	switch kind {
	case "watch":
		one.done, err = r.sessions.Watch(vm, session, end)
	case "call":
		one.done, err = r.sessions.Call(vm, session, end)
	case "close":
		r.turns[session].done()
		return true
	case "wait":
		d, err := time.ParseDuration(session)
		if err != nil {
			panic(err)
		}
		r.now = r.now.Add(d)
		return true
	}
	if err == nil {
		r.turns[name] = one
	}
	var refusal *auth.Refusal
	return err == nil || !errors.As(err, &refusal) || refusal.Reason != auth.Superseded
}

func TestNewestSessionSpeaks(t *testing.T) {
	for name, c := range map[string]struct {
		steps   []string
		refused []string // of the steps
		ended   []string // of the turns
	}{
		"one sidecar": {
			steps: []string{"watch a as w", "call a as c", "close c", "close w", "call a as d"},
		},
		"a reconnect that overtakes the disconnect": {
			steps: []string{"watch a as w1", "watch a as w2", "close w1", "call a as c", "call b as d"}, refused: []string{"call b as d"},
			ended: []string{"w1"},
		},
		"a restart whose old connection is half open": {
			steps:   []string{"watch a as w1", "watch b as w2", "call a as late", "call b as c", "close w1", "call a as later"},
			refused: []string{"call a as late", "call a as later"}, ended: []string{"w1"},
		},
		"a goodbye that was under way": {
			steps: []string{"watch a as w1", "call a as bye", "watch b as w2", "call b as hello", "close w2"}, ended: []string{"w1", "bye"},
		},
		"a goodbye under way after a restart of the server": {
			steps: []string{"call a as bye", "watch b as w"}, ended: []string{"bye"},
		},
		"two that live do not take turns": {
			steps:   []string{"watch a as w1", "watch b as w2", "close w1", "watch a as w3", "watch b as w4", "close w2", "watch a as w5"},
			refused: []string{"watch a as w3", "watch a as w5"}, ended: []string{"w1", "w2"},
		},
		"the newer is away for a moment": {
			steps:   []string{"watch a as w1", "watch b as w2", "close w1", "close w2", "wait 60s", "watch a as w3", "call a as c", "watch b as w4"},
			refused: []string{"watch a as w3", "call a as c"}, ended: []string{"w1"},
		},
		"the newer is gone for good": {
			steps: []string{"watch a as w1", "watch b as w2", "close w1", "close w2", "wait 75s", "watch a as w3", "call a as c"},
			ended: []string{"w1"},
		},
		"the newer comes back after all": {
			steps:   []string{"watch a as w1", "watch b as w2", "close w1", "close w2", "wait 2m", "watch a as w3", "watch b as w4", "watch a as w5"},
			refused: []string{"watch a as w5"}, ended: []string{"w1", "w3"},
		},
		"who never watches": {
			steps: []string{"call a as c1", "call b as c2", "close c1", "call a as c3"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRoom()
			var refused, ended []string
			for _, step := range c.steps {
				if !r.do(step) {
					refused = append(refused, step)
				}
			}
			for name, turn := range r.turns {
				if turn.ended != nil {
					require.ErrorContains(t, turn.ended, "came later", name)
					ended = append(ended, name)
				}
			}
			require.Equal(t, c.refused, refused)
			require.ElementsMatch(t, c.ended, ended)
		})
	}
}

func TestTargetsHaveSessionsOfTheirOwn(t *testing.T) {
	var s auth.Sessions
	other := auth.Target{Namespace: "apps", Name: "vm-2", UID: "u2"}
	for _, target := range []auth.Target{vm, other} {
		_, err := s.Watch(target, target.Name, func(err error) { t.Errorf("%s was ended: %v", target, err) })
		require.NoError(t, err)
	}
	_, err := s.Call(vm, "vm-1", nil)
	require.NoError(t, err)
	_, err = s.Call(other, "vm-1", nil)
	require.ErrorIs(t, err, auth.ErrDenied)
}

// Whatever happens in whatever order: the watch that was let in last goes on, all others are ended or closed, and as long as it goes on
// or has ended a moment ago calls of its session, and of no other, are let in.
func TestSessionsProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newRoom()
		session := rapid.SampledFrom([]string{"a", "b", "c"})
		type watch struct {
			session string
			closed  bool
			*turn
		}
		var watches []*watch
		var calls []*watch
		var closed time.Time // when the last one was
		for i := range rapid.IntRange(1, 40).Draw(t, "steps") {
			name := fmt.Sprint(i)
			var last *watch
			if len(watches) > 0 {
				last = watches[len(watches)-1]
			}
			held := last != nil && (!last.closed || r.now.Before(closed.Add(auth.SessionLingers)))
			switch s := session.Draw(t, "session"); rapid.IntRange(0, 4).Draw(t, "what") {
			case 0, 1:
				if r.do("watch " + s + " as " + name) {
					for _, c := range calls {
						require.Equal(t, c.session != s && !c.closed, c.ended != nil && !c.closed, "calls of others end")
					}
					calls = slices.DeleteFunc(calls, func(c *watch) bool { return c.ended != nil })
					watches = append(watches, &watch{session: s, turn: r.turns[name]})
				} else {
					require.True(t, held && last.session != s, "refused without need")
					require.True(t, slices.ContainsFunc(watches, func(w *watch) bool { return w.session == s }), "a new session is never refused")
				}
			case 2:
				ok := r.do("call " + s + " as " + name)
				require.Equal(t, !held || last.session == s, ok)
				if ok {
					calls = append(calls, &watch{session: s, turn: r.turns[name]})
				}
			case 3:
				if all := slices.Concat(watches, calls); len(all) > 0 {
					one := rapid.SampledFrom(all).Draw(t, "one")
					if one == last && !one.closed {
						closed = r.now
					}
					if !one.closed {
						one.done()
					}
					one.closed = true
				}
			case 4:
				r.now = r.now.Add(time.Duration(rapid.IntRange(1, 100).Draw(t, "seconds")) * time.Second)
			}
			for i, w := range watches {
				require.Equal(t, i < len(watches)-1 && !closedBefore(w.closed, w.ended), w.ended != nil, "only the last watch goes on")
			}
		}
	})
}

// closedBefore tells whether a watch was closed by its own side before another one came.
func closedBefore(closed bool, ended error) bool { return closed && ended == nil }
