// Package external finds the addresses of what is no pod of this cluster.
//
// A Source reports what it learns: addresses, or why it has none. Follow makes of these reports what counts: addresses that
// load balancers can take, at most MaxEndpoints of them, and the last good ones while there are no better, for a limited time.
// The sources are in packages of their own (probe, dns, cluster, provider); none knows Kubernetes objects of this cluster.
package external
