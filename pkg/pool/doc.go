// Package pool turns Services and EndpointSlices into members and what each of them counts as. It knows neither
// Kubernetes nor gRPC: values go in by SetService and SetSlice, differences come out of Flush.
//
// The rules, none of which depends on the order of events:
//
//  1. A Service is a pool when it bears the marker and three stream labels and its stream is of this NSP's namespace. A
//     Service of another NSP is silently no pool; one of ours that is wrong is a pool that is not accepted and says why.
//  2. A slice whose owner is a Service of another UID is a leftover. Slices of names (FQDN) are refused.
//  3. A member is a pod (namespace, UID) or, without targetRef, an address (namespace, address); an endpoint of several
//     addresses without a targetRef is as many members. Addresses are the union over all slices of all accepted pools. The
//     conditions in a pool come from its slice with the greatest version, then the greatest name: an endpoint is in two
//     slices while it moves. Of two listings in one slice the stronger counts. An endpoint that is refused spoils no other.
//  4. Nil conditions mean ready, serving, not terminating.
//  5. A pool without a Ready member lets those that serve while terminating count as active. Below the panic threshold all
//     that are not terminating count as active.
//  6. Members hold the streams of all pools that list them; with "assignment: ready" only while they are Ready.
//  7. One trench per member: the oldest accepted Service (creation, UID, name) decides, the pools of other trenches have the
//     member withheld: it neither holds their stream nor counts in them.
//  8. A namespace other than the NSP's own needs a permit.
//  9. So does every member without a pod, in any namespace.
//
// Sources: the proposal "Target Registration Standardization" (labels, full names of streams); discovery/v1 of Kubernetes
// (nil conditions, addresses are fungible, endpoints move between slices); KEP-1669 (terminating endpoints as a last
// resort); the panic threshold of Envoy.
package pool
