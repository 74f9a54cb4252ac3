package e2e

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/test/chart"
	"github.com/nordix/meridio-nsp/test/cluster"
	"github.com/nordix/meridio-nsp/test/play"
	"github.com/nordix/meridio-nsp/test/spiffe"
	"github.com/nordix/meridio-nsp/test/workload"
)

const templates = "meridio-deployment-templates"

// upgradeScene is a namespace where Meridio's operator runs one trench.
type upgradeScene struct {
	*testing.T
	cluster   *cluster.Cluster
	namespace string
	workload  *workload.Workload
	creds     credentials.TransportCredentials
}

// standIn is the NSP of 1.x as far as the kubelet sees it.
const standIn = "#!/bin/sh\ncase $0 in *grpc_health_probe) exit 0 ;; esac\nexec sleep 1000000\n"

func newUpgradeScene(t *testing.T, namespace string) *upgradeScene {
	c := cluster.Get(t)
	ownNamespace(t, c, namespace)
	require.NoError(t, c.EnsureNamespace(t.Context(), namespace))
	require.NoError(t, c.Apply(t.Context(), fmt.Appendf(nil, operatorsRole, namespace), false))
	require.NoError(t, play.Configure(t.Context(), c.Client(), namespace, "trench-a", "conduit-a", map[string]int{"stream-a": 10}))
	template, err := os.ReadFile(filepath.Join("testdata", "operator", "nsp.yaml"))
	require.NoError(t, err)
	_, err = c.Client().CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: templates},
		Data:       map[string]string{"nsp.yaml": string(template), "proxy.yaml": "another"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	s := &upgradeScene{T: t, cluster: c, namespace: namespace}
	s.deployOperator()

	ca, err := spiffe.NewAuthority("example.org")
	require.NoError(t, err)
	sockets := map[string]string{}
	for _, account := range []string{chart.ServiceAccount, operatorsAccount} {
		id, err := ca.SVID("/ns/"+namespace+"/sa/"+account, time.Hour)
		require.NoError(t, err)
		agent := spiffe.NewAgent(filepath.Join(t.TempDir(), "agent.sock"))
		require.NoError(t, agent.Issue(id, ca.Bundle()))
		require.NoError(t, agent.Start(t.Context()))
		t.Cleanup(func() { _ = agent.Stop() })
		sockets[account] = agent.Socket()
	}
	source, err := auth.OpenSPIFFE(t.Context(), auth.SPIFFEConfig{Socket: sockets[operatorsAccount], Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(source.Close)
	s.creds = source.Client()
	old := filepath.Join(t.TempDir(), "nsp")
	require.NoError(t, os.WriteFile(old, []byte(standIn), 0o700))
	s.workload = runWorkload(t, workload.Config{
		Cluster: c, Namespace: namespace, Dir: t.TempDir(), SPIFFESockets: sockets, Images: map[string]string{"nsp": old},
	})
	return s
}

// deployOperator makes the operator's Deployment, and plays what the operator does.
func (s *upgradeScene) deployOperator() {
	labels := map[string]string{"control-plane": "meridio-operator"}
	_, err := s.cluster.Client().AppsV1().Deployments(s.namespace).Create(s.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "meridio-operator"},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "operator", Image: "operator:v1.1.0"}}},
			},
		},
	}, metav1.CreateOptions{})
	require.NoError(s, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.Context()))
	var running sync.WaitGroup
	running.Go(func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			if err := s.reconcile(ctx); err != nil && ctx.Err() == nil && !apierrors.IsConflict(err) {
				s.Errorf("operator: %v", err)
				return
			}
			<-tick.C
		}
	})
	s.Cleanup(func() { cancel(); running.Wait() })
}

// reconcile is what the operator does with the template: names and what is empty are filled in at first; later containers and
// volumes follow the template, and the rest stays.
func (s *upgradeScene) reconcile(ctx context.Context) error {
	m, err := s.cluster.Client().CoreV1().ConfigMaps(s.namespace).Get(ctx, templates, metav1.GetOptions{})
	if err != nil {
		return err
	}
	want := &appsv1.StatefulSet{}
	if err := yaml.Unmarshal([]byte(m.Data["nsp.yaml"]), want); err != nil {
		return err
	}
	name := "nsp-trench-a"
	for _, labels := range []map[string]string{want.Labels, want.Spec.Selector.MatchLabels, want.Spec.Template.Labels} {
		labels["app"] = name
	}
	want.Name, want.Spec.ServiceName, want.Spec.Template.Spec.ServiceAccountName = name, name, operatorsAccount
	fill(&want.Spec.Template.Spec.Containers[0], map[string]string{
		"NSP_PORT": "7778", "NSP_CONFIG_MAP_NAME": "meridio-configuration-trench-a", "NSP_NAMESPACE": s.namespace,
		"NSP_LOG_LEVEL": "DEBUG", "NSP_GRPC_PROBE_RPC_TIMEOUT": "1s",
	})
	sets := s.cluster.Client().AppsV1().StatefulSets(s.namespace)
	have, err := sets.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = sets.Create(ctx, want, metav1.CreateOptions{})
		return err
	}
	if err != nil {
		return err
	}
	have.Spec.Template.Spec.Containers = want.Spec.Template.Spec.Containers
	have.Spec.Template.Spec.Volumes = want.Spec.Template.Spec.Volumes
	_, err = sets.Update(ctx, have, metav1.UpdateOptions{}) // no new generation where nothing changes
	return err
}

// fill sets the operator's variables where the template has them empty or not at all.
func fill(container *corev1.Container, values map[string]string) {
	for i, e := range container.Env {
		if value, is := values[e.Name]; is {
			if e.Value == "" {
				container.Env[i].Value = value
			}
			delete(values, e.Name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		container.Env = append(container.Env, corev1.EnvVar{Name: name, Value: values[name]})
	}
}

// oldRegistry puts the registry of a 1.x NSP with one target into the volume of the trench, and returns its path.
func (s *upgradeScene) oldRegistry() string {
	cfg := trenchConfig(s.Context(), s.T, s.cluster, s.namespace)
	nsp, err := play.StartNSP(s.Context(), cfg)
	require.NoError(s, err)
	conn, err := nsp.Dial()
	require.NoError(s, err)
	defer conn.Close()
	s.register(conn, "172.16.0.1/24")
	nsp.Stop()
	file := filepath.Join(s.workload.Volume("nsp-trench-a"), "registry.db")
	require.NoError(s, os.MkdirAll(filepath.Dir(file), 0o700))
	own := "--datasource=" + filepath.Join(cfg.Dir, "registry.db")
	out, err := exec.CommandContext(s.Context(), nsp.Binary(), "export", own, "--to="+file).CombinedOutput()
	require.NoError(s, err, string(out))
	return file
}

func (s *upgradeScene) register(conn *grpc.ClientConn, address string) {
	_, err := nspv1.NewTargetRegistryClient(conn).Register(s.Context(), &nspv1.Target{
		Ips: []string{address}, Context: map[string]string{"identifier": "3"},
		Stream: &nspv1.Stream{Name: "stream-a", Conduit: conduitA},
	})
	require.NoError(s, err)
}

func (s *upgradeScene) dial(set string) *grpc.ClientConn {
	conn, err := grpc.NewClient(s.workload.Address(set), grpc.WithTransportCredentials(s.creds))
	require.NoError(s, err)
	s.Cleanup(func() { _ = conn.Close() })
	return conn
}

// registered are the addresses that the registry of the process has.
func (s *upgradeScene) registered(set string) []string {
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	watch, err := nspv1.NewTargetRegistryClient(s.dial(set)).Watch(ctx, &nspv1.Target{Status: nspv1.Target_ANY})
	require.NoError(s, err)
	var all []string
	list, err := watch.Recv()
	require.NoError(s, err, s.workload.Log(set))
	for _, x := range list.GetTargets() {
		all = append(all, x.GetIps()...)
	}
	return all
}

// The page is followed under an operator with the facts of Meridio's; registrations go up, and back.
func followUpgrade(t *testing.T) {
	s := newUpgradeScene(t, "meridio")
	file := s.oldRegistry()
	before := digest(t, file)
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "upgrade.md"))
	require.NoError(t, err)
	up, back, found := strings.Cut(string(text), "\n## Back\n")
	require.True(t, found)
	dir := t.TempDir()

	follow(t, s.cluster, dir, up, s.workload)
	require.Equal(t, []string{"172.16.0.1/24"}, s.registered("nsp-trench-a"))
	require.Equal(t, []string{"172.16.0.1/24"}, s.registered("nsp"), "it relays")
	require.Equal(t, before, digest(t, file), "the old image could go on with its file")
	require.FileExists(t, file+".v2")
	s.register(s.dial("nsp-trench-a"), "172.16.0.2/24")

	follow(t, s.cluster, dir, back, s.workload)
	nsp, err := play.Build(t.Context())
	require.NoError(t, err)
	out, err := exec.CommandContext(t.Context(), nsp, "import", "--dry-run", "--namespace=meridio", "--from="+file).CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "2 registrations", "what is registered now was exported")
	m, err := s.cluster.Client().CoreV1().ConfigMaps(s.namespace).Get(t.Context(), templates, metav1.GetOptions{})
	require.NoError(t, err)
	template, err := os.ReadFile(filepath.Join("testdata", "operator", "nsp.yaml"))
	require.NoError(t, err)
	require.Equal(t, map[string]string{"nsp.yaml": string(template), "proxy.yaml": "another"}, m.Data)
}

func digest(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	return fmt.Sprintf("%x", sha256.Sum256(data))
}
