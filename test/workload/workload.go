package workload

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nordix/meridio-nsp/test/cluster"
)

// interval is between looks at the objects and at the probes.
const interval = 100 * time.Millisecond

// Config says what is played. All fields are required, except SPIFFESockets.
type Config struct {
	Cluster *cluster.Cluster
	// Namespace is the one whose StatefulSets are run.
	Namespace string
	// Dir keeps the volumes and logs of the pods.
	Dir string
	// Images are the programs: an image is known by the last part of its name, without tag.
	Images map[string]string
	// SPIFFESockets are the addresses of the agents for pods that mount one, by ServiceAccount.
	SPIFFESockets map[string]string
}

// Workload runs the StatefulSets of a namespace, one replica of each.
type Workload struct {
	cfg Config

	mu      sync.Mutex
	pods    map[string]*pod   // by StatefulSet
	problem map[string]string // what was last in the way, by StatefulSet
}

// New makes a player; nothing happens before Run.
func New(cfg Config) *Workload {
	return &Workload{cfg: cfg, pods: map[string]*pod{}, problem: map[string]string{}}
}

// Run plays until ctx ends; then all processes are gone.
func (w *Workload) Run(ctx context.Context) error {
	defer w.stopAll()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		if err := w.step(ctx); err != nil && ctx.Err() == nil {
			return fmt.Errorf("running the StatefulSets of namespace %s: %w", w.cfg.Namespace, err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Address is where the container of the StatefulSet's pod listens for gRPC; empty where it does not run.
func (w *Workload) Address(set string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.pods[set]; p != nil {
		return p.address()
	}
	return ""
}

// Generation is that of the StatefulSet that runs, 0 where none does.
func (w *Workload) Generation(set string) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.pods[set]; p != nil {
		return p.generation
	}
	return 0
}

// Volume is the directory that the pod has as its volume nsp-data.
func (w *Workload) Volume(set string) string { return filepath.Join(w.cfg.Dir, set, "nsp-data") }

// Log is what the container has said, over all its lives.
func (w *Workload) Log(set string) string {
	data, _ := os.ReadFile(filepath.Join(w.cfg.Dir, set, "log"))
	w.mu.Lock()
	defer w.mu.Unlock()
	return string(data) + w.problem[set]
}

// step brings what runs in line with what shall run.
func (w *Workload) step(ctx context.Context) error {
	sets, err := w.cfg.Cluster.Client().AppsV1().StatefulSets(w.cfg.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	gone := maps.Clone(w.running())
	for i := range sets.Items {
		set := &sets.Items[i]
		if *set.Spec.Replicas > 0 {
			delete(gone, set.Name)
		}
		if err := w.align(ctx, set); err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return fmt.Errorf("StatefulSet %s: %w", set.Name, err)
		}
	}
	for name := range gone {
		if err := w.stop(ctx, name); err != nil {
			return err
		}
	}
	return w.runTasks(ctx)
}

func (w *Workload) running() map[string]*pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.pods)
}

// align starts or restarts the pod of a StatefulSet, and reports how it is.
func (w *Workload) align(ctx context.Context, set *appsv1.StatefulSet) error {
	if *set.Spec.Replicas == 0 {
		return w.report(ctx, set, false)
	}
	p := w.running()[set.Name]
	if p != nil && p.generation == set.Generation && !p.ended() {
		return w.report(ctx, set, p.probe(ctx))
	}
	if err := w.stop(ctx, set.Name); err != nil {
		return err
	}
	p, err := w.start(ctx, set)
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.problem, set.Name)
	if err != nil {
		w.problem[set.Name] = err.Error() // as a kubelet, it goes on trying
		return nil
	}
	w.pods[set.Name] = p
	return nil
}

// stop ends the pod as a kubelet does.
func (w *Workload) stop(ctx context.Context, set string) error {
	w.mu.Lock()
	p := w.pods[set]
	delete(w.pods, set)
	w.mu.Unlock()
	if p == nil {
		return nil
	}
	p.process.Stop(grace)
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}
	err := w.cfg.Cluster.Client().CoreV1().Pods(w.cfg.Namespace).Delete(ctx, p.object.Name, now)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (w *Workload) stopAll() {
	for _, p := range w.running() {
		p.process.Stop(grace)
	}
}

// report writes what kubelet and controller write when readiness changes.
func (w *Workload) report(ctx context.Context, set *appsv1.StatefulSet, ready bool) error {
	if p := w.running()[set.Name]; p != nil && p.ready != ready {
		if err := w.reportPod(ctx, p, ready); err != nil {
			return err
		}
	}
	var n int32
	if ready {
		n = 1
	}
	revision := fmt.Sprintf("%s-%d", set.Name, set.Generation)
	want := appsv1.StatefulSetStatus{
		ObservedGeneration: set.Generation, Replicas: *set.Spec.Replicas, ReadyReplicas: n, AvailableReplicas: n,
		CurrentReplicas: *set.Spec.Replicas, UpdatedReplicas: *set.Spec.Replicas, CurrentRevision: revision, UpdateRevision: revision,
	}
	if have := set.Status; have.ObservedGeneration == want.ObservedGeneration && have.ReadyReplicas == n && have.Replicas == want.Replicas {
		return nil
	}
	set.Status = want
	_, err := w.cfg.Cluster.Client().AppsV1().StatefulSets(w.cfg.Namespace).UpdateStatus(ctx, set, metav1.UpdateOptions{})
	return err
}

func (w *Workload) reportPod(ctx context.Context, p *pod, ready bool) error {
	pods := w.cfg.Cluster.Client().CoreV1().Pods(w.cfg.Namespace)
	object, err := pods.Get(ctx, p.object.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	condition := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.Now()}
	if ready {
		condition.Status = corev1.ConditionTrue
	}
	object.Status.Phase = corev1.PodRunning
	object.Status.PodIP, object.Status.PodIPs = p.ip, []corev1.PodIP{{IP: p.ip}}
	object.Status.Conditions = []corev1.PodCondition{condition}
	if _, err = pods.UpdateStatus(ctx, object, metav1.UpdateOptions{}); err == nil {
		p.ready = ready
	}
	return err
}
