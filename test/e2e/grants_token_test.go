package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/pkg/nsp"
	"github.com/nordix/meridio-nsp/test/cluster"
)

// TestGrantForAServiceAccount: only pods that prove the account join, and a pod whose account has no grant cannot register, whatever
// its labels say.
func TestGrantForAServiceAccount(t *testing.T) {
	s := newTokenScene(t, cluster.Get(t), nsp.ByReview, "--target-namespaces=*")
	a := s.app()
	a.apply(readGrants)
	a.apply(readTargets)
	a.apply(grant, ", serviceAccounts: [web]")
	a.service("web", "stream-a")

	there := *s // pods of the other namespace, told by the same process
	there.namespace = a.namespace
	granted := there.labelled("granted", "web", false)
	other, err := a.cluster.Pod(t.Context(), cluster.PodConfig{
		Namespace: a.namespace, Name: "other", ServiceAccount: "db", Ready: true,
		Labels: map[string]string{"app": "web", "serviceaccount": "web"},
	})
	require.NoError(t, err)
	a.says("web", "MembersNotPermitted") // nobody has proven anything yet
	token := there.tokenOf(granted, auth.Audience)
	stranger, err := a.cluster.PodToken(t.Context(), other, "db", auth.Audience)
	require.NoError(t, err)
	there.isTold(token, "granted", "stream-a")
	there.mayNotJoin(stranger, "other")
	there.registers(token, stranger)

	a.revoke()
	a.says("web", "NotPermitted")
	there.mayNotJoin(token, "granted")
	a.apply(grant, ", serviceAccounts: [db]")
	there.isTold(stranger, "other", "stream-a")
	there.mayNotJoin(token, "granted")
}

// mayNotJoin waits until a pod is told no stream, and sees that it cannot register either.
func (s *scene) mayNotJoin(token, pod string) {
	s.Helper()
	var streams []string
	var err error
	require.True(s, waitFor(func() bool {
		streams, err = s.toldWith(token, pod)
		return len(streams) == 0 && (err == nil || status.Code(err) == codes.PermissionDenied)
	}), "%v %v", streams, err)
	_, err = nspv1.NewTargetRegistryClient(s.showing(token)).Register(s.within(), &nspv1.Target{
		Ips: secondary(9), Context: map[string]string{"identifier": "9"}, Stream: legacyStreamA(),
	})
	require.Equal(s, codes.PermissionDenied, status.Code(err), "%v", err)
	require.ErrorContains(s, err, "no TargetGrant lets")
}
