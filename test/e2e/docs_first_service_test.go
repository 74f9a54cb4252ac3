package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nordix/meridio-nsp/pkg/targetpool/client"
	"github.com/nordix/meridio-nsp/test/cluster"
	"github.com/nordix/meridio-nsp/test/play"
	"github.com/nordix/meridio-nsp/test/workload"
)

// What install.md has installed, for a test whose pods have no addresses of their own: so everybody is believed.
const installed = "```console\n$ helm install meridio-nsp deployments/helm/meridio-nsp --namespace red --set authorisation=none --set image.repository=REGISTRY/meridio-nsp\n" +
	"$ kubectl --namespace red rollout status statefulset/nsp --timeout=5m\n```\n"

func followFirstService(t *testing.T) {
	c := cluster.Get(t)
	ownNamespace(t, c, "red")
	require.NoError(t, c.EnsureNamespace(t.Context(), "red"))
	require.NoError(t, play.Configure(t.Context(), c.Client(), "red", "trench-a", "conduit-a", map[string]int{"stream-a": 10}))
	w := runWorkload(t, workload.Config{Cluster: c, Namespace: "red", Dir: t.TempDir()})
	follow(t, c, t.TempDir(), installed, w)
	t.Setenv("NSP_SERVER", w.Address("nsp"))
	playPods(t, c, "red", "app=web", w.Address("nsp"))
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "first-service.md"))
	require.NoError(t, err)
	follow(t, c, t.TempDir(), string(page), w)
}

// playPods plays scheduler and kubelet for the pods that a page makes, and a TAPA with its sidecar in each, until the test ends.
func playPods(t *testing.T, c *cluster.Cluster, namespace, selector, nsp string) {
	t.Helper()
	cl, err := client.New(client.Config{Address: nsp, Credentials: insecure.NewCredentials()})
	require.NoError(t, err)
	conn, err := grpc.NewClient(nsp, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		running.Wait()
		_ = conn.Close()
	})
	pods := &playedPods{cluster: c, namespace: namespace, client: cl, conn: conn, stop: map[string]context.CancelFunc{}, running: &running}
	running.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			if err := pods.step(ctx, selector); err != nil && ctx.Err() == nil {
				t.Errorf("playing the pods: %v", err)
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	})
}

// playedPods are the pods that run.
type playedPods struct {
	cluster   *cluster.Cluster
	namespace string
	client    *client.Client
	conn      *grpc.ClientConn
	running   *sync.WaitGroup
	stop      map[string]context.CancelFunc
}

func (p *playedPods) step(ctx context.Context, selector string) error {
	list, err := p.cluster.Client().CoreV1().Pods(p.namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return err
	}
	for i := range list.Items {
		pod := &list.Items[i]
		switch {
		case pod.DeletionTimestamp != nil:
			if stop := p.stop[pod.Name]; stop != nil {
				stop()
			}
			err = p.cluster.Finish(ctx, p.namespace, pod.Name)
		case p.stop[pod.Name] == nil:
			err = p.start(ctx, pod)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *playedPods) start(ctx context.Context, pod *corev1.Pod) error {
	api := p.cluster.Client().CoreV1().Pods(p.namespace)
	number := len(p.stop) + 1
	err := api.Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: pod.Name, UID: pod.UID}, Target: corev1.ObjectReference{Kind: "Node", Name: cluster.DefaultNode},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	pod, err = api.Get(ctx, pod.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	pod.Status.Phase, pod.Status.PodIP = corev1.PodRunning, fmt.Sprintf("10.245.0.%d", number)
	pod.Status.PodIPs = []corev1.PodIP{{IP: pod.Status.PodIP}}
	if _, err := api.UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
		return err
	}
	if _, err := p.cluster.SetReady(ctx, p.namespace, pod.Name, true); err != nil {
		return err
	}
	tapa, err := play.NewTAPA(play.TAPAConfig{
		Client: p.client, Conn: p.conn, Namespace: p.namespace, Pod: pod.Name, PodUID: string(pod.UID),
		Addresses: []string{fmt.Sprintf("172.16.0.%d/24", number)}, MaxTargets: 10,
	})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	p.stop[pod.Name] = stop
	p.running.Go(func() { _ = tapa.Run(ctx) })
	return nil
}
