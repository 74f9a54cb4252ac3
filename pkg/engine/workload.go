package engine

import "net/netip"

// Workload names a target by pod or by an address of its primary network. It is comparable.
type Workload struct {
	Namespace, Pod, PodUID string
	// External is set where Pod and PodUID are of an ExternalTarget.
	External bool
	Addr     netip.Addr
}

// String names the workload for people.
func (w Workload) String() string {
	if w.Addr.IsValid() {
		return w.Addr.String()
	}
	return w.Namespace + "/" + w.Pod
}
