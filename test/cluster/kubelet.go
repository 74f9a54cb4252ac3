package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
)

// DefaultNode is the Node that every cluster has.
const DefaultNode = "nsp-node"

const containerName = "app"

// kubelet hands out addresses; pods and nodes number on from 1.
type kubelet struct {
	pods, nodes atomic.Uint32
}

// addresses returns the n-th IPv4 and IPv6 address after the bases.
func addresses(v4, v6 string, n uint32) []string {
	return []string{nth(v4, n), nth(v6, n)}
}

func nth(base string, n uint32) string {
	bytes := netip.MustParseAddr(base).AsSlice()
	for i := len(bytes) - 1; n > 0; i-- {
		n += uint32(bytes[i])
		bytes[i] = byte(n)
		n >>= 8
	}
	address, _ := netip.AddrFromSlice(bytes)
	return address.String()
}

// Node makes a Node that is Ready and has an address of both families, unless it exists.
func (c *Cluster) Node(ctx context.Context, name string) error {
	nodes := c.client.CoreV1().Nodes()
	node, err := nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("creating node %s: %w", name, err)
	}
	node.Status.Conditions = []corev1.NodeCondition{{
		Type:               corev1.NodeReady,
		Status:             corev1.ConditionTrue,
		Reason:             "KubeletReady",
		LastHeartbeatTime:  metav1.Now(),
		LastTransitionTime: metav1.Now(),
	}}
	for _, address := range addresses("172.18.0.0", "fd00:172:18::", c.kubelet.nodes.Add(1)) {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: address})
	}
	if _, err := nodes.UpdateStatus(ctx, node, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("updating the status of node %s: %w", name, err)
	}
	return nil
}

// PodConfig describes a pod. Only Namespace and Name must be given.
type PodConfig struct {
	Namespace, Name string
	Labels          map[string]string
	Annotations     map[string]string
	ServiceAccount  string   // made if need be; default "default"
	Node            string   // default DefaultNode
	IPs             []string // at most one of each family; default a fresh pair, for a HostNetwork pod those of its Node
	HostNetwork     bool
	Ready           bool
}

// Pod makes a pod and does what scheduler and kubelet would do until it runs: binds it to its Node and reports phase,
// addresses and conditions.
func (c *Cluster) Pod(ctx context.Context, cfg PodConfig) (*corev1.Pod, error) {
	pod, err := c.pod(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("making pod %s/%s: %w", cfg.Namespace, cfg.Name, err)
	}
	return pod, nil
}

func (c *Cluster) pod(ctx context.Context, cfg PodConfig) (*corev1.Pod, error) {
	if cfg.Node == "" {
		cfg.Node = DefaultNode
	}
	if cfg.ServiceAccount == "" {
		cfg.ServiceAccount = "default"
	} else if err := c.ServiceAccount(ctx, cfg.Namespace, cfg.ServiceAccount); err != nil {
		return nil, err
	}
	hostIPs, err := c.nodeAddresses(ctx, cfg.Node)
	if err != nil {
		return nil, err
	}
	switch {
	case cfg.HostNetwork:
		cfg.IPs = hostIPs
	case len(cfg.IPs) == 0:
		cfg.IPs = addresses("10.244.0.0", "fd00:10:244::", c.kubelet.pods.Add(1))
	}
	pods := c.client.CoreV1().Pods(cfg.Namespace)
	pod, err := pods.Create(ctx, cfg.object(), metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	binding := &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: pod.Name, UID: pod.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: cfg.Node},
	}
	if err := pods.Bind(ctx, binding, metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("binding: %w", err)
	}
	return c.patchStatus(ctx, cfg.Namespace, cfg.Name, cfg.status(hostIPs))
}

func (c *Cluster) nodeAddresses(ctx context.Context, name string) ([]string, error) {
	node, err := c.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, err
	}
	var ips []string
	for _, address := range node.Status.Addresses {
		if address.Type == corev1.NodeInternalIP {
			ips = append(ips, address.Address)
		}
	}
	return ips, nil
}

func (cfg PodConfig) object() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: cfg.Name, Labels: cfg.Labels, Annotations: cfg.Annotations},
		Spec: corev1.PodSpec{
			ServiceAccountName: cfg.ServiceAccount,
			// Nobody mounts anything: without the volume the object stays small in large benchmarks.
			AutomountServiceAccountToken: new(false),
			HostNetwork:                  cfg.HostNetwork,
			Containers:                   []corev1.Container{{Name: containerName, Image: "registry.k8s.io/pause:3.10"}},
		},
	}
}

// status is what a kubelet reports of a pod whose containers run.
func (cfg PodConfig) status(hostIPs []string) corev1.PodStatus {
	now := metav1.Now()
	status := readiness(cfg.Ready, now)
	status.Phase = corev1.PodRunning
	status.StartTime = &now
	for _, kind := range []corev1.PodConditionType{corev1.PodScheduled, corev1.PodInitialized, corev1.PodReadyToStartContainers} {
		status.Conditions = append(status.Conditions, condition(kind, true, now))
	}
	for _, ip := range cfg.IPs {
		status.PodIPs = append(status.PodIPs, corev1.PodIP{IP: ip})
	}
	status.PodIP = cfg.IPs[0]
	for _, ip := range hostIPs {
		status.HostIPs = append(status.HostIPs, corev1.HostIP{IP: ip})
	}
	if len(hostIPs) > 0 {
		status.HostIP = hostIPs[0]
	}
	return status
}

// readiness is the part of the status that says whether the pod is ready.
func readiness(ready bool, now metav1.Time) corev1.PodStatus {
	return corev1.PodStatus{
		Conditions: []corev1.PodCondition{
			condition(corev1.ContainersReady, ready, now),
			condition(corev1.PodReady, ready, now),
		},
		ContainerStatuses: []corev1.ContainerStatus{{
			Name:    containerName,
			Image:   "registry.k8s.io/pause:3.10",
			Ready:   ready,
			Started: new(true),
			State:   corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		}},
	}
}

func condition(kind corev1.PodConditionType, holds bool, now metav1.Time) corev1.PodCondition {
	c := corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: now}
	if !holds {
		c.Status = corev1.ConditionFalse
		c.Reason = "ContainersNotReady"
		c.Message = "containers with unready status: [" + containerName + "]"
	}
	return c
}

// patchStatus merges conditions by their type, as a kubelet's patch does.
func (c *Cluster) patchStatus(ctx context.Context, namespace, name string, status corev1.PodStatus) (*corev1.Pod, error) {
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return nil, err
	}
	pod, err := c.client.CoreV1().Pods(namespace).Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return nil, fmt.Errorf("patching the status of pod %s/%s: %w", namespace, name, err)
	}
	return pod, nil
}

// SetReady reports that the pod became ready or not. It returns the time at which the report was sent.
func (c *Cluster) SetReady(ctx context.Context, namespace, name string, ready bool) (time.Time, error) {
	sent := time.Now()
	_, err := c.patchStatus(ctx, namespace, name, readiness(ready, metav1.NewTime(sent)))
	return sent, err
}

// Terminate deletes the pod with a grace period: it stays, terminating, until Finish.
func (c *Cluster) Terminate(ctx context.Context, namespace, name string, grace time.Duration) error {
	seconds := int64(grace / time.Second)
	if seconds < 1 {
		return errors.New("terminating pod: grace must be a second or more; Finish removes at once")
	}
	return c.deletePod(ctx, namespace, name, seconds)
}

// Finish removes the pod at once, as a kubelet does when its containers have ended.
func (c *Cluster) Finish(ctx context.Context, namespace, name string) error {
	return c.deletePod(ctx, namespace, name, 0)
}

func (c *Cluster) deletePod(ctx context.Context, namespace, name string, seconds int64) error {
	options := metav1.DeleteOptions{GracePeriodSeconds: &seconds}
	// A deletion that meets a concurrent status patch is told of the conflict; kubelets retry as well.
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		return c.client.CoreV1().Pods(namespace).Delete(ctx, name, options)
	})
	if err != nil {
		return fmt.Errorf("deleting pod %s/%s: %w", namespace, name, err)
	}
	return nil
}
