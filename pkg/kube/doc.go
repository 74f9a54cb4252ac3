// Package kube joins the engine to the Kubernetes API: Services, EndpointSlices and ConfigMaps in, conditions and events out.
//
// Source reads with the reflector that is inside every client-go informer, and without the rest of an informer: its store
// holds converted objects only, compares them, and posts differences from the reflector's goroutine. So a watch event reaches
// the engine without a queue in between, an object's metadata is not kept, a change that means nothing to pools (status, say)
// ends here, and an object that was deleted while nobody watched is missed at the relist. A list that fails, a watch that is
// cut, a resource version that is too old: what is known is kept, and its age is a metric.
//
// Configs watches one ConfigMap per trench, by name. Status writes the conditions meridio.nordix.org/Accepted and
// meridio.nordix.org/Programmed by server-side apply, and owns nothing else of a Service.
//
// The least that a Role must allow, in each namespace whose Services may be pools:
//
//	apiGroups: [""]                  resources: [services]         verbs: [get, list, watch]
//	apiGroups: [""]                  resources: [services/status]  verbs: [patch]
//	apiGroups: [discovery.k8s.io]    resources: [endpointslices]   verbs: [watch]
//	apiGroups: [events.k8s.io]       resources: [events]           verbs: [create, patch]
//
// and in the NSP's own namespace, where resourceNames may list the ConfigMaps meridio-configuration-<trench>:
//
//	apiGroups: [""]                  resources: [configmaps]       verbs: [watch]
//
// The API server must serve streaming lists (Kubernetes 1.34, or the feature gate WatchList before).
package kube
