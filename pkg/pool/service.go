package pool

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nordix/meridio-nsp/pkg/stream"
)

// The labels and annotations of a pool. Kubernetes hands a Service with LabelMarker to nobody but the proxy named there, so
// kube-proxy lets go of it: https://kubernetes.io/docs/reference/labels-annotations-taints/
const (
	LabelMarker = "service.kubernetes.io/service-proxy-name"
	MarkerValue = "meridio-target-pool-service"

	LabelNamespace = "meridio.nordix.org/namespace"
	LabelTrench    = "meridio.nordix.org/trench"
	LabelConduit   = "meridio.nordix.org/conduit"
	LabelStream    = "meridio.nordix.org/stream"

	AnnotationAssignment     = "meridio.nordix.org/assignment"
	AnnotationDraining       = "meridio.nordix.org/draining"
	AnnotationPanicThreshold = "meridio.nordix.org/panic-threshold"
)

// TypeExternalName is the one type of Service that has no endpoints.
const TypeExternalName = "ExternalName"

// spec is what a Service asks for.
type spec struct {
	uid            string
	created        time.Time
	stream         stream.Key
	assignment     Assignment
	keepDrain      bool
	panicThreshold int
	hasSelector    bool
	ports          []Port
	// problems are annotations that were not understood.
	problems []string
	refusal  refusal
	// permission is what the namespace may do in the stream.
	permission Permission
	// component is the Service's name across clusters, zero where this cluster has none.
	component Component
}

// refusal is why a Service is not accepted; the zero value is none.
type refusal struct{ reason, message string }

func (s *spec) accepted() bool { return s != nil && s.refusal == refusal{} }

func (s *spec) equal(o *spec) bool {
	if s == nil || o == nil {
		return s == o
	}
	return s.listsLike(o) && s.created.Equal(o.created) && s.stream == o.stream && s.assignment == o.assignment &&
		s.keepDrain == o.keepDrain && s.panicThreshold == o.panicThreshold && s.hasSelector == o.hasSelector && slices.Equal(s.ports, o.ports) &&
		s.refusal == o.refusal && s.permission.equal(o.permission) && slices.Equal(s.problems, o.problems)
}

// listsLike is whether both read the same members from the same slices.
func (s *spec) listsLike(o *spec) bool {
	if s == nil || o == nil {
		return s == o
	}
	return s.uid == o.uid && s.permission.readsLike(o.permission) && s.accepted() == o.accepted()
}

// compareAge is the order of rule 7; the name breaks the tie of objects that have no UID.
func (p *pool) compareAge(o *pool) int {
	return cmp.Or(p.spec.created.Compare(o.spec.created), strings.Compare(p.spec.uid, o.spec.uid), p.ref.Compare(o.ref))
}

// understand is nil for a Service that is no pool of this NSP.
func (t *Table) understand(s *Service) *spec {
	if s == nil || s.Labels[LabelMarker] != MarkerValue || streamNamespace(s) != t.cfg.Namespace {
		return nil
	}
	sp, refused := parse(*s, t.cfg.Assignment)
	sp.permission = t.permission(s.Namespace, sp.stream)
	if t.cfg.Cluster != "" {
		sp.component = Component{t.cfg.Cluster, s.Namespace, s.Name}
	}
	if refused == (refusal{}) && !sp.permission.Granted() {
		refused = refusal{ReasonNotPermitted, fmt.Sprintf(
			"namespace %s may not join stream %s; ask the owner of trench %s for a TargetGrant", s.Namespace, sp.stream, sp.stream.Trench)}
	}
	sp.refusal = refused
	return &sp
}

func (t *Table) permission(namespace string, k stream.Key) Permission {
	p := t.cfg.Grants.Permission(namespace, k)
	p.Pods = p.Pods || namespace == t.cfg.Namespace
	return p
}

func streamNamespace(s *Service) string {
	return cmp.Or(s.Labels[LabelNamespace], s.Namespace)
}

// parse reads labels, annotations and type; byDefault is the assignment where no annotation says.
func parse(s Service, byDefault Assignment) (spec, refusal) {
	sp := spec{uid: s.UID, created: s.Created, hasSelector: s.HasSelector, ports: s.Ports}
	sp.readAnnotations(s.Annotations, byDefault)
	key, refused := parseStream(s)
	sp.stream = key
	if refused == (refusal{}) && s.Type == TypeExternalName {
		refused = refusal{ReasonUnsupportedType,
			"type ExternalName has no endpoints; set spec.type to ClusterIP and spec.clusterIP to None"}
	}
	return sp, refused
}

func parseStream(s Service) (stream.Key, refusal) {
	var missing []string
	for _, l := range []struct{ label, what string }{
		{LabelTrench, "trench"}, {LabelConduit, "conduit"}, {LabelStream, "stream"},
	} {
		if v, ok := s.Labels[l.label]; !ok {
			missing = append(missing, fmt.Sprintf("label %s is missing; set it to the name of the %s", l.label, l.what))
		} else if v == "" {
			missing = append(missing, fmt.Sprintf("label %s is empty; set it to the name of the %s", l.label, l.what))
		}
	}
	if missing != nil {
		return stream.Key{}, refusal{ReasonIncompleteLabels, strings.Join(missing, "; ")}
	}
	key := stream.Key{
		Namespace: streamNamespace(&s), Trench: s.Labels[LabelTrench], Conduit: s.Labels[LabelConduit], Name: s.Labels[LabelStream],
	}
	if err := key.Validate(); err != nil {
		return stream.Key{}, refusal{ReasonInvalidLabels, "correct the labels meridio.nordix.org/...: " + err.Error()}
	}
	return key, refusal{}
}

// readAnnotations uses the default for a value that it does not know: a typing error in a policy must not take a stream away.
func (s *spec) readAnnotations(annotations map[string]string, byDefault Assignment) {
	s.assignment = byDefault
	if v, ok := annotations[AnnotationAssignment]; ok {
		switch a := Assignment(v); a {
		case ByMembership, ByReadiness:
			s.assignment = a
		default:
			s.unknown(AnnotationAssignment, v, `"membership" or "ready"`, string(byDefault))
		}
	}
	if v, ok := annotations[AnnotationDraining]; ok {
		s.keepDrain = v == "keep"
		if v != "keep" && v != "remove" {
			s.unknown(AnnotationDraining, v, `"remove" or "keep"`, "remove")
		}
	}
	if v, ok := annotations[AnnotationPanicThreshold]; ok {
		percent, err := strconv.Atoi(v)
		if err != nil || percent < 0 || percent > 100 || strconv.Itoa(percent) != v {
			s.unknown(AnnotationPanicThreshold, v, `a number from "0" to "100"`, "0")
			percent = 0
		}
		s.panicThreshold = percent
	}
}

// unknown quotes the beginning only: an annotation may have 256 KiB.
func (s *spec) unknown(annotation, value, want, byDefault string) {
	s.problems = append(s.problems, fmt.Sprintf("annotation %s is %.40q; set it to %s (until then %q is used)", annotation, value, want, byDefault))
}
