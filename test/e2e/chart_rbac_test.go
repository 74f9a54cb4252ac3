package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/pkg/pool"
	"github.com/nordix/meridio-nsp/test/chart"
	"github.com/nordix/meridio-nsp/test/cluster"
	"github.com/nordix/meridio-nsp/test/play"
)

// trenchCRD stands for Meridio's own.
const trenchCRD = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: trenches.meridio.nordix.org}
spec:
  group: meridio.nordix.org
  scope: Namespaced
  names: {kind: Trench, listKind: TrenchList, plural: trenches, singular: trench}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

// rightsScene is an installation on a cluster that records who asks what, with the processes of the chart.
type rightsScene struct {
	*testing.T
	cluster   *cluster.Cluster
	namespace string
}

// The Roles allow what the processes ask for and nothing else: with any one verb less something would be refused, and any verb
// more would be of no use. What is asked for is what the audit log of the API server has after a run through the repertoire.
func TestChartPermissionsAreMinimal(t *testing.T) {
	cluster.SkipIfShort(t)
	c, err := cluster.Start(t.Context(), cluster.Config{Audit: true})
	require.NoError(t, err)
	t.Cleanup(c.Stop)
	if c.External() {
		t.Skip("an existing cluster has no audit log of ours")
	}
	require.NoError(t, c.Apply(t.Context(), []byte(trenchCRD), false))
	_, err = c.Kubectl(t.Context(), "wait", "--for=condition=Established", "crd/trenches.meridio.nordix.org")
	require.NoError(t, err)
	s := &rightsScene{T: t, cluster: c, namespace: c.Namespace(t)}
	require.NoError(t, chart.Install(t.Context(), c, s.namespace, chart.Values{
		"transport": "spiffe", "trenches": trenches("trench-a")["trenches"],
	}))
	require.NoError(t, play.Configure(t.Context(), c.Client(), s.namespace, "trench-a", "conduit-a", map[string]int{"stream-a": 10}))
	s.start(chart.ServiceAccount, "")
	s.start("nsp-trench-trench-a", "trench-a")

	s.service(true)
	s.settled(true)
	for range 2 { // of the same event, the second is a patch
		s.service(false)
		s.settled(false)
		s.service(true)
		s.settled(true)
	}
	s.usesItsRole(chart.ServiceAccount)
	s.usesItsRole("nsp-trench-trench-a")

	tokens := &rightsScene{T: t, cluster: c, namespace: c.Namespace(t)}
	tokens.verifiesTokens("review", cluster.Request{Verb: "create", Group: "authentication.k8s.io", Resource: "tokenreviews", Allowed: true})
}

// verifiesTokens runs a process that looks at tokens, and finds what it asks for a token that is shown.
func (s *rightsScene) verifiesTokens(verification string, asks cluster.Request) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	values := chart.Values{"authorisation": "token", "tokens": object{"verification": verification, "overPlaintext": true}}
	installVariant(s.T, s.cluster, s.namespace, chartVariant{values: values})
	nsp := s.start(chart.ServiceAccount, "", "--authorisation=token", "--token-verification="+verification, "--tokens-over-plaintext")
	pod, err := s.cluster.Pod(ctx, cluster.PodConfig{Namespace: s.namespace, Name: "lb", ServiceAccount: "lb"})
	require.NoError(s, err)
	token, err := s.cluster.PodToken(ctx, pod, "lb", auth.Audience)
	require.NoError(s, err)
	conn, err := nsp.Dial()
	require.NoError(s, err)
	defer conn.Close()
	showing := metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	watch, err := targetpoolv1.NewTargetFeedClient(conn).Watch(showing, &targetpoolv1.TargetFeedWatchRequest{
		Conduit: &targetpoolv1.Conduit{Namespace: s.namespace, Trench: "trench-a", Name: "conduit-a"},
	})
	require.NoError(s, err)
	_, err = watch.Recv()
	require.NoError(s, err, string(nsp.LogTail()))
	requests, err := s.cluster.Requests(s.namespace, chart.ServiceAccount)
	require.NoError(s, err)
	require.Contains(s, requests, asks)
}

// start runs a process under its ServiceAccount.
func (s *rightsScene) start(account, trench string, args ...string) *play.NSP {
	s.Helper()
	kubeconfig, err := s.cluster.ServiceAccountKubeconfig(s.Context(), s.namespace, account)
	require.NoError(s, err)
	nsp, err := play.StartNSP(s.Context(), play.NSPConfig{
		Namespace: s.namespace, Kubeconfig: kubeconfig, Dir: s.TempDir(), Trench: trench, Args: args,
	})
	require.NoError(s, err)
	s.Cleanup(nsp.Stop)
	return nsp
}

// service makes the Service a pool, or no pool any more.
func (s *rightsScene) service(marked bool) {
	s.Helper()
	labels := play.PoolLabels("trench-a", "conduit-a", "stream-a")
	if !marked {
		delete(labels, pool.LabelMarker)
	}
	_, err := s.cluster.Service(s.Context(), cluster.ServiceConfig{Namespace: s.namespace, Name: "web", Labels: labels})
	require.NoError(s, err)
}

// settled waits until the Service has been accepted, or has no condition any more.
func (s *rightsScene) settled(accepted bool) {
	s.Helper()
	require.EventuallyWithT(s.T, func(t *assert.CollectT) {
		service, err := s.cluster.Client().CoreV1().Services(s.namespace).Get(s.Context(), "web", metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, accepted, meta.IsStatusConditionTrue(service.Status.Conditions, "meridio.nordix.org/Accepted"))
		require.Equal(t, accepted, len(service.Status.Conditions) > 0)
	}, patience, 50*time.Millisecond)
}

// usesItsRole compares what the account may do with what it has done.
func (s *rightsScene) usesItsRole(account string) {
	s.Helper()
	role, err := s.cluster.Client().RbacV1().Roles(s.namespace).Get(s.Context(), account, metav1.GetOptions{})
	require.NoError(s, err)
	may := rights(role.Rules)
	require.NotEmpty(s, may)
	require.EventuallyWithT(s.T, func(t *assert.CollectT) {
		requests, err := s.cluster.Requests(s.namespace, account)
		require.NoError(t, err)
		require.Equal(t, may, asked(requests, role.Rules))
	}, patience, 50*time.Millisecond)
	requests, err := s.cluster.Requests(s.namespace, account)
	require.NoError(s, err)
	for _, r := range requests {
		require.True(s, r.Allowed, "%s is refused %+v", account, r)
		require.Equal(s, s.namespace, r.Namespace, "%s asks about another namespace: %+v", account, r)
	}
}

// rights are the single permissions of rules.
func rights(rules []rbacv1.PolicyRule) []string {
	var all []string
	for _, rule := range rules {
		names := rule.ResourceNames
		if len(names) == 0 {
			names = []string{"*"}
		}
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					for _, name := range names {
						all = append(all, fmt.Sprintf("%s %s.%s %s", verb, resource, group, name))
					}
				}
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// asked are the permissions that the requests need, in terms of the rules: a name counts where a rule has it.
func asked(requests []cluster.Request, rules []rbacv1.PolicyRule) []string {
	named := map[string]bool{}
	for _, rule := range rules {
		for _, name := range rule.ResourceNames {
			named[name] = true
		}
	}
	var all []string
	for _, r := range requests {
		name := "*"
		if named[r.Name] && r.Verb != "create" { // of which a rule does not know the name
			name = r.Name
		}
		all = append(all, fmt.Sprintf("%s %s.%s %s", r.Verb, r.Resource, r.Group, name))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// A list of target namespaces gives rights there and nowhere else; "*" gives them everywhere, but ConfigMaps stay those of the
// installation's own namespace.
func TestChartTargetNamespaces(t *testing.T) {
	c := cluster.Get(t)
	type question struct{ verb, group, resource, namespace string }
	namespace, other := c.Namespace(t), c.Namespace(t)
	for _, test := range []struct {
		variant string
		yes, no []question
	}{
		{"namespaces", []question{
			{"watch", "", "services", namespace}, {"watch", "", "services", "nsp-test-blue"},
			{"watch", "discovery.k8s.io", "endpointslices", "nsp-test-green"}, {"watch", "", "configmaps", namespace},
		}, []question{
			{"watch", "", "services", other}, {"watch", "", "services", ""}, {"watch", "", "configmaps", "nsp-test-blue"},
		}},
		{"cluster", []question{
			{"watch", "", "services", namespace}, {"watch", "", "services", ""}, {"create", "events.k8s.io", "events", other},
			{"watch", "", "configmaps", namespace},
		}, []question{
			{"watch", "", "configmaps", other}, {"watch", "", "secrets", namespace}, {"update", "", "services", namespace},
		}},
	} {
		t.Run(test.variant, func(t *testing.T) {
			i := slices.IndexFunc(chartVariants, func(v chartVariant) bool { return v.name == test.variant })
			installVariant(t, c, namespace, chartVariants[i])
			for answer, questions := range map[bool][]question{true: test.yes, false: test.no} {
				for _, q := range questions {
					review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
						User: "system:serviceaccount:" + namespace + ":" + chart.ServiceAccount,
						ResourceAttributes: &authorizationv1.ResourceAttributes{
							Verb: q.verb, Group: q.group, Resource: q.resource, Namespace: q.namespace,
						},
					}}
					review, err := c.Client().AuthorizationV1().SubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
					require.NoError(t, err)
					require.Equal(t, answer, review.Status.Allowed, "%+v", q)
				}
			}
		})
	}
}
