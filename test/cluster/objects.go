package cluster

import (
	"cmp"
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// cleanupTimeout is enough for the ten thousand pods of a benchmark.
const cleanupTimeout = 2 * time.Minute

// Namespace makes a namespace of a name of its own, which is removed with all that is in it when the test ends.
func (c *Cluster) Namespace(t testing.TB) string {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "nsp-test-"}}
	namespace, err := c.client.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("creating a namespace: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		if err := c.DeleteNamespace(ctx, namespace.Name); err != nil {
			t.Logf("cleanup: %v", err)
		}
	})
	if err := c.ServiceAccount(t.Context(), namespace.Name, "default"); err != nil {
		t.Fatal(err)
	}
	return namespace.Name
}

// EnsureNamespace makes the namespace of that name, ready for pods, unless it exists.
func (c *Cluster) EnsureNamespace(ctx context.Context, name string) error {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err := c.client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating namespace %s: %w", name, err)
	}
	return c.ServiceAccount(ctx, name, "default")
}

// DeleteNamespace removes the pods, which no kubelet would, and starts the removal of all else. It is no error if the
// namespace does not exist.
func (c *Cluster) DeleteNamespace(ctx context.Context, name string) error {
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}
	if err := c.client.CoreV1().Pods(name).DeleteCollection(ctx, now, metav1.ListOptions{}); err != nil {
		return fmt.Errorf("deleting the pods of namespace %s: %w", name, err)
	}
	if err := c.deleteServices(ctx, name); err != nil {
		return err
	}
	err := c.client.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting namespace %s: %w", name, err)
	}
	return nil
}

// deleteServices frees the node ports at once: a namespace goes some time later, and who comes next may ask for the same.
func (c *Cluster) deleteServices(ctx context.Context, namespace string) error {
	services, err := c.client.CoreV1().Services(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing the Services of namespace %s: %w", namespace, err)
	}
	for _, s := range services.Items {
		err := c.client.CoreV1().Services(namespace).Delete(ctx, s.Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("deleting Service %s/%s: %w", namespace, s.Name, err)
		}
	}
	return nil
}

// ServiceConfig describes a Service with one port, of TCP and of both families where it can be.
type ServiceConfig struct {
	Namespace, Name string
	Labels          map[string]string
	Annotations     map[string]string
	Selector        map[string]string // nil: none
	ClusterIP       bool              // default headless
	Port            int32             // default 80, or the one that the Service has
}

// Service makes the Service, or updates labels, annotations, selector and port of the one that exists.
func (c *Cluster) Service(ctx context.Context, cfg ServiceConfig) (*corev1.Service, error) {
	services := c.client.CoreV1().Services(cfg.Namespace)
	service, err := services.Create(ctx, cfg.object(), metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		service, err = services.Get(ctx, cfg.Name, getOptions)
		if err != nil {
			return nil, fmt.Errorf("reading service %s/%s: %w", cfg.Namespace, cfg.Name, err)
		}
		service.Labels, service.Annotations, service.Spec.Selector = cfg.Labels, cfg.Annotations, cfg.Selector
		if cfg.Port != 0 {
			service.Spec.Ports = cfg.object().Spec.Ports
		}
		service, err = services.Update(ctx, service, metav1.UpdateOptions{})
	}
	if err != nil {
		return nil, fmt.Errorf("making service %s/%s: %w", cfg.Namespace, cfg.Name, err)
	}
	return service, nil
}

func (cfg ServiceConfig) object() *corev1.Service {
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: cfg.Name, Labels: cfg.Labels, Annotations: cfg.Annotations},
		Spec: corev1.ServiceSpec{
			Selector:       cfg.Selector,
			IPFamilyPolicy: new(corev1.IPFamilyPolicyPreferDualStack),
			Ports:          []corev1.ServicePort{{Name: "http", Port: cmp.Or(cfg.Port, 80)}},
		},
	}
	if !cfg.ClusterIP {
		service.Spec.ClusterIP = corev1.ClusterIPNone
	}
	return service
}

// DeleteService removes the Service; the garbage collector removes its slices.
func (c *Cluster) DeleteService(ctx context.Context, namespace, name string) error {
	if err := c.client.CoreV1().Services(namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("deleting service %s/%s: %w", namespace, name, err)
	}
	return nil
}
