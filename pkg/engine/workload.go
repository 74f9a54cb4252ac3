package engine

import "net/netip"

// Workload names a target by pod or by an address of its primary network. It is comparable.
type Workload struct {
	Namespace, Pod, PodUID string
	Addr                   netip.Addr
}

// String names the workload for people.
func (w Workload) String() string {
	if w.Addr.IsValid() {
		return w.Addr.String()
	}
	return w.Namespace + "/" + w.Pod
}
