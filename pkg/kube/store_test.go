package kube

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nordix/meridio-nsp/pkg/engine"
)

// batches keeps what is posted at once together.
type batches [][]engine.Event

func (b *batches) Post(events ...engine.Event) { *b = append(*b, events) }

// D1 at a relist: a pod moved to another slice while nobody watched, and its old slice is gone. Whoever took in the one without the
// other would have no such member for a moment, and tell load balancers and sidecars so.
func TestRelistIsOneChange(t *testing.T) {
	slice := func(name, version string) any {
		return &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "red", Name: name, ResourceVersion: version},
			AddressType: discoveryv1.AddressTypeIPv4,
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.1"},
				TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "red", Name: "p", UID: "u1"}}},
		}
	}
	posted := &batches{}
	n := newNamespace("red", SourceConfig{Sink: posted, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, n.services.Replace(nil, "1"))
	require.NoError(t, n.slices.Replace([]any{slice("x", "1")}, "1"))
	require.Len(t, *posted, 1, "the first state")

	require.NoError(t, n.slices.Replace([]any{slice("y", "2")}, "2"))
	require.Len(t, *posted, 2)
	require.ElementsMatch(t, []string{"gone x", "set y"}, said((*posted)[1]))

	require.NoError(t, n.slices.Replace([]any{slice("y", "2")}, "3"))
	require.Len(t, *posted, 2, "nothing is said where nothing is new")
}

// said are events of slices in words.
func said(events []engine.Event) (words []string) {
	for _, e := range events {
		switch e := e.(type) {
		case engine.SliceSet:
			words = append(words, "set "+e.Slice.Name)
		case engine.SliceGone:
			words = append(words, "gone "+e.Name)
		}
	}
	return words
}
