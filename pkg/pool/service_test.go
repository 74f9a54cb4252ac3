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
