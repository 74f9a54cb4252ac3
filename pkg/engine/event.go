package engine

import (
	"net/netip"

	"github.com/nordix/meridio-nsp/pkg/pool"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// Event is something that a source reports. Events of one source are applied in the order in which it posts them.
type Event interface{ isEvent() }

// NamespaceSynced is the complete state of a namespace: it replaces what was known. Nothing of a namespace counts before
// its first one.
type NamespaceSynced struct {
	Namespace string
	Services  []pool.Service
	Slices    []pool.Slice
	Targets   []pool.Target
}

// NamespaceUnavailable says that a namespace cannot be read for now. Before the first sync its last stored effective
// targets count; after it nothing changes.
type NamespaceUnavailable struct {
	Namespace string
	Err       error
}

// NamespaceDropped says that a namespace is no longer watched.
type NamespaceDropped struct{ Namespace string }

// ServiceSet adds or replaces a Service.
type ServiceSet struct{ Service pool.Service }

// ServiceGone says that a Service is deleted or lost its marker.
type ServiceGone struct{ Ref pool.Ref }

// SliceSet adds or replaces an EndpointSlice.
type SliceSet struct{ Slice pool.Slice }

// SliceGone says that an EndpointSlice is deleted or lost its marker.
type SliceGone struct{ Namespace, Name string }

// TargetSet adds or replaces an ExternalTarget.
type TargetSet struct{ Target pool.Target }

// TargetGone says that an ExternalTarget is deleted.
type TargetGone struct{ Ref pool.Ref }

// TrenchConfigured is what the configuration of a trench says. Absent streams, and 0, mean the default of 100 targets.
type TrenchConfigured struct {
	Trench     string
	MaxTargets map[stream.Key]uint32
	// Flows has every stream of the trench with its flows; nil where that is not known.
	Flows map[stream.Key][]pool.Flow
}

// Rebuilt says that whoever is there has registered again since the stored registrations were lost.
type Rebuilt struct{}

// GrantsChanged replaces what other namespaces may do.
type GrantsChanged struct{ Grants *pool.Grants }

// identified says as which ServiceAccount of which namespace a pod runs.
type identified struct {
	workload           Workload
	namespace, account string
}

// reported is what the sidecar of a workload says; a nil report ends its watch.
type reported struct {
	id       uint64
	workload Workload
	report   *Report
}

func (NamespaceSynced) isEvent()      {}
func (NamespaceUnavailable) isEvent() {}
func (NamespaceDropped) isEvent()     {}
func (ServiceSet) isEvent()           {}
func (ServiceGone) isEvent()          {}
func (SliceSet) isEvent()             {}
func (SliceGone) isEvent()            {}
func (TargetSet) isEvent()            {}
func (TargetGone) isEvent()           {}
func (TrenchConfigured) isEvent()     {}
func (GrantsChanged) isEvent()        {}
func (identified) isEvent()           {}
func (Rebuilt) isEvent()              {}
func (reported) isEvent()             {}

// Report is what a sidecar says of its pod.
type Report struct {
	// Proven is set where the caller's identity stands behind the addresses; others do not bind.
	Proven bool
	Addrs  []netip.Addr
	// Application lists the streams that the application holds itself, HasOwners whether the sidecar reports owners at all.
	Application []stream.Key
	HasOwners   bool
}

// PoolStatus is what there is to say of a pool.
type PoolStatus struct {
	Pool *pool.Pool
	// Targets counts the members of this pool by their registrations.
	Targets Counts
	// Unconfigured is set where the configuration of the trench is known and has no such stream, Unmet are the ports of the Service
	// to which no flow of the stream sends anything.
	Unconfigured bool
	Unmet        []string
	// Waiting are the members that wait for an identifier, or have none in 1..max-targets.
	Waiting Names
	// Unwatched are the members that nobody watches for: no sidecar will open their streams.
	Unwatched Names
	// Strangers are registrations in the pool's stream that belong to no member of any pool of that stream, by their addresses.
	Strangers Names
}
