package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/pkg/targetpool/client"
	"github.com/nordix/meridio-nsp/test/chart"
	"github.com/nordix/meridio-nsp/test/cluster"
	"github.com/nordix/meridio-nsp/test/play"
	"github.com/nordix/meridio-nsp/test/spiffe"
)

// relayScene is a scene with a trench process that relays to the namespace process, and an old load balancer there.
type relayScene struct {
	*scene
	trench *play.NSP
	lb     *play.LegacyLB
	// empty counts the times that the load balancer was left without a target, once it had one.
	empty atomic.Int32
}

func newRelayScene(t *testing.T, args ...string) *relayScene {
	s := &relayScene{scene: newScene(t, args...)}
	require.NoError(t, s.cluster.Apply(t.Context(), fmt.Appendf(nil, operatorsRole, s.namespace), false))
	cfg := trenchConfig(t.Context(), t, s.cluster, s.namespace)
	cfg.Args = []string{"--namespace-nsp=" + s.nsp.Address()}
	var err error
	s.trench, err = play.StartNSP(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(s.trench.Stop)
	conn, err := s.trench.Dial()
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	s.lb = play.NewLegacyLB(conn, "trench-a", "conduit-a", "stream-a")
	s.lb.OnUpdate = func(play.LegacyUpdate) {
		if len(s.lb.Active("stream-a")) == 0 {
			s.empty.Add(1)
		}
	}
	s.background(s.lb.Run)
	return s
}

// oldTAPA makes a pod whose sidecar registers at the trench process.
func (s *relayScene) oldTAPA(name string, number int) {
	s.Helper()
	pod, err := s.cluster.Pod(s.Context(), cluster.PodConfig{
		Namespace: s.namespace, Name: name, Labels: map[string]string{"app": "web"}, Ready: true,
	})
	require.NoError(s, err)
	conn, err := s.trench.Dial()
	require.NoError(s, err)
	s.Cleanup(func() { _ = conn.Close() })
	tapa, err := play.NewTAPA(play.TAPAConfig{
		Client: s.client(), Conn: conn, Namespace: s.namespace, Pod: name, PodUID: string(pod.UID),
		Addresses: secondary(number), MaxTargets: 9, Refresh: 200 * time.Millisecond,
	})
	require.NoError(s, err)
	s.background(tapa.Run)
}

func (s *relayScene) has(numbers ...int) {
	s.Helper()
	want := map[string]bool{}
	for _, n := range numbers {
		want[secondary(n)[0]] = true
	}
	err := s.lb.WaitFor(s.within(), func(lb *play.LegacyLB) bool {
		return lb.Live() && fmt.Sprint(lb.Active("stream-a")) == fmt.Sprint(want)
	})
	require.NoErrorf(s, err, "want %v, have %v\n%s", want, s.lb.Active("stream-a"), s.trench.LogTail())
}

func (s *relayScene) ready(pod string, is bool) {
	s.Helper()
	_, err := s.cluster.SetReady(s.Context(), s.namespace, pod, is)
	require.NoError(s, err)
}

// An old load balancer on the trench process has readiness from the namespace process, keeps what it has when that is killed and
// when its own is restarted meanwhile, and is never left without targets.
func TestTrenchRelays(t *testing.T) {
	s := newRelayScene(t)
	s.service("web", "stream-a")
	s.oldTAPA("web-1", 1)
	s.oldTAPA("web-2", 2)
	s.has(1, 2)
	s.ready("web-1", false)
	s.has(2)
	s.ready("web-1", true)
	s.has(1, 2)

	s.nsp.Kill()
	s.ready("web-2", false)
	s.trench.Stop()
	require.NoError(t, s.trench.Start(t.Context()))
	s.has(1, 2)
	require.NoError(t, s.nsp.Start(t.Context()))
	s.has(1)
	s.ready("web-2", true)
	s.has(1, 2)
	require.Zero(t, s.empty.Load())
	require.NoError(t, s.cluster.DeleteService(t.Context(), s.namespace, "web"))
	s.has()
}

// identity is a workload API that names its callers by one path.
type identity struct {
	*testing.T
	path   string
	agent  *spiffe.Agent
	source *auth.SPIFFE
}

// newIdentity is that of a ServiceAccount.
func newIdentity(t *testing.T, ca *spiffe.Authority, namespace, account string) *identity {
	t.Helper()
	return newIdentityOf(t, ca, "/ns/"+namespace+"/sa/"+account)
}

func newIdentityOf(t *testing.T, ca *spiffe.Authority, path string) *identity {
	t.Helper()
	w := &identity{T: t, path: path, agent: spiffe.NewAgent(filepath.Join(t.TempDir(), "agent.sock"))}
	require.NoError(t, w.agent.Start(t.Context()))
	t.Cleanup(func() { _ = w.agent.Stop() })
	w.issue(ca)
	var err error
	w.source, err = auth.OpenSPIFFE(t.Context(), auth.SPIFFEConfig{Socket: w.agent.Socket(), Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(w.source.Close)
	return w
}

// issue gives it an SVID of this authority, and has it trust nobody else.
func (w *identity) issue(ca *spiffe.Authority) {
	w.Helper()
	id, err := ca.SVID(w.path, time.Hour)
	require.NoError(w, err)
	require.NoError(w, w.agent.Issue(id, ca.Bundle()))
}

func (w *identity) socket() string { return "--spiffe-endpoint-socket=" + w.agent.Socket() }

// linked are a namespace process and a trench process that relays to it, with an old-style client of each.
type linked struct {
	*testing.T
	namespace     string
	nsp, trench   *play.NSP
	there, direct nspv1.TargetRegistryClient
	directConn    *grpc.ClientConn
}

// newLinked starts them; both configurations say how they prove themselves.
func newLinked(t *testing.T, c *cluster.Cluster, namespace string, nsp, trench play.NSPConfig) *linked {
	t.Helper()
	require.NoError(t, chart.Install(t.Context(), c, namespace, nil))
	require.NoError(t, c.Apply(t.Context(), fmt.Appendf(nil, operatorsRole, namespace), false))
	require.NoError(t, play.Configure(t.Context(), c.Client(), namespace, "trench-a", "conduit-a", map[string]int{"stream-a": 10}))
	l := &linked{T: t, namespace: namespace}
	var err error
	nsp.Namespace, nsp.Dir = namespace, t.TempDir()
	nsp.Kubeconfig, err = c.ServiceAccountKubeconfig(t.Context(), namespace, chart.ServiceAccount)
	require.NoError(t, err)
	l.nsp, err = play.StartNSP(t.Context(), nsp)
	require.NoError(t, err)
	t.Cleanup(l.nsp.Stop)
	cfg := trenchConfig(t.Context(), t, c, namespace)
	cfg.Credentials = trench.Credentials
	cfg.Args = append([]string{"--namespace-nsp=" + l.nsp.Address()}, trench.Args...)
	l.trench, err = play.StartNSP(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(l.trench.Stop)
	_, l.there = l.dial(l.trench)
	l.directConn, l.direct = l.dial(l.nsp)
	return l
}

func (l *linked) dial(n *play.NSP) (*grpc.ClientConn, nspv1.TargetRegistryClient) {
	conn, err := n.Dial()
	require.NoError(l, err)
	l.Cleanup(func() { _ = conn.Close() })
	return conn, nspv1.NewTargetRegistryClient(conn)
}

func (l *linked) within() context.Context {
	ctx, cancel := context.WithTimeout(l.Context(), patience)
	l.Cleanup(cancel)
	return ctx
}

// frontend registers one at the trench process, and finds it at the namespace process.
func (l *linked) frontend(number int) {
	l.Helper()
	name := fmt.Sprint("fe-", number)
	_, err := l.there.Register(l.within(), &nspv1.Target{
		Type: nspv1.Target_FRONTEND, Ips: []string{name}, Context: map[string]string{"identifier": name},
	}, grpc.WaitForReady(true))
	require.NoError(l, err, string(l.trench.LogTail()))
	require.Len(l, l.next(l.frontends(l.direct)), number)
}

func (l *linked) frontends(of nspv1.TargetRegistryClient) grpc.ServerStreamingClient[nspv1.TargetResponse] {
	l.Helper()
	w, err := of.Watch(l.within(), &nspv1.Target{Type: nspv1.Target_FRONTEND, Status: nspv1.Target_ANY}, grpc.WaitForReady(true))
	require.NoError(l, err)
	return w
}

func (l *linked) next(w grpc.ServerStreamingClient[nspv1.TargetResponse]) []*nspv1.Target {
	l.Helper()
	list, err := w.Recv()
	require.NoError(l, err, string(l.trench.LogTail()))
	return list.GetTargets()
}

// The link between the processes is mTLS, the namespace process is who it shall be, and only the ServiceAccounts of trench
// processes may relay. SVIDs and the authority itself are replaced under open watches, and count when the link is made anew. // P18
func TestTrenchRelaysBySVID(t *testing.T) {
	c := cluster.Get(t)
	namespace := c.Namespace(t)
	ca, err := spiffe.NewAuthority("example.org")
	require.NoError(t, err)
	nsp, trench := newIdentity(t, ca, namespace, chart.ServiceAccount), newIdentity(t, ca, namespace, operatorsAccount)
	l := newLinked(t, c, namespace,
		play.NSPConfig{Credentials: nsp.source.Client(), Args: []string{nsp.socket(), "--trench-process-accounts=" + operatorsAccount}},
		play.NSPConfig{Credentials: trench.source.Client(), Args: []string{
			trench.socket(), "--namespace-nsp-id=" + namespace + "/" + chart.ServiceAccount,
		}})
	l.frontend(1)
	_, err = targetpoolv1.NewRelayClient(l.directConn).Position(l.within(), &targetpoolv1.RelayPositionRequest{Trench: "trench-a"})
	require.Equal(t, codes.PermissionDenied, status.Code(err), "the client of the namespace process is no trench process")

	watch := l.frontends(l.there)
	require.Len(t, l.next(watch), 1)
	next, err := spiffe.NewAuthority("example.org")
	require.NoError(t, err)
	nsp.issue(next)
	trench.issue(next)
	l.frontend(2)
	require.Len(t, l.next(watch), 2, "the watch goes on, and so does the link")
	l.nsp.Kill()
	require.NoError(t, l.nsp.Start(t.Context()))
	l.frontend(3)
	require.Len(t, l.next(watch), 3, "the link is made of what counts now")
}

// Without SPIFFE certificates from files do, which are replaced likewise.
func TestTrenchRelaysOverTLS(t *testing.T) {
	c := cluster.Get(t)
	namespace := c.Namespace(t)
	ca := newCertificates(t)
	args := []string{"--transport=tls", "--tls-cert-file=" + ca.cert, "--tls-key-file=" + ca.key}
	l := newLinked(t, c, namespace,
		play.NSPConfig{Credentials: ca.client(), Args: append([]string{"--authorisation=none", "--tls-client-ca-file=" + ca.ca}, args...)},
		play.NSPConfig{Credentials: ca.client(), Args: append([]string{
			"--namespace-nsp-ca-file=" + ca.ca, "--namespace-nsp-cert-file=" + ca.cert, "--namespace-nsp-key-file=" + ca.key,
		}, args...)})
	l.frontend(1)
	watch := l.frontends(l.there)
	require.Len(t, l.next(watch), 1)
	ca.replace()
	l.nsp.Kill()
	require.NoError(t, l.nsp.Start(t.Context()))
	l.frontend(2)
	require.Len(t, l.next(watch), 2)
}

// certificates are files with one certificate that is its own authority.
type certificates struct {
	*testing.T
	cert, key, ca string
}

func newCertificates(t *testing.T) *certificates {
	dir := t.TempDir()
	c := &certificates{t, filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"), filepath.Join(dir, "ca.crt")}
	c.replace()
	return c
}

func (c *certificates) replace() {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(c, err)
	x := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage:    x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, x, x, key.Public(), key)
	require.NoError(c, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(c, err)
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	require.NoError(c, os.WriteFile(c.key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), 0o600))
	require.NoError(c, os.WriteFile(c.cert, certificate, 0o600))
	require.NoError(c, os.WriteFile(c.ca, certificate, 0o600))
}

func (c *certificates) client() credentials.TransportCredentials {
	creds, err := client.TLSFiles{CA: c.ca, Cert: c.cert, Key: c.key}.Credentials()
	require.NoError(c, err)
	return creds
}
