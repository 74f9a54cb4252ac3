package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/httpstream" //nolint:staticcheck // client-go still asks for these types
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/klog/v2"
	streaming "k8s.io/streaming/pkg/httpstream"

	"github.com/nordix/meridio-nsp/pkg/pool"
)

// The Kubernetes Service of the namespace-wide NSP.
const (
	nspService = "nsp-service"
	nspPort    = 7778
)

// forwarding reaches the NSP through the API server, as kubectl port-forward does.
type forwarding struct {
	cluster *clusterAccess
	// namespace is that of the NSP; empty is what the Services of the cluster's namespace say.
	namespace string
}

// start forwards a port of this host until stop is called, which waits for the end.
func (f *forwarding) start(ctx context.Context) (address, namespace string, stop func(), err error) {
	api, err := f.cluster.open()
	if err != nil {
		return "", "", nil, err
	}
	namespace = cmp.Or(f.namespace, api.nspNamespace(ctx, f.cluster.currentNamespace()))
	pod, port, err := api.nspPod(ctx, namespace)
	if err != nil {
		return "", "", nil, err
	}
	address, stop, err = api.forward(ctx, pod, port)
	if err != nil {
		err = fmt.Errorf("forwarding a port to pod %s/%s: %w\nthat takes the verb create on pods/portforward; --nsp-address goes around it",
			pod.Namespace, pod.Name, err)
	}
	return address, namespace, stop, err
}

// nspNamespace is the namespace that the pools of a namespace name for their streams, else that namespace itself.
func (s *apiServer) nspNamespace(ctx context.Context, namespace string) string {
	list, err := s.client.CoreV1().Services(namespace).List(ctx, metav1.ListOptions{LabelSelector: pool.LabelMarker + "=" + pool.MarkerValue})
	if err != nil {
		return namespace
	}
	for _, svc := range list.Items {
		if other := svc.Labels[pool.LabelNamespace]; other != "" {
			return other
		}
	}
	return namespace
}

// nspPod is a ready pod of the namespace-wide NSP, and the port that it listens on.
func (s *apiServer) nspPod(ctx context.Context, namespace string) (*corev1.Pod, int, error) {
	svc, err := s.client.CoreV1().Services(namespace).Get(ctx, nspService, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, 0, fmt.Errorf("namespace %s has no Service %s: is service-fication on there? --nsp-namespace names another", namespace, nspService)
	case err != nil:
		return nil, 0, fmt.Errorf("looking for the NSP: %w", err)
	}
	selector := labels.SelectorFromSet(svc.Spec.Selector).String()
	pods, err := s.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, 0, fmt.Errorf("looking for the pods of the NSP: %w", err)
	}
	i := slices.IndexFunc(pods.Items, func(p corev1.Pod) bool { return podFacts(&p).Ready && p.DeletionTimestamp == nil })
	if i < 0 {
		return nil, 0, fmt.Errorf("no pod of Service %s/%s is ready: kubectl get pods -n %s -l %s", namespace, nspService, namespace, selector)
	}
	pod := &pods.Items[i]
	return pod, targetPort(svc, pod), nil
}

// targetPort resolves the port of the Service in the pod.
func targetPort(svc *corev1.Service, pod *corev1.Pod) int {
	for _, p := range svc.Spec.Ports {
		switch {
		case p.Port != nspPort:
		case p.TargetPort.Type == intstr.Int && p.TargetPort.IntVal != 0:
			return int(p.TargetPort.IntVal)
		case p.TargetPort.Type == intstr.String:
			for _, c := range pod.Spec.Containers {
				for _, cp := range c.Ports {
					if cp.Name == p.TargetPort.StrVal {
						return int(cp.ContainerPort)
					}
				}
			}
		}
	}
	return nspPort
}

// silenceKlog is for port forwards, which log every connection that ends; what matters is told by the calls that fail. It is done
// once, before there is any: connections of an earlier one may still be ending.
var silenceKlog = sync.OnceFunc(func() { klog.SetSlogLogger(slog.New(slog.DiscardHandler)) })

// forward listens on a free port of this host. As kubectl, it tries WebSocket first, and SPDY where a proxy or an older API server does
// not speak that.
func (s *apiServer) forward(ctx context.Context, pod *corev1.Pod, port int) (address string, stop func(), err error) {
	dialer, err := s.dialer(s.client.CoreV1().RESTClient().Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).
		SubResource("portforward").URL())
	if err != nil {
		return "", nil, err
	}
	stopped, ready, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	f, err := portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{"0:" + strconv.Itoa(port)}, stopped, ready, io.Discard, io.Discard)
	if err != nil {
		return "", nil, err
	}
	silenceKlog()
	go func() { ended <- f.ForwardPorts() }()
	stop = func() {
		close(stopped)
		<-ended //nolint:errcheck // it was told to
	}
	select {
	case <-ready:
	case err := <-ended:
		return "", nil, cmp.Or(err, errors.New("it ended at once"))
	case <-ctx.Done():
		stop()
		return "", nil, ctx.Err()
	}
	ports, err := f.GetPorts()
	if err != nil || len(ports) == 0 {
		stop()
		return "", nil, cmp.Or(err, errors.New("no port was forwarded"))
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(int(ports[0].Local))), stop, nil
}

func (s *apiServer) dialer(to *url.URL) (httpstream.Dialer, error) {
	transport, upgrader, err := spdy.RoundTripperFor(s.rest)
	if err != nil {
		return nil, err
	}
	overSPDY := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, to)
	overWebSocket, err := portforward.NewSPDYOverWebsocketDialer(to, s.rest)
	if err != nil {
		return nil, err
	}
	return portforward.NewFallbackDialer(overWebSocket, overSPDY, func(err error) bool {
		// WebSocket fails with the newer package's type.
		return httpstream.IsUpgradeFailure(err) || streaming.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	}), nil
}
