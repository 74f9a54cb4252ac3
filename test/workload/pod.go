package workload

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nordix/meridio-nsp/test/cluster"
	"github.com/nordix/meridio-nsp/test/process"
)

// grace is what a process has for ending in order.
const grace = 15 * time.Second

// pod is a pod that runs.
type pod struct {
	object     *corev1.Pod
	generation int64 // of the StatefulSet
	process    *process.Process
	port       int
	ip         string
	readiness  []string // the probe's command
	ready      bool
}

func (p *pod) address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(p.port)) }

func (p *pod) ended() bool {
	select {
	case <-p.process.Exited():
		return true
	default:
		return false
	}
}

// probe runs the readiness probe once.
func (p *pod) probe(ctx context.Context) bool {
	if p.ended() {
		return false
	}
	if len(p.readiness) == 0 {
		return true
	}
	return exec.CommandContext(ctx, p.readiness[0], p.readiness[1:]...).Run() == nil
}

// PodOf is the pod that the StatefulSet controller would make.
func PodOf(set *appsv1.StatefulSet) *corev1.Pod {
	template := set.Spec.Template.DeepCopy()
	object := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	object.Name = set.Name + "-0"
	for _, claim := range set.Spec.VolumeClaimTemplates {
		source := &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name + "-" + object.Name}
		object.Spec.Volumes = append(object.Spec.Volumes, corev1.Volume{
			Name: claim.Name, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: source},
		})
	}
	return object
}

// start makes the pod and its process.
func (w *Workload) start(ctx context.Context, set *appsv1.StatefulSet) (*pod, error) {
	object := PodOf(set)
	object.Spec.NodeName = cluster.DefaultNode
	object, err := w.cfg.Cluster.Client().CoreV1().Pods(w.cfg.Namespace).Create(ctx, object, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("making the pod: %w", err)
	}
	p := &pod{object: object, generation: set.Generation, ip: "10.244.250." + strconv.Itoa(len(w.running())+1)}
	if err := w.launch(ctx, set.Name, p); err != nil {
		now := metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}
		_ = w.cfg.Cluster.Client().CoreV1().Pods(w.cfg.Namespace).Delete(ctx, object.Name, now)
		return nil, err
	}
	return p, nil
}

// program is what an image has.
func (w *Workload) program(container corev1.Container) (string, error) {
	name, _, _ := strings.Cut(path.Base(container.Image), ":")
	if p := w.cfg.Images[name]; p != "" {
		return p, nil
	}
	return "", fmt.Errorf("pulling image %s: there is no %s", container.Image, name)
}

func (w *Workload) launch(ctx context.Context, set string, p *pod) error {
	container := p.object.Spec.Containers[0]
	program, err := w.program(container)
	if err != nil {
		return err
	}
	kubeconfig, err := w.cfg.Cluster.ServiceAccountKubeconfig(ctx, w.cfg.Namespace, p.object.Spec.ServiceAccountName)
	if err != nil {
		return err
	}
	if p.port, err = cluster.FreePort(); err != nil {
		return err
	}
	dir := filepath.Join(w.cfg.Dir, set)
	for _, mount := range container.VolumeMounts {
		if err := os.MkdirAll(filepath.Join(dir, mount.Name), 0o700); err != nil {
			return err
		}
	}
	place := w.placement(dir, p.object.Spec.ServiceAccountName, container)
	if p.readiness, err = readiness(dir, program, container, place); err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	p.process, err = process.Start(process.Config{
		Path: program, Args: arguments(p, container, place), Env: environment(p, container, place, kubeconfig), Output: log,
	})
	return err
}

// placement turns paths of the container into those of this machine, and names of Services into addresses.
func (w *Workload) placement(dir, account string, container corev1.Container) *strings.Replacer {
	var pairs []string
	for _, mount := range container.VolumeMounts {
		if mount.Name != "spire-agent-socket" {
			pairs = append(pairs, mount.MountPath+"/", filepath.Join(dir, mount.Name)+"/")
		}
	}
	if socket := w.cfg.SPIFFESockets[account]; socket != "" {
		pairs = append(pairs, "unix:///run/spire/sockets/agent.sock", socket)
	}
	if nsp := w.Address("nsp"); nsp != "" {
		pairs = append(pairs, "nsp-service."+w.cfg.Namespace+":7778", nsp)
	}
	return strings.NewReplacer(pairs...)
}

// arguments are the container's, with a port of this machine.
func arguments(p *pod, container corev1.Container, place *strings.Replacer) []string {
	if len(container.Args) == 0 {
		return nil // it is configured by its environment
	}
	var args []string
	for _, arg := range container.Args {
		args = append(args, place.Replace(arg))
	}
	return append(args, "--port="+strconv.Itoa(p.port), "--metrics-address=")
}

// environment is the container's, and what a process of this machine needs beside.
func environment(p *pod, container corev1.Container, place *strings.Replacer, kubeconfig string) []string {
	var env []string
	for _, e := range container.Env {
		value := e.Value
		if e.ValueFrom != nil && e.ValueFrom.FieldRef.FieldPath == "metadata.namespace" {
			value = p.object.Namespace
		}
		if e.Name == "NSP_PORT" {
			value = strconv.Itoa(p.port)
		}
		env = append(env, e.Name+"="+place.Replace(value))
	}
	return append(env, "NSP_KUBECONFIG="+kubeconfig, "NSP_METRICS_ADDRESS=", "NSP_HEALTH_SOCKET="+place.Replace("/tmp/health.sock"))
}

// readiness is the probe's command, with the program under the name that it is called by.
func readiness(dir, program string, container corev1.Container, place *strings.Replacer) ([]string, error) {
	if container.ReadinessProbe == nil || container.ReadinessProbe.Exec == nil {
		return nil, nil
	}
	command := container.ReadinessProbe.Exec.Command
	link := filepath.Join(dir, path.Base(command[0]))
	if err := os.Symlink(program, link); err != nil && !os.IsExist(err) {
		return nil, err
	}
	out := []string{link}
	for _, arg := range command[1:] {
		if strings.HasSuffix(arg, "-timeout=400ms") {
			arg = strings.ReplaceAll(arg, "400ms", "4s") // this machine does other things too
		}
		out = append(out, place.Replace(arg))
	}
	return out, nil
}
