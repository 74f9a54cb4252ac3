// Package workload plays the StatefulSet controller and the kubelet for the NSP's own pods: where an object says that a pod
// shall run, the pod appears in the API and its container is a process of this machine, with the command line, the environment
// and the probes that the object has. Only what cannot be on one machine differs: ports, paths, and names of Services.
package workload
