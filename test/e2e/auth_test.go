package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/pkg/nsp"
	"github.com/nordix/meridio-nsp/pkg/targetpool/client"
	"github.com/nordix/meridio-nsp/test/chart"
	"github.com/nordix/meridio-nsp/test/cluster"
	"github.com/nordix/meridio-nsp/test/play"
)

// newTokenScene is a scene whose namespace process believes tokens, with the permissions that the chart gives for that.
func newTokenScene(t *testing.T, c *cluster.Cluster, verification string, args ...string) *scene {
	t.Helper()
	s := &scene{T: t, cluster: c, running: &sync.WaitGroup{}}
	s.namespace = c.Namespace(t)
	require.NoError(t, chart.Install(t.Context(), c, s.namespace, chart.Values{
		"transport": "plaintext", "authorisation": "token",
		"tokens": map[string]any{"verification": verification, "overPlaintext": true},
	}))
	kubeconfig, err := c.ServiceAccountKubeconfig(t.Context(), s.namespace, chart.ServiceAccount)
	require.NoError(t, err)
	require.NoError(t, play.Configure(t.Context(), c.Client(), s.namespace, "trench-a", "conduit-a", map[string]int{"stream-a": 10, "stream-b": 10}))
	s.nsp, err = play.StartNSP(t.Context(), play.NSPConfig{
		Namespace: s.namespace, Kubeconfig: kubeconfig, Dir: t.TempDir(),
		Args: append([]string{"--authorisation=token", "--tokens-over-plaintext", "--token-verification=" + verification}, args...),
	})
	require.NoError(t, err)
	t.Cleanup(s.nsp.Stop)
	t.Cleanup(s.running.Wait)
	return s
}

// labelled makes a pod of account web that Services select by the label.
func (s *scene) labelled(name, app string, host bool) *corev1.Pod {
	s.Helper()
	pod, err := s.cluster.Pod(s.Context(), cluster.PodConfig{
		Namespace: s.namespace, Name: name, Labels: map[string]string{"app": app}, ServiceAccount: "web", Ready: true, HostNetwork: host,
	})
	require.NoError(s, err)
	return pod
}

func (s *scene) tokenOf(pod *corev1.Pod, audience string) string {
	s.Helper()
	token, err := s.cluster.PodToken(s.Context(), pod, "web", audience)
	require.NoError(s, err)
	return token
}

// showing is a connection that shows a token; empty shows none.
func (s *scene) showing(token string) *grpc.ClientConn {
	s.Helper()
	options := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	if token != "" {
		path := filepath.Join(s.TempDir(), "token")
		require.NoError(s, os.WriteFile(path, []byte(token), 0o600))
		options = append(options, grpc.WithPerRPCCredentials(client.NewTokenFile(path, true)))
	}
	conn, err := grpc.NewClient(s.nsp.Address(), options...)
	require.NoError(s, err)
	s.Cleanup(func() { _ = conn.Close() })
	return conn
}

// toldWith are the streams that somebody who shows the token is told for the pod.
func (s *scene) toldWith(token, pod string) ([]string, error) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	watch, err := targetpoolv1.NewTargetPoolClient(s.showing(token)).Watch(ctx)
	require.NoError(s, err)
	_ = watch.Send(&targetpoolv1.TargetPoolWatchRequest{Workload: &targetpoolv1.Workload{Namespace: s.namespace, Pod: pod}})
	list, err := watch.Recv()
	streams := []string{}
	for _, a := range list.GetAssignments().GetItems() {
		streams = append(streams, a.GetStream().GetName())
	}
	return streams, err
}

func (s *scene) isTold(token, pod string, streams ...string) {
	s.Helper()
	require.Eventually(s, func() bool {
		got, err := s.toldWith(token, pod)
		return err == nil && slices.Equal(got, streams)
	}, patience, 50*time.Millisecond, "%s is never told %v", pod, streams)
}

func (s *scene) refused(code codes.Code, token, pod, says string) {
	s.Helper()
	_, err := s.toldWith(token, pod)
	require.Equal(s, code, status.Code(err), "%v", err)
	require.ErrorContains(s, err, says)
}

func (s *scene) selecting(name, stream, app string) {
	s.Helper()
	_, err := s.cluster.Service(s.Context(), cluster.ServiceConfig{
		Namespace: s.namespace, Name: name, Labels: play.PoolLabels("trench-a", "conduit-a", stream), Selector: map[string]string{"app": app},
	})
	require.NoError(s, err)
}

// TestRealTokens: tokens as the kubelet projects them prove a pod, and nothing else does, in both ways of verification. // D4
func TestRealTokens(t *testing.T) {
	for _, verification := range nsp.TokenVerifications {
		t.Run(verification, func(t *testing.T) {
			s := newTokenScene(t, cluster.Get(t), verification)
			s.selecting("a", "stream-a", "a")
			s.selecting("b", "stream-b", "b")
			one, two := s.labelled("one", "a", false), s.labelled("two", "b", false)
			tokenOne, tokenTwo := s.tokenOf(one, auth.Audience), s.tokenOf(two, auth.Audience)
			s.isTold(tokenOne, "one", "stream-a")
			s.isTold(tokenTwo, "two", "stream-b")

			s.refused(codes.PermissionDenied, tokenTwo, "one", "the token is of pod")
			s.refused(codes.Unauthenticated, s.tokenOf(one, "somebody.else"), "one", auth.Audience)
			s.refused(codes.Unauthenticated, "", "one", auth.Audience)
			s.refused(codes.Unauthenticated, tokenOne[:len(tokenOne)-8]+"AAAAAAAA", "one", "token")
			s.refused(codes.PermissionDenied, s.unbound(), "one", "not bound to a pod")
			s.registers(tokenOne, tokenTwo)
			s.sharesAnAddress()

			watch := s.watching(tokenOne)
			require.NoError(t, s.cluster.Finish(t.Context(), s.namespace, "one"))
			require.Eventually(t, func() bool {
				_, err := s.toldWith(tokenOne, "one")
				return status.Code(err) == codes.Unauthenticated
			}, time.Minute, 500*time.Millisecond, "the token of a pod that is gone is believed")
			require.NoError(t, watch(), "the process is not disturbed")
			s.isTold(tokenTwo, "two", "stream-b")
		})
	}
}

// unbound is a token of the account that no pod has.
func (s *scene) unbound() string {
	s.Helper()
	answer, err := s.cluster.Client().CoreV1().ServiceAccounts(s.namespace).CreateToken(s.Context(), "web",
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{auth.Audience}}}, metav1.CreateOptions{})
	require.NoError(s, err)
	return answer.Status.Token
}

// registers: what one pod registered the other cannot touch.
func (s *scene) registers(mine, others string) {
	s.Helper()
	target := &nspv1.Target{
		Ips: secondary(1), Context: map[string]string{"identifier": "1"},
		Stream: &nspv1.Stream{Name: "stream-a", Conduit: &nspv1.Conduit{Name: "conduit-a", Trench: &nspv1.Trench{Name: "trench-a"}}},
	}
	registry := func(token string) nspv1.TargetRegistryClient { return nspv1.NewTargetRegistryClient(s.showing(token)) }
	_, err := registry(mine).Register(s.within(), target)
	require.NoError(s, err)
	_, err = registry(others).Register(s.within(), target)
	require.Equal(s, codes.PermissionDenied, status.Code(err), "%v", err)
	_, err = registry(others).Unregister(s.within(), target)
	require.Equal(s, codes.PermissionDenied, status.Code(err), "%v", err)
	_, err = registry(mine).Unregister(s.within(), target)
	require.NoError(s, err)
}

// sharesAnAddress: two pods on the network of their node, each told its own, and a third one told neither's.
func (s *scene) sharesAnAddress() {
	s.Helper()
	h1, h2, h3 := s.labelled("host-1", "a", true), s.labelled("host-2", "b", true), s.labelled("host-3", "none", true)
	require.Equal(s, h1.Status.PodIP, h2.Status.PodIP)
	s.isTold(s.tokenOf(h1, auth.Audience), "host-1", "stream-a")
	s.isTold(s.tokenOf(h2, auth.Audience), "host-2", "stream-b")
	third := s.tokenOf(h3, auth.Audience)
	for _, pod := range []string{"host-1", "host-2", "one"} {
		s.refused(codes.PermissionDenied, third, pod, "the token is of pod")
	}
}

// watching opens the feed; what is returned tells whether it goes on.
func (s *scene) watching(token string) (goesOn func() error) {
	s.Helper()
	ctx, cancel := context.WithCancel(s.Context())
	s.Cleanup(cancel)
	feed, err := targetpoolv1.NewTargetFeedClient(s.showing(token)).Watch(ctx,
		&targetpoolv1.TargetFeedWatchRequest{Conduit: &targetpoolv1.Conduit{Trench: "trench-a", Name: "conduit-a"}})
	require.NoError(s, err)
	return func() error {
		_, err := feed.Recv()
		if err != nil {
			return fmt.Errorf("the feed ended: %w", err)
		}
		return nil
	}
}

// TestKnownCallersGoOnWithoutAPIServer: whoever is known is not asked about again while nobody can tell; a new caller is let in
// where keys are at hand, also after a restart.
func TestKnownCallersGoOnWithoutAPIServer(t *testing.T) {
	cluster.SkipIfShort(t)
	c, err := cluster.Start(t.Context(), cluster.Config{})
	require.NoError(t, err)
	t.Cleanup(c.Stop)
	review, local := newTokenScene(t, c, nsp.ByReview), newTokenScene(t, c, nsp.ByOwnKeys)
	tokens := map[*scene][2]string{}
	for _, s := range []*scene{review, local} {
		s.selecting("a", "stream-a", "a")
		known, stranger := s.labelled("known", "a", false), s.labelled("new", "a", false)
		tokens[s] = [2]string{s.tokenOf(known, auth.Audience), s.tokenOf(stranger, auth.Audience)}
		s.isTold(tokens[s][0], "known", "stream-a")
	}
	require.NoError(t, c.StopAPIServer())
	for began := time.Now(); time.Since(began) < 65*time.Second; time.Sleep(5 * time.Second) { // beyond the time that answers are kept
		for _, s := range []*scene{review, local} {
			streams, err := s.toldWith(tokens[s][0], "known")
			require.NoError(t, err)
			require.Equal(t, []string{"stream-a"}, streams)
		}
	}
	review.refused(codes.Unavailable, tokens[review][1], "new", "cannot be verified now")
	_, err = local.toldWith(tokens[local][1], "new")
	require.NoError(t, err)

	local.nsp.Stop()
	require.NoError(t, local.nsp.Start(t.Context()))
	_, err = nspv1.NewTargetRegistryClient(local.showing(tokens[local][1])).Unregister(local.within(), &nspv1.Target{
		Ips:    secondary(3),
		Stream: &nspv1.Stream{Name: "stream-a", Conduit: &nspv1.Conduit{Name: "conduit-a", Trench: &nspv1.Trench{Name: "trench-a"}}},
	})
	require.NoError(t, err, "the keys are kept with the registry")
	require.NoError(t, c.StartAPIServer(t.Context()))
	review.isTold(tokens[review][1], "new", "stream-a")
}
