package pool

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRefusals(t *testing.T) {
	for name, tc := range map[string]struct {
		edit            func(*Service)
		reason, message string
	}{
		"missing": {func(s *Service) { delete(s.Labels, LabelTrench) }, ReasonIncompleteLabels,
			"label meridio.nordix.org/trench is missing; set it to the name of the trench"},
		"empty": {func(s *Service) { s.Labels[LabelStream] = "" }, ReasonIncompleteLabels,
			"label meridio.nordix.org/stream is empty; set it to the name of the stream"},
		"two": {func(s *Service) { s.Labels[LabelConduit] = ""; delete(s.Labels, LabelStream) }, ReasonIncompleteLabels,
			"label meridio.nordix.org/conduit is empty; set it to the name of the conduit; " +
				"label meridio.nordix.org/stream is missing; set it to the name of the stream"},
		"malformed": {func(s *Service) { s.Labels[LabelStream] = "a/b" }, ReasonInvalidLabels, `the stream "a/b" may hold only`},
		"type":      {func(s *Service) { s.Type = TypeExternalName }, ReasonUnsupportedType, "set spec.type to ClusterIP"},
		"assignment": {annotate(AnnotationAssignment, "always"), ReasonInvalidAnnotations,
			`annotation meridio.nordix.org/assignment is "always"; set it to "membership" or "ready" (until then "membership" is used)`},
		"draining": {annotate(AnnotationDraining, ""), ReasonInvalidAnnotations,
			`annotation meridio.nordix.org/draining is ""; set it to "remove" or "keep" (until then "remove" is used)`},
		"threshold": {annotate(AnnotationPanicThreshold, "101"), ReasonInvalidAnnotations,
			`annotation meridio.nordix.org/panic-threshold is "101"; set it to a number from "0" to "100" (until then "0" is used)`},
	} {
		t.Run(name, func(t *testing.T) {
			s := service("s", "t1", "x1")
			tc.edit(&s)
			tb := table(s)
			tb.Flush()
			p := tb.Pool(s.Ref)
			require.Equal(t, tc.reason, p.Reason)
			require.Contains(t, p.Message, tc.message)
			require.Equal(t, tc.reason == ReasonInvalidAnnotations, p.Accepted)
			require.Equal(t, p.Accepted, len(p.Problems) == 1)
			require.Equal(t, ByMembership, p.Assignment)
		})
	}
}

func annotate(name, value string) func(*Service) {
	return func(s *Service) { s.Annotations = map[string]string{name: value} }
}

func TestServicesOfOthersAreNoPools(t *testing.T) {
	for name, edit := range map[string]func(*Service){
		"label names another namespace": func(s *Service) { s.Labels[LabelNamespace] = "other" },
		"incomplete and of another":     func(s *Service) { s.Labels[LabelNamespace] = "other"; delete(s.Labels, LabelTrench) },
		"own namespace is another":      func(s *Service) { s.Namespace = "other" },
		"marker of another proxy":       func(s *Service) { s.Labels[LabelMarker] = "someone" },
		"no labels":                     func(s *Service) { s.Labels = nil },
	} {
		t.Run(name, func(t *testing.T) {
			s := service("s", "t1", "x1")
			edit(&s)
			tb := table(s)
			require.Empty(t, tb.Flush().Pools)
			require.Nil(t, tb.Pool(s.Ref))
		})
	}
}

func TestDefaultAssignmentIsConfigured(t *testing.T) {
	tb := New(Config{Namespace: own, Assignment: ByReadiness})
	explicit := service("b", "t1", "x1")
	explicit.Annotations = map[string]string{AnnotationAssignment: "membership"}
	tb.SetService(service("a", "t1", "x1"))
	tb.SetService(explicit)
	tb.Flush()
	require.Equal(t, ByReadiness, tb.Pool(Ref{own, "a"}).Assignment)
	require.Equal(t, ByMembership, tb.Pool(Ref{own, "b"}).Assignment)
}

func FuzzService(f *testing.F) {
	f.Add("t1", "c1", "x1", "", "ClusterIP", "membership", "keep", "50")
	f.Add("", "c/1", strings.Repeat("x", 64), "other", "ExternalName", "\xff", strings.Repeat("k", 1000), "-0")
	f.Fuzz(func(t *testing.T, trench, conduit, name, namespace, kind, assignment, drain, threshold string) {
		s := service("s", trench, name)
		s.Labels[LabelConduit], s.Labels[LabelNamespace], s.Type = conduit, namespace, kind
		s.Annotations = map[string]string{
			AnnotationAssignment: assignment, AnnotationDraining: drain, AnnotationPanicThreshold: threshold,
		}
		sp, refused := parse(s, ByMembership)
		require.GreaterOrEqual(t, sp.panicThreshold, 0)
		require.LessOrEqual(t, sp.panicThreshold, 100)
		require.Contains(t, []Assignment{ByMembership, ByReadiness}, sp.assignment)
		for _, p := range append(sp.problems, refused.message) {
			require.Less(t, len(p), 1024, "a condition's message is for people")
		}
		if refused == (refusal{}) {
			require.NoError(t, sp.stream.Validate())
			require.NotEqual(t, TypeExternalName, kind)
		} else {
			require.NotEmpty(t, refused.message)
			require.NotEmpty(t, refused.reason)
		}
	})
}

// A policy is what the annotation says now: each takes effect when it changes, on members that are as they were.
func TestPoliciesChangeWhileMembersStay(t *testing.T) {
	for name, tc := range map[string]struct {
		annotation, value string
		members           []Endpoint
		before, after     Answer
	}{
		"assignment": {
			AnnotationAssignment, "ready", []Endpoint{pod("u1", "10.0.0.1", false)},
			Answer{State: Inactive, Reason: ReasonNotReady, Assigned: true}, Answer{State: Inactive, Reason: ReasonNotReady},
		},
		"draining": {
			AnnotationDraining, "keep", []Endpoint{leaving("u1", "10.0.0.1", true), pod("u2", "10.0.0.2", true)},
			Answer{State: Inactive, Reason: ReasonTerminating, Assigned: true}, Answer{State: DrainingState, Reason: ReasonDraining, Assigned: true},
		},
		"panic threshold": {
			AnnotationPanicThreshold, "60", []Endpoint{pod("u1", "10.0.0.1", false), pod("u2", "10.0.0.2", true)},
			Answer{State: Inactive, Reason: ReasonNotReady, Assigned: true}, Answer{State: Active, Reason: ReasonPanic, Assigned: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := service("s", "t1", "x1")
			tb := table(s)
			put(tb, slice4("s", "x", 1, tc.members...))
			require.Equal(t, at(1), tb.Member(podOf("u1")).Streams[x1].Caused)
			for _, want := range []struct {
				annotations map[string]string
				Answer
			}{{nil, tc.before}, {map[string]string{tc.annotation: tc.value}, tc.after}, {nil, tc.before}} {
				s.Annotations = want.annotations
				tb.SetService(s)
				tb.Flush()
				is := tb.Member(podOf("u1")).Streams[x1]
				require.True(t, is.equal(Answer{State: want.State, Reason: want.Reason, Assigned: want.Assigned, Services: []Ref{s.Ref}}), "%+v", is)
			}
		})
	}
}

// Of two pools of one stream the one that gives more decides, in both respects.
func TestStrongestOfTwoPoolsOfOneStream(t *testing.T) {
	for _, order := range [][2]string{{"ready", "membership"}, {"membership", "ready"}} {
		a, b := service("a", "t1", "x1"), service("b", "t1", "x1")
		a.Annotations = map[string]string{AnnotationAssignment: order[0]}
		b.Annotations = map[string]string{AnnotationAssignment: order[1]}
		tb := table(a, b)
		put(tb, slice4("a", "x", 1, pod("u1", "10.0.0.1", false)), slice4("b", "y", 1, pod("u1", "10.0.0.1", false)))
		require.True(t, tb.Member(podOf("u1")).Streams[x1].Assigned, "%s, %s", order[0], order[1])
	}
}
