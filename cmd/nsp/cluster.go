package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nordix/meridio-nsp/api/v1alpha1"
	"github.com/nordix/meridio-nsp/pkg/config"
	"github.com/nordix/meridio-nsp/pkg/explain"
	"github.com/nordix/meridio-nsp/pkg/external/controller"
	"github.com/nordix/meridio-nsp/pkg/kube"
	"github.com/nordix/meridio-nsp/pkg/pool"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// clusterAccess is how a command reaches the API server: as kubectl does. Its fields are flags.
type clusterAccess struct {
	kubeconfig, context, namespace string
}

func addCluster(cmd *cobra.Command) *clusterAccess {
	a := &clusterAccess{}
	f := cmd.Flags()
	f.StringVar(&a.kubeconfig, "kubeconfig", "", "kubeconfig of the cluster; empty looks where kubectl does, then for the pod's own account")
	f.StringVar(&a.context, "context", "", "context in the kubeconfig; empty is its current one")
	f.StringVarP(&a.namespace, "namespace", "n", "", "namespace of the pod or Service; empty is that of the context")
	return a
}

func (a *clusterAccess) config() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = a.kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: a.context}
	overrides.Context.Namespace = a.namespace
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
}

// currentNamespace is the flag's, else the context's, else "default" as with kubectl.
func (a *clusterAccess) currentNamespace() string {
	if a.namespace != "" {
		return a.namespace
	}
	if ns, _, err := a.config().Namespace(); err == nil && ns != "" {
		return ns
	}
	return metav1.NamespaceDefault
}

// apiServer reads facts.
type apiServer struct {
	rest    *rest.Config
	client  kubernetes.Interface
	dynamic dynamic.Interface
}

func (a *clusterAccess) open() (*apiServer, error) {
	rc, err := a.config().ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("the API server is not known: %w; see --kubeconfig", err)
	}
	rc.QPS, rc.Burst = 50, 100
	client, err := kubernetes.NewForConfig(rc)
	if err != nil {
		return nil, fmt.Errorf("making a Kubernetes client: %w", err)
	}
	d, err := dynamic.NewForConfig(rc)
	if err != nil {
		return nil, fmt.Errorf("making a Kubernetes client: %w", err)
	}
	return &apiServer{rest: rc, client: client, dynamic: d}, nil
}

// facts reads what matters of a namespace, and the configurations and grants of the trenches that its Services name.
func (s *apiServer) facts(ctx context.Context, namespace string, f *explain.ClusterFacts) error {
	var none metav1.ListOptions
	pods, err := s.client.CoreV1().Pods(namespace).List(ctx, none)
	if err != nil {
		return fmt.Errorf("reading pods: %w", err)
	}
	services, err := s.client.CoreV1().Services(namespace).List(ctx, none)
	if err != nil {
		return fmt.Errorf("reading Services: %w", err)
	}
	endpoints, err := s.client.DiscoveryV1().EndpointSlices(namespace).List(ctx, none)
	if err != nil {
		return fmt.Errorf("reading EndpointSlices: %w", err)
	}
	for i := range pods.Items {
		f.Pods = append(f.Pods, podFacts(&pods.Items[i]))
	}
	for i := range services.Items {
		f.Services = append(f.Services, serviceFacts(&services.Items[i]))
	}
	for i := range endpoints.Items {
		f.Slices = append(f.Slices, sliceFacts(&endpoints.Items[i]))
	}
	s.custom(ctx, namespace, f)
	s.trenches(ctx, f)
	return nil
}

// custom reads our own objects. A kind that the cluster does not have has none; one that may not be read is told as such.
func (s *apiServer) custom(ctx context.Context, namespace string, f *explain.ClusterFacts) {
	f.ExternalsErr = s.each(ctx, namespace, "externaltargets", func(o *unstructured.Unstructured) {
		f.Externals = append(f.Externals, externalFacts(o))
	})
	f.MadeErr = s.each(ctx, namespace, "targetpools", func(o *unstructured.Unstructured) {
		f.Made = append(f.Made, targetPoolFacts(o))
	})
	f.PoliciesErr = s.each(ctx, namespace, "streampolicies", func(o *unstructured.Unstructured) {
		f.Policies = append(f.Policies, policyFacts(o))
	})
}

// each calls f for the objects of a kind of ours, and returns why they could not be read.
func (s *apiServer) each(ctx context.Context, namespace, resource string, f func(*unstructured.Unstructured)) (fault string) {
	list, err := s.dynamic.Resource(v1alpha1.Resource(resource)).Namespace(namespace).List(ctx, metav1.ListOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return ""
	case err != nil:
		return fmt.Sprintf("reading %s: %v", resource, err)
	}
	for i := range list.Items {
		f(&list.Items[i])
	}
	return ""
}

func (s *apiServer) trenches(ctx context.Context, f *explain.ClusterFacts) {
	f.Trenches = make(map[explain.TrenchName]explain.TrenchFacts)
	f.Grants, f.GrantsErr = make(map[string]*pool.Grants), make(map[string]string)
	for _, svc := range f.Services {
		name := explain.TrenchName{Namespace: svc.Namespace, Name: svc.Labels[pool.LabelTrench]}
		if other := svc.Labels[pool.LabelNamespace]; other != "" {
			name.Namespace = other
		}
		if name.Name == "" {
			continue
		}
		if _, done := f.Trenches[name]; !done {
			f.Trenches[name] = s.trench(ctx, name)
		}
		if _, done := f.Grants[name.Namespace]; !done {
			grants, err := kube.ReadGrants(ctx, s.dynamic, name.Namespace)
			f.Grants[name.Namespace] = grants
			if err != nil {
				f.GrantsErr[name.Namespace] = err.Error()
			}
		}
	}
}

func (s *apiServer) trench(ctx context.Context, name explain.TrenchName) explain.TrenchFacts {
	m, err := s.client.CoreV1().ConfigMaps(name.Namespace).Get(ctx, config.MapName(name.Name), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return explain.TrenchFacts{}
	case err != nil:
		return explain.TrenchFacts{Err: err.Error()}
	}
	var out explain.TrenchFacts
	out.Config, _ = config.Parse(m.Data, nil)
	out.Malformed = out.Config.Unread
	return out
}

func podFacts(p *corev1.Pod) explain.PodFacts {
	f := explain.PodFacts{
		Namespace: p.Namespace, Name: p.Name, UID: string(p.UID), Labels: p.Labels, Account: p.Spec.ServiceAccountName,
		HostNetwork: p.Spec.HostNetwork, Phase: string(p.Status.Phase), Terminating: p.DeletionTimestamp != nil,
	}
	for _, ip := range p.Status.PodIPs {
		f.IPs = append(f.IPs, ip.IP)
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			f.Ready = c.Status == corev1.ConditionTrue
			f.NotReady = strings.TrimPrefix(c.Reason+": "+c.Message, ": ")
		}
	}
	if f.Ready {
		f.NotReady = ""
	}
	f.NotReady = strings.TrimSuffix(f.NotReady, ": ")
	return f
}

func serviceFacts(s *corev1.Service) explain.ServiceFacts {
	f := explain.ServiceFacts{Service: kube.ServiceOf(s), Selector: s.Spec.Selector, MadeFor: s.Annotations[controller.AnnotationMadeFor]}
	if owner := metav1.GetControllerOf(s); owner != nil {
		f.Owner, f.OwnerUID = owner.Kind+"/"+owner.Name, string(owner.UID)
	}
	return f
}

func externalFacts(o *unstructured.Unstructured) explain.ExternalFacts {
	var typed v1alpha1.ExternalTarget
	_ = runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &typed) // what is not understood says nothing
	f := explain.ExternalFacts{Target: kube.TargetOf(o), Labels: o.GetLabels(), Conditions: conditionFacts(typed.Status.Conditions, o.GetGeneration())}
	switch s := typed.Spec.Source; {
	case s.Addresses != nil:
		f.Source = "addresses"
	case s.DNS != nil:
		f.Source = "dns " + s.DNS.Name
	case s.Kubernetes != nil:
		f.Source = "kubernetes"
	case s.Provider != nil:
		f.Source = "provider " + s.Provider.Name
	}
	for _, a := range typed.Status.Addresses {
		if a.Ready {
			f.Ready++
		}
	}
	return f
}

func targetPoolFacts(o *unstructured.Unstructured) explain.TargetPoolFacts {
	var typed v1alpha1.TargetPool
	_ = runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &typed) // as above
	return explain.TargetPoolFacts{
		Ref: pool.Ref{Namespace: o.GetNamespace(), Name: o.GetName()}, UID: string(o.GetUID()), Service: typed.Status.Service,
		Conditions: conditionFacts(typed.Status.Conditions, o.GetGeneration()),
	}
}

func policyFacts(o *unstructured.Unstructured) explain.PolicyFacts {
	var typed v1alpha1.StreamPolicy
	_ = runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &typed) // as above
	of := typed.Spec.Stream
	return explain.PolicyFacts{
		Ref:      pool.Ref{Namespace: o.GetNamespace(), Name: o.GetName()},
		Stream:   stream.Key{Namespace: o.GetNamespace(), Trench: string(of.Trench), Conduit: string(of.Conduit), Name: string(of.Stream)},
		Prefixes: int(typed.Status.TotalPrefixes), Conditions: conditionFacts(typed.Status.Conditions, o.GetGeneration()),
	}
}

func conditionFacts(all []metav1.Condition, generation int64) explain.Conditions {
	facts := make(explain.Conditions, len(all))
	for _, c := range all {
		facts[c.Type] = explain.Condition{
			Status: string(c.Status), Reason: c.Reason, Message: c.Message, Outdated: c.ObservedGeneration < generation,
		}
	}
	return facts
}

func sliceFacts(s *discoveryv1.EndpointSlice) explain.SliceFacts {
	return explain.SliceFacts{
		Slice: kube.SliceOf(s), Marked: s.Labels[pool.LabelMarker] == pool.MarkerValue, Owned: metav1.GetControllerOf(s) != nil,
	}
}

func cutPod(name string) (namespace, pod string, ok bool) { return strings.Cut(name, "/") }

// bears compares what may be written as a CIDR.
func bears(text string, a netip.Addr) bool {
	text, _, _ = strings.Cut(text, "/")
	b, err := netip.ParseAddr(text)
	return err == nil && b.Unmap() == a
}

// names are those of our own objects of a kind, podNames and serviceNames of others, for the shell; without API server there are none.
func (s *apiServer) names(ctx context.Context, namespace, resource string) (names []string) {
	_ = s.each(ctx, namespace, resource, func(o *unstructured.Unstructured) { names = append(names, o.GetName()) })
	return names
}

// namesOf are the names of a kind that can be explained.
func (s *apiServer) namesOf(ctx context.Context, kind explain.Kind, namespace string) []string {
	switch kind {
	case explain.Pod:
		return s.podNames(ctx, namespace)
	case explain.Service:
		return s.serviceNames(ctx, namespace)
	case explain.ExternalTarget:
		return s.names(ctx, namespace, "externaltargets")
	case explain.TargetPool:
		return s.names(ctx, namespace, "targetpools")
	case explain.StreamPolicy:
		return s.names(ctx, namespace, "streampolicies")
	}
	return nil
}

func (s *apiServer) podNames(ctx context.Context, namespace string) []string {
	list, err := s.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil
	}
	var names []string
	for _, p := range list.Items {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	return names
}

func (s *apiServer) serviceNames(ctx context.Context, namespace string) []string {
	list, err := s.client.CoreV1().Services(namespace).List(ctx, metav1.ListOptions{LabelSelector: pool.LabelMarker + "=" + pool.MarkerValue})
	if err != nil {
		return nil
	}
	var names []string
	for _, p := range list.Items {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	return names
}
