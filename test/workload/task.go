package workload

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// runTasks runs the pods that somebody made by hand to do one thing, each to its end.
func (w *Workload) runTasks(ctx context.Context) error {
	pods, err := w.cfg.Cluster.Client().CoreV1().Pods(w.cfg.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if pod.Spec.RestartPolicy != corev1.RestartPolicyNever || pod.Spec.NodeName != "" || pod.Status.Phase != corev1.PodPending {
			continue
		}
		if err := w.runTask(ctx, pod); err != nil {
			return fmt.Errorf("pod %s: %w", pod.Name, err)
		}
	}
	return nil
}

func (w *Workload) runTask(ctx context.Context, pod *corev1.Pod) error {
	container := pod.Spec.Containers[0]
	program, err := w.program(container)
	if err != nil {
		return err
	}
	var pairs []string
	for _, mount := range container.VolumeMounts {
		for _, v := range pod.Spec.Volumes {
			if claim := v.PersistentVolumeClaim; v.Name == mount.Name && claim != nil {
				pairs = append(pairs, mount.MountPath+"/", w.claim(claim.ClaimName)+"/")
			}
		}
	}
	place := strings.NewReplacer(pairs...)
	cmd := exec.CommandContext(ctx, program)
	for _, arg := range container.Args {
		cmd.Args = append(cmd.Args, place.Replace(arg))
	}
	cmd.Env = append(cmd.Environ(), "NSP_DATASOURCE="+place.Replace("/run/nsp/data/registry.db"))
	output, err := cmd.CombinedOutput()
	pod.Status.Phase = corev1.PodSucceeded
	if err != nil {
		pod.Status.Phase = corev1.PodFailed
	}
	pod.Status.Message = string(output)
	_, err = w.cfg.Cluster.Client().CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	return err
}

// claim is the directory of a volume claim that a StatefulSet made: nsp-data-<set>-0.
func (w *Workload) claim(name string) string {
	set, _ := strings.CutPrefix(strings.TrimSuffix(name, "-0"), "nsp-data-")
	return filepath.Join(w.cfg.Dir, set, "nsp-data")
}
