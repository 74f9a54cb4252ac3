// Package explain follows a target from the label on its Service to the load balancer, and finds the step that stops it. It is pure:
// facts in, steps out. Facts come from the cluster and from the process; where the two differ, it says so.
package explain

import (
	"net/netip"
	"time"

	"github.com/nordix/meridio-nsp/pkg/config"
	"github.com/nordix/meridio-nsp/pkg/pool"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// Kind is what a Subject is.
type Kind string

// The kinds of subjects, as on the command line.
const (
	Pod            Kind = "pod"
	Service        Kind = "service"
	Target         Kind = "target"
	ExternalTarget Kind = "externaltarget"
	TargetPool     Kind = "targetpool"
	StreamPolicy   Kind = "streampolicy"
)

// Subject is what is asked about: an object by name, a target by an address of it.
type Subject struct {
	Kind      Kind
	Namespace string
	Name      string
	Addr      netip.Addr
}

// String is as on the command line.
func (s Subject) String() string {
	if s.Kind == Target {
		return string(s.Kind) + "/" + s.Addr.String()
	}
	return string(s.Kind) + "/" + s.Name
}

// Facts are all that is known.
type Facts struct {
	Now     time.Time
	Cluster ClusterFacts
	Process ProcessFacts
}

// ClusterFacts are what the API server says of the namespace of the subject.
type ClusterFacts struct {
	// Err is why nothing could be read; empty where it could.
	Err      string
	Pods     []PodFacts
	Services []ServiceFacts
	Slices   []SliceFacts
	// Externals are the ExternalTargets, Made the TargetPools; ExternalsErr and MadeErr are why they could not be read, or empty.
	Externals             []ExternalFacts
	Made                  []TargetPoolFacts
	ExternalsErr, MadeErr string
	// Policies are the StreamPolicies; PoliciesErr is why they could not be read, or empty.
	Policies    []PolicyFacts
	PoliciesErr string
	// Trenches are the configurations of the trenches that the Services name.
	Trenches map[TrenchName]TrenchFacts
	// Grants are those of the namespaces of these trenches; GrantsErr is why those of a namespace could not be read.
	Grants    map[string]*pool.Grants
	GrantsErr map[string]string
}

// TrenchName is a trench in a namespace.
type TrenchName struct{ Namespace, Name string }

// PodFacts is what matters of a pod.
type PodFacts struct {
	Namespace, Name, UID string
	Labels               map[string]string
	IPs                  []string
	// Account is the name of its ServiceAccount.
	Account     string
	HostNetwork bool
	// Phase is Pending, Running, Succeeded, Failed or Unknown.
	Phase string
	// Ready is the condition of that name; NotReady says why it is not, as far as the pod says.
	Ready    bool
	NotReady string
	// Terminating is whether it was deleted.
	Terminating bool
}

// ServiceFacts is a Service, with what the NSP does not look at.
type ServiceFacts struct {
	pool.Service
	Selector map[string]string
	// MadeFor is the object for which the controller made it, as Kind/name, empty for most; Owner is its controller, likewise, and
	// OwnerUID the UID of that.
	MadeFor, Owner, OwnerUID string
}

// ExternalFacts is an ExternalTarget.
type ExternalFacts struct {
	pool.Target
	Labels map[string]string
	// Source is the kind of its source: addresses, dns, kubernetes or provider.
	Source string
	// Ready is how many of its confirmed addresses take traffic.
	Ready      int
	Conditions Conditions
}

// TargetPoolFacts is a TargetPool.
type TargetPoolFacts struct {
	pool.Ref
	UID string
	// Service is the name of the one that was made for it, empty where none was.
	Service    string
	Conditions Conditions
}

// PolicyFacts is a StreamPolicy.
type PolicyFacts struct {
	pool.Ref
	Stream stream.Key
	// Prefixes is how many its sources resolve to.
	Prefixes   int
	Conditions Conditions
}

// Conditions of an object, by type.
type Conditions map[string]Condition

// Condition is one of them.
type Condition struct {
	// Status is True, False or Unknown.
	Status, Reason, Message string
	// Outdated is whether the object was changed since.
	Outdated bool
}

// SliceFacts is an EndpointSlice that names one of the Services.
type SliceFacts struct {
	pool.Slice
	// Marked is whether it bears the marker.
	Marked bool
	// Owned is whether a controller made it.
	Owned bool
}

// TrenchFacts is the ConfigMap of a trench.
type TrenchFacts struct {
	// Err is why it could not be read, Malformed which keys are not well formed.
	Err       string
	Malformed []string
	// Config is nil where there is no such ConfigMap.
	Config *config.Config
}

// ProcessFacts are what the namespace process says.
type ProcessFacts struct {
	// Err is why it did not answer; empty where it did.
	Err string
	// Namespace is its own: it serves the streams of this one. Cluster is the name of its cluster, or empty.
	Namespace     string
	Cluster       string
	Authorisation string
	// Answering, Rebuilding and Stale are as in targetpool.v1.
	Answering, Rebuilding, Stale bool
	// Namespaces are those that it watches.
	Namespaces map[string]NamespaceFacts
	Trenches   map[string]TrenchState
	Conduits   map[stream.Conduit]ConduitState
	// Prefixes is from how many prefixes streams may be used that have a policy.
	Prefixes  map[stream.Key]int
	Receivers []Receiver
	Sidecars  []Sidecar
	Pools     []PoolFacts
	Targets   []TargetFacts
	// Waiting are those who are not registered yet, for want of an identifier.
	Waiting []Waiting
}

// Waiting is somebody who waits to be given an identifier.
type Waiting struct {
	Stream      stream.Key
	Addresses   []string
	Pod, PodUID string
	// Preferred is whether it comes before those that are not.
	Preferred bool
}

// NamespaceFacts is how far a namespace is read.
type NamespaceFacts struct {
	Synced bool
	Err    string
	Age    time.Duration
}

// TrenchState is what the process has of a trench's configuration.
type TrenchState struct {
	Read       bool
	MaxTargets map[stream.Key]uint32
}

// ConduitState is what the process tells load balancers of a conduit.
type ConduitState struct {
	Open     bool
	Revision uint64
	Targets  int
}

// ReceiverKind is how somebody is told of targets.
type ReceiverKind string

// The kinds of receivers.
const (
	ByFeed  ReceiverKind = "TargetFeed"
	ByList  ReceiverKind = "TargetRegistry"
	ByRelay ReceiverKind = "Relay"
)

// Receiver is a load balancer, or a trench process that serves some.
type Receiver struct {
	Kind ReceiverKind
	// Trench, Conduit and Stream are what is watched; empty is all.
	Trench, Conduit, Stream string
	Peer                    string
	Since                   time.Time
	// Revision of the last message that was sent; 0 where that is not known.
	Revision uint64
}

// Sidecar is the watch of one.
type Sidecar struct {
	Pod, PodUID, Address string
	// External is the name of an ExternalTarget, instead of a pod's.
	External string
	Peer     string
	Since    time.Time
	Proven   bool
	// Told is whether it was sent a list, of Streams.
	Told      bool
	Streams   []stream.Key
	Addresses []string
	// Owners is whether it reports who holds its streams; Application are those that the application does.
	Owners      bool
	Application []stream.Key
}

// PoolFacts is a Service as the process understands it.
type PoolFacts struct {
	pool.Ref
	UID             string
	Stream          stream.Key
	Accepted        bool
	Reason, Message string
	Assignment      string
	Panic           bool
	Problems        []string
	Members         []MemberFacts
	// Slices are the versions that were read, by name.
	Slices map[string]uint64
}

// MemberFacts is a member as that pool sees it.
type MemberFacts struct {
	Namespace, Pod, UID string
	// External is whether it is an ExternalTarget, and Pod the name of that.
	External  bool
	Addresses []string
	// Condition is Ready, NotReady or Draining; State is ACTIVE, DRAINING or INACTIVE.
	Condition, State            string
	Assigned, Withheld, Watched bool
}

// TargetFacts is a registration.
type TargetFacts struct {
	ID         uint64
	Stream     stream.Key
	Addresses  []string
	Identifier string
	// Status is ENABLED or DISABLED, as stored; Blocked is set where ENABLED was asked and the identifier is another's.
	Status  string
	Blocked bool
	// State is ACTIVE, DRAINING, INACTIVE, or empty where nothing is told yet.
	State, Reason string
	Caused        time.Time
	Pod, PodUID   string
	// Binding is how the pod is known; empty where it is not.
	Binding string
	Listed  bool
	Peer    string
}
