package e2e

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/pkg/nsp"
	"github.com/nordix/meridio-nsp/test/cluster"
)

// podWatch is the watch of one pod, which is known by its UID.
type podWatch struct {
	*scene
	stream grpc.BidiStreamingClient[targetpoolv1.TargetPoolWatchRequest, targetpoolv1.TargetPoolWatchResponse]
}

func (s *scene) watchAs(conn *grpc.ClientConn, pod *corev1.Pod) *podWatch {
	s.Helper()
	ctx, cancel := context.WithCancel(s.Context())
	s.Cleanup(cancel)
	w, err := targetpoolv1.NewTargetPoolClient(conn).Watch(ctx)
	require.NoError(s, err)
	require.NoError(s, w.Send(&targetpoolv1.TargetPoolWatchRequest{
		Workload: &targetpoolv1.Workload{Namespace: pod.Namespace, Pod: pod.Name, PodUid: string(pod.UID)},
	}))
	return &podWatch{s, w}
}

// next is the next list; heartbeats are none.
func (w *podWatch) next() (streams []string, err error) {
	for {
		m, err := w.stream.Recv()
		if err != nil {
			return nil, err
		}
		if m.GetAssignments() == nil {
			continue
		}
		for _, a := range m.GetAssignments().GetItems() {
			streams = append(streams, a.GetStream().GetName())
		}
		return streams, nil
	}
}

// until reads on until a list is as wanted.
func (w *podWatch) until(want ...string) {
	w.Helper()
	for {
		have, err := w.next()
		require.NoError(w, err)
		slices.Sort(have)
		if slices.Equal(have, want) {
			return
		}
	}
}

// The watch of a pod that is deleted under it says that nothing is to be held any more, and what the pod's successor of the same name
// is to hold it is never told. Where pods prove themselves it ends, for the pod is no more. // P18
func TestPodDeletedUnderItsWatch(t *testing.T) {
	c := cluster.Get(t)
	for name, begin := range map[string]func() (*scene, func(*corev1.Pod) *grpc.ClientConn){
		"unproven": func() (*scene, func(*corev1.Pod) *grpc.ClientConn) {
			s := makeScene(t, c)
			conn, err := s.nsp.Dial()
			require.NoError(t, err)
			t.Cleanup(func() { _ = conn.Close() })
			return s, func(*corev1.Pod) *grpc.ClientConn { return conn }
		},
		"by token": func() (*scene, func(*corev1.Pod) *grpc.ClientConn) {
			s := newTokenScene(t, c, nsp.ByReview)
			return s, func(pod *corev1.Pod) *grpc.ClientConn { return s.showing(s.tokenOf(pod, auth.Audience)) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, as := begin()
			s.selecting("a", "stream-a", "a")
			old := s.labelled("one", "a", false)
			gone := s.watchAs(as(old), old)
			gone.until("stream-a")
			require.NoError(t, c.Finish(t.Context(), s.namespace, "one"))
			gone.until()

			successor := s.labelled("one", "a", false)
			require.NotEqual(t, old.UID, successor.UID)
			s.watchAs(as(successor), successor).until("stream-a")
			if name == "by token" {
				for err := error(nil); status.Code(err) != codes.Unauthenticated; {
					var list []string
					list, err = gone.next()
					require.Empty(t, list)
				}
				return
			}
			s.selecting("b", "stream-b", "a")
			s.watchAs(as(successor), successor).until("stream-a", "stream-b")
			s.watchAs(as(old), old).until()
		})
	}
}
