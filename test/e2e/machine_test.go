package e2e

import (
	"crypto/tls"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/credentials"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/targetpool/client"
	"github.com/nordix/meridio-nsp/test/chart"
	"github.com/nordix/meridio-nsp/test/cluster"
	"github.com/nordix/meridio-nsp/test/play"
	"github.com/nordix/meridio-nsp/test/spiffe"
)

// machineScene has both processes of an NSP with SVIDs, and the controller; virtual machines may join stream-a.
type machineScene struct {
	*relayScene
	ca  *spiffe.Authority
	own *identity
}

func newMachineScene(t *testing.T) *machineScene {
	t.Helper()
	c := cluster.Get(t)
	namespace := c.Namespace(t)
	ca, err := spiffe.NewAuthority("example.org")
	require.NoError(t, err)
	nsp, trench := newIdentity(t, ca, namespace, chart.ServiceAccount), newIdentity(t, ca, namespace, operatorsAccount)
	timeout := "--entry-timeout=" + lease.String()
	l := newLinked(t, c, namespace,
		play.NSPConfig{Credentials: nsp.source.Client(), Args: []string{nsp.socket(), timeout, "--trench-process-accounts=" + operatorsAccount}},
		play.NSPConfig{Credentials: trench.source.Client(), Args: []string{trench.socket(), timeout}})
	s := &machineScene{ca: ca, own: nsp, relayScene: &relayScene{trench: l.trench, scene: &scene{
		T: t, cluster: c, namespace: namespace, nsp: l.nsp, running: &sync.WaitGroup{},
	}}}
	t.Cleanup(s.running.Wait)
	s.controller("--leader-election=false")
	s.apply(grantOfMachine, namespace)
	s.service("web", "stream-a")
	return s
}

const identifiedTarget = `
apiVersion: targetpool.meridio.nordix.org/v1alpha1
kind: ExternalTarget
metadata: {name: %s, namespace: %s, labels: {app: web}}
spec: {source: {addresses: {ips: [%s]}}, identity: {spiffeID: "spiffe://example.org%s"}}
`

// clientAs is a client that proves the path.
func (s *machineScene) clientAs(id *identity) *client.Client {
	s.Helper()
	c, err := client.New(client.Config{Address: s.nsp.Address(), Credentials: id.source.Client(), PerRPC: client.NewSession()})
	require.NoError(s, err)
	return c
}

func (s *machineScene) balancer() *play.LB {
	s.Helper()
	lb, err := play.NewLB(s.clientAs(s.own), "trench-a", "conduit-a")
	require.NoError(s, err)
	s.background(lb.Run)
	return lb
}

// watching is a watch for ExternalTarget vm-1.
func (s *machineScene) watching(id *identity) (told func() []string, watch *client.Assignments) {
	s.Helper()
	return s.watchingBy(s.clientAs(id))
}

func (s *machineScene) watchingBy(c *client.Client) (told func() []string, watch *client.Assignments) {
	s.Helper()
	var mu sync.Mutex
	var streams []string
	watch, err := c.WatchAssignments(client.AssignmentsConfig{
		Workload: &targetpoolv1.Workload{Namespace: s.namespace, ExternalTarget: "vm-1"},
		Handler: func(l client.AssignmentList) {
			mu.Lock()
			defer mu.Unlock()
			streams = nil
			for _, item := range l.Items {
				streams = append(streams, item.GetStream().GetName())
			}
		},
	})
	require.NoError(s, err)
	s.background(watch.Run)
	return func() []string { mu.Lock(); defer mu.Unlock(); return streams }, watch
}

func (s *machineScene) isRefused(watch *client.Assignments, says string) {
	s.Helper()
	require.Eventually(s, func() bool {
		st := watch.Status()
		return !st.Live && st.Err != nil && strings.Contains(st.Err.Error(), says)
	}, patience, 10*time.Millisecond, "%v", watch.Status())
}

// What somebody is told depends on what he proves: which ExternalTarget that is, the cluster says, and that may change.
func TestIdentityOfAVirtualMachine(t *testing.T) {
	s := newMachineScene(t)
	s.apply(identifiedTarget, "vm-1", s.namespace, "192.0.2.1", "/vm/1")
	told, watch := s.watching(newIdentityOf(t, s.ca, "/vm/1"))
	holds := func(want string) {
		t.Helper()
		require.Eventually(t, func() bool { return strings.Join(told(), " ") == want }, patience, 10*time.Millisecond, "%v %v", told(), watch.Status())
	}
	holds("stream-a")
	_, wrong := s.watching(newIdentityOf(t, s.ca, "/vm/2"))
	s.isRefused(wrong, "nor the spec.identity of an ExternalTarget")
	_, account := s.watching(newIdentity(t, s.ca, s.namespace, "web"))
	s.isRefused(account, "does not prove to be ExternalTarget "+s.namespace+"/vm-1")
	require.True(t, watch.Status().Live, "nobody else disturbs it")

	_, err := s.cluster.Kubectl(t.Context(), "delete", "targetgrant", "-n", s.namespace, "vms")
	require.NoError(t, err)
	holds("")
	s.apply(grantOfMachine, s.namespace)
	holds("stream-a")

	s.apply(identifiedTarget, "vm-3", s.namespace, "192.0.2.3", "/vm/1")
	s.isRefused(watch, "both claim the identity")
	_, err = s.cluster.Kubectl(t.Context(), "delete", "et", "-n", s.namespace, "vm-3")
	require.NoError(t, err)
	require.Eventually(t, func() bool { return watch.Status().Live }, patience, 10*time.Millisecond)
	s.apply(identifiedTarget, "vm-1", s.namespace, "192.0.2.1", "/vm/other")
	s.isRefused(watch, "nor the spec.identity")
}

// machine is a network namespace that no pod knows, with the real sidecar.
func (s *machineScene) machine(id *identity, number int) *target {
	s.Helper()
	t := &target{relayScene: s.relayScene, name: "vm-1", number: number}
	t.runInterface(play.SidecarConfig{ExternalTarget: "vm-1", Args: []string{id.socket()}}) // and no way to the process of the trench
	return t
}

// balances waits until the load balancer has just these addresses active, all of vm-1.
func (s *machineScene) balances(lb *play.LB, numbers ...int) {
	s.Helper()
	want := map[string]bool{}
	for _, n := range numbers {
		want[secondary(n)[0]] = true
	}
	_, err := lb.WaitFor(s.within(), func(lb *play.LB) bool {
		have := map[string]bool{}
		for _, t := range lb.Targets() {
			if t.GetState() == targetpoolv1.Target_STATE_ACTIVE && t.GetPod() == s.namespace+"/vm-1" {
				have[t.GetAddresses()[0]] = true
			}
		}
		return fmt.Sprint(have) == fmt.Sprint(want)
	})
	require.NoErrorf(s, err, "want %v, have %v\n%s", want, lb.Targets(), s.nsp.LogTail())
}

// A virtual machine takes traffic, is replaced by a newer one while it still runs, loses it with the grant, and takes leave.
func TestVirtualMachineTakesTraffic(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	s := newMachineScene(t)
	lb := s.balancer()
	s.apply(identifiedTarget, "vm-1", s.namespace, "192.0.2.1", "/vm/1")
	id := newIdentityOf(t, s.ca, "/vm/1")
	old := s.machine(id, 1)
	old.shows("stream-a OPEN")
	s.balances(lb, 1)
	old.carries("inet 20.0.0.1/32", "from 20.0.0.1", "default via 172.16.0.254 dev net1")

	anew := s.machine(id, 2)
	anew.shows("stream-a OPEN")
	s.balances(lb, 2)
	require.Eventually(t, func() bool {
		st, _ := old.sidecar.Status(t.Context())
		return strings.Contains(st.NSP.Error, "came later")
	}, patience, 10*time.Millisecond, old.log())
	old.sidecar.Stop()
	anew.sidecar.Kill() // and comes back as somebody new to the NSP, with the same address
	require.NoError(t, anew.sidecar.Start())
	anew.shows("stream-a OPEN")
	s.balances(lb, 2)

	_, err := s.cluster.Kubectl(t.Context(), "delete", "targetgrant", "-n", s.namespace, "vms")
	require.NoError(t, err)
	s.balances(lb)
	anew.carries()
	s.apply(grantOfMachine, s.namespace)
	anew.shows("stream-a OPEN")
	s.balances(lb, 2)
	anew.carries("inet 20.0.0.1/32")
	anew.sidecar.Stop()
	require.Zero(t, anew.sidecar.Process().ExitCode())
	anew.carries()
	s.balances(lb)
}

const subjectTarget = `
apiVersion: targetpool.meridio.nordix.org/v1alpha1
kind: ExternalTarget
metadata: {name: vm-1, namespace: %s, labels: {app: web}}
spec: {source: {addresses: {ips: [192.0.2.1]}}, identity: {x509: {subject: %s, caConfigMap: {name: machines-ca}}}}
`

// certifies writes the authority that the ExternalTarget names.
func (s *machineScene) certifies(ca *spiffe.Authority) {
	s.Helper()
	_, err := s.cluster.Client().CoreV1().ConfigMaps(s.namespace).Update(s.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "machines-ca"}, Data: map[string]string{"ca.crt": string(ca.PEM())},
	}, metav1.UpdateOptions{})
	require.NoError(s, err)
}

// plainClient is a client with a certificate of an authority that the NSP's own trust bundles do not know.
func (s *machineScene) plainClient(ca *spiffe.Authority, name string) *client.Client {
	s.Helper()
	cert, err := ca.Plain(name, nil, nil)
	require.NoError(s, err)
	c, err := client.New(client.Config{Address: s.nsp.Address(), PerRPC: client.NewSession(), Credentials: credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, Certificates: []tls.Certificate{cert},
	})})
	require.NoError(s, err)
	return c
}

// A machine without SPIFFE proves itself by a subject and the authority that its ExternalTarget names, which is replaced at run time.
func TestCertificateOfAVirtualMachine(t *testing.T) {
	s := newMachineScene(t)
	first, next := newAuthority(t, "machines.example"), newAuthority(t, "machines.example")
	_, err := s.cluster.Client().CoreV1().ConfigMaps(s.namespace).Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "machines-ca"}, Data: map[string]string{"ca.crt": string(first.PEM())},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	s.apply(subjectTarget, s.namespace, "vm-1.example.org")
	told, watch := s.watchingBy(s.plainClient(first, "vm-1.example.org"))
	holds := func(told func() []string) {
		t.Helper()
		require.Eventually(t, func() bool { return strings.Join(told(), " ") == "stream-a" }, patience, 10*time.Millisecond)
	}
	holds(told)
	_, other := s.watchingBy(s.plainClient(first, "vm-2.example.org"))
	_, early := s.watchingBy(s.plainClient(next, "vm-1.example.org"))
	for _, w := range []*client.Assignments{other, early} {
		require.Eventually(t, func() bool { return w.Status().Err != nil }, patience, 10*time.Millisecond)
		require.False(t, w.Status().Live)
	}
	require.True(t, watch.Status().Live)

	s.nsp.Kill() // It is as it was when it comes back.
	require.NoError(t, s.nsp.Start(t.Context()))
	require.Eventually(t, func() bool { return watch.Status().Live }, patience, 10*time.Millisecond, "%v", watch.Status())
	s.certifies(next)
	require.Eventually(t, func() bool { return early.Status().Live && !watch.Status().Live }, patience, 10*time.Millisecond, "%v", early.Status())
	require.False(t, other.Status().Live)
}

func newAuthority(t *testing.T, domain string) *spiffe.Authority {
	t.Helper()
	ca, err := spiffe.NewAuthority(domain)
	require.NoError(t, err)
	return ca
}
