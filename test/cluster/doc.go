// Package cluster runs a real Kubernetes control plane (etcd, API server, controller manager) on loopback ports, for tests
// and the demo, and plays the parts of scheduler and kubelet: pods are bound to Node objects and their status is patched.
// EndpointSlices come from the real controllers, tokens from the real TokenRequest.
//
// With NSP_TEST_KUBECONFIG set, that existing cluster is used instead.
package cluster
