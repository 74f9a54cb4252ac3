package kube

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/pool"
)

func accepted(c pool.Counts) *pool.Pool {
	return &pool.Pool{Accepted: true, Reason: pool.ReasonAccepted, Message: "fine", HasSelector: true, Counts: c}
}

func TestProgrammed(t *testing.T) {
	three := pool.Counts{Members: 3, Ready: 2, Active: 2, Assigned: 3}
	panicking := accepted(pool.Counts{Members: 3, Ready: 1, Active: 3})
	panicking.Panic, panicking.PanicThreshold = true, 50
	byHand := accepted(pool.Counts{})
	byHand.HasSelector = false
	refused := &pool.Pool{Reason: pool.ReasonNotPermitted, Message: "no"}
	strangers := map[string]engine.Names{"registered from elsewhere": {First: []string{"172.16.0.8/24", "172.16.0.9/24"}, Total: 2}}
	waiting := map[string]engine.Names{
		"one waits for its identifier": {First: []string{"pod-c"}, Total: 1}, "nobody has got an identifier": {First: []string{"a", "b"}, Total: 3},
	}
	unwatched := map[string]engine.Names{"nobody registered": {First: []string{"pod-a", "pod-b"}, Total: 7}}
	for name, tc := range map[string]struct {
		pool    *pool.Pool
		targets engine.Counts
		is      bool
		reason  string
		message string
	}{
		"refused": {refused, engine.Counts{Registered: 1, Active: 1}, false, ReasonNotAccepted, "not accepted: NotPermitted"},
		"empty":   {accepted(pool.Counts{}), engine.Counts{}, false, ReasonNoMembers, "0 of 0 members are active"},
		"no selector": {byHand, engine.Counts{}, false, ReasonNoMembers, // P6
			"0 of 0 members are active; has no selector: only its EndpointSlices count"},
		"all withheld": {accepted(pool.Counts{Members: 2, Withheld: 2}), engine.Counts{}, false, ReasonNoMembers,
			"0 of 0 members are active; 2 withheld, see the condition Accepted"},
		"nobody registered": {accepted(three), engine.Counts{}, false, ReasonNoTargets,
			"0 of 3 members are active; 1 not ready; 3 without a registered target; 7 that no sidecar watches for: pod-a, pod-b and 5 more"},
		"nobody has got an identifier": {accepted(three), engine.Counts{Waiting: 3}, false, ReasonWaitingForIdentifier, // D9
			"0 of 3 members are active; 1 not ready; 3 without a registered target; " +
				"3 waiting until an identifier of 1..max-targets is free; 3 in need of an identifier: a, b and 1 more"},
		"all ready are active": {accepted(three), engine.Counts{Registered: 3, Active: 2}, true, ReasonProgrammed,
			"2 of 3 members are active; 1 not ready"},
		"one waits for its identifier": {accepted(three), engine.Counts{Registered: 3, Active: 1, Blocked: 1}, false,
			ReasonWaitingForIdentifier, "1 of 3 members are active; 1 not ready; 1 waiting for an identifier that another target holds" +
				"; 1 in need of an identifier: pod-c"},
		"bad identifier": {accepted(three), engine.Counts{Registered: 3, Active: 1, Invalid: 1}, false,
			ReasonWaitingForIdentifier, "1 of 3 members are active; 1 not ready; 1 without an identifier in 1..max-targets"},
		"none ready": {accepted(pool.Counts{Members: 2}), engine.Counts{Registered: 2}, false, ReasonNotReady,
			"0 of 2 members are active; 2 not ready"},
		"registered from elsewhere": {accepted(three), engine.Counts{}, false, ReasonNoTargets,
			"0 of 3 members are active; 1 not ready; 3 without a registered target; " +
				"2 registered in the stream by others than members of its pools: 172.16.0.8/24, 172.16.0.9/24"},
		"one of two ready": {accepted(three), engine.Counts{Registered: 1, Active: 1}, false, ReasonPartly,
			"1 of 3 members are active; 1 not ready; 2 without a registered target"},
		"panic": {panicking, engine.Counts{Registered: 3, Active: 3}, true, ReasonPanic,
			"3 of 3 members are active; 2 not ready; fewer than 50 % are ready, so all that are not terminating count as active"},
		"draining": {accepted(pool.Counts{Members: 2, Ready: 1, Draining: 1, Active: 1}), engine.Counts{Registered: 2, Active: 1, Draining: 1},
			true, ReasonProgrammed, "1 of 2 members are active; 1 draining"},
	} {
		t.Run(name, func(t *testing.T) {
			got := conditionsOf(&engine.PoolStatus{
				Pool: tc.pool, Targets: tc.targets, Strangers: strangers[name], Waiting: waiting[name], Unwatched: unwatched[name],
			})
			require.Equal(t, []metav1.Condition{
				{Type: "meridio.nordix.org/Accepted", Status: statusOf(tc.pool.Accepted), Reason: tc.pool.Reason, Message: tc.pool.Message},
				{Type: "meridio.nordix.org/Programmed", Status: statusOf(tc.is), Reason: tc.reason, Message: tc.message},
			}, got)
		})
	}
}

// P3: what was refused in the slices is told, and what the message says already is not told twice.
func TestAcceptedTellsProblems(t *testing.T) {
	p := accepted(pool.Counts{})
	p.Message = "fine; annotation is odd"
	p.Problems = []string{"annotation is odd"}
	require.Equal(t, p.Message, acceptedMessage(&engine.PoolStatus{Pool: p}), "not twice")
	p.Problems = append(p.Problems, "endpoint 1 is odd", "and 2 more problems in EndpointSlices")
	require.Equal(t, "fine; annotation is odd; endpoint 1 is odd; and 2 more problems in EndpointSlices", acceptedMessage(&engine.PoolStatus{Pool: p}))
}

func TestTransitionTime(t *testing.T) {
	then, now := metav1.NewTime(time.Unix(100, 0)), metav1.NewTime(time.Unix(200, 0))
	old := []metav1.Condition{{Type: "A", Status: "True", LastTransitionTime: then}, {Type: "B", Status: "True", LastTransitionTime: then}, {Type: "D", Status: "True"}}
	got := withTimes([]metav1.Condition{{Type: "A", Status: "True", Message: "other"}, {Type: "B", Status: "False"}, {Type: "C", Status: "True"}, {Type: "D", Status: "True"}}, old, now)
	for i, want := range []metav1.Time{then, now, now, now} {
		require.Equal(t, want, got[i].LastTransitionTime, got[i].Type)
	}
}

// The conditions are valid whatever the counts are, and a message is never longer than it may be.
func TestConditionsAreValid(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 5)
		text := rapid.StringN(0, 300, -1)
		p := &pool.Pool{Accepted: rapid.Bool().Draw(t, "accepted"), Reason: "R", Panic: rapid.Bool().Draw(t, "panic"),
			HasSelector: rapid.Bool().Draw(t, "selector"), Message: strings.Repeat(text.Draw(t, "message"), 100),
			Problems: rapid.SliceOfN(text, 0, 9).Draw(t, "problems"),
			Counts:   pool.Counts{Members: n.Draw(t, "members"), Ready: n.Draw(t, "ready"), Active: n.Draw(t, "active")}}
		s := &engine.PoolStatus{Pool: p, Targets: engine.Counts{Registered: n.Draw(t, "registered"), Active: n.Draw(t, "in use")}}
		for _, c := range conditionsOf(s) {
			require.NotEmpty(t, c.Reason)
			require.LessOrEqual(t, len(c.Message), maxMessage)
			require.True(t, utf8.ValidString(c.Message))
			if c.Type == ConditionProgrammed && c.Status == metav1.ConditionTrue {
				require.Positive(t, s.Targets.Active)
				require.GreaterOrEqual(t, s.Targets.Active, p.Counts.Ready)
			}
		}
	})
}
