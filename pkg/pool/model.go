package pool

import (
	"cmp"
	"net/netip"
	"strings"
	"time"

	"github.com/nordix/meridio-nsp/pkg/stream"
)

// Ref names a Service.
type Ref struct{ Namespace, Name string }

// String is namespace/name.
func (r Ref) String() string { return r.Namespace + "/" + r.Name }

// Compare orders by namespace and name.
func (r Ref) Compare(o Ref) int {
	return cmp.Or(strings.Compare(r.Namespace, o.Namespace), strings.Compare(r.Name, o.Name))
}

// Service is what matters here of a Kubernetes Service that bears the marker.
type Service struct {
	Ref
	UID         string
	Created     time.Time
	Labels      map[string]string
	Annotations map[string]string
	// Type is spec.type: ClusterIP, ExternalName, ...
	Type        string
	HasSelector bool
	Ports       []Port
}

// Slice is what matters here of an EndpointSlice that bears the marker.
type Slice struct {
	Namespace, Name string
	// Service is the name in the label kubernetes.io/service-name.
	Service string
	// OwnerUID is the UID of the controller owner where that is a Service, else empty.
	OwnerUID string
	// Version is metadata.resourceVersion as a number; of two slices that list one member the greater one is believed.
	Version uint64
	// AddressType is IPv4, IPv6 or FQDN.
	AddressType string
	Endpoints   []Endpoint
	// Changed is when the cluster saw the cause of the last change (endpoints.kubernetes.io/last-change-trigger-time), or zero.
	Changed time.Time
}

// Endpoint is one entry of a slice. Nil conditions have the meaning of discovery/v1: ready, serving, not terminating.
type Endpoint struct {
	Addresses                   []string
	Ready, Serving, Terminating *bool
	Target                      *TargetRef
}

// TargetRef is the object that an endpoint stands for.
type TargetRef struct{ Kind, Namespace, Name, UID string }

// MemberKey names one workload: a pod by namespace and UID, anything else by namespace and address.
type MemberKey struct {
	Namespace string
	UID       string
	Addr      netip.Addr
}

// External is whether no pod is behind the member.
func (k MemberKey) External() bool { return k.UID == "" }

// String is namespace/UID or namespace/address.
func (k MemberKey) String() string {
	if k.External() {
		return k.Namespace + "/" + k.Addr.String()
	}
	return k.Namespace + "/" + k.UID
}

// Compare orders keys by namespace, UID and address, so that members without a pod come first.
func (k MemberKey) Compare(o MemberKey) int {
	return cmp.Or(strings.Compare(k.Namespace, o.Namespace), strings.Compare(k.UID, o.UID), k.Addr.Compare(o.Addr))
}

// Condition is what the cluster says of a member in one pool.
type Condition uint8

// The conditions, from weak to strong.
const (
	NotReady Condition = iota
	// Draining is serving and terminating.
	Draining
	Ready
)

// String is the name of the condition.
func (c Condition) String() string { return [...]string{"NotReady", "Draining", "Ready"}[c] }

// State is what a member counts as.
type State uint8

// The states, from weak to strong: a member of several pools of one stream takes the strongest.
const (
	Inactive State = iota
	// DrainingState keeps the connections it has; only pools with "draining: keep" say so.
	DrainingState
	Active
)

// String is the name of the state.
func (s State) String() string { return [...]string{"Inactive", "Draining", "Active"}[s] }

// Answer is what the pools of one stream say of one member.
type Answer struct {
	State State
	// Reason in CamelCase: Ready, NotReady, Terminating, Draining, Panic, ServingTerminating.
	Reason string
	// Caused is when the cluster reported the cause of the last change of this answer or of the member's addresses: the
	// Changed of the slice that is believed, or zero. A new Changed alone is no change: one slice has 100 endpoints.
	Caused time.Time
	// Assigned is whether the member shall hold the stream.
	Assigned bool
	// Services are the pools that list the member, sorted.
	Services []Ref
	// Components are the names across clusters of what the member is part of, sorted: of Services, or of the Service of another
	// cluster that it comes from. There are none where this cluster has no name.
	Components []Component
}

// Member is one workload with all that the pools say of it. It is immutable.
type Member struct {
	Key MemberKey
	// Name is the pod's, or empty.
	Name string
	// Target is whether this is an ExternalTarget, and Name and Key.UID are those of that.
	Target bool
	// Addrs is the union over all slices, sorted.
	Addrs []netip.Addr
	// Trench is the one that holds the member; every stream in Streams is of this trench.
	Trench string
	// Streams has an answer for every stream of a pool that lists the member and is not withheld from it.
	Streams map[stream.Key]Answer
	// Withheld are the pools that list the member but lost it to an older Service of another trench, or of which the grant names
	// ServiceAccounts and the member is not proven to run as one of them; sorted.
	Withheld []Ref
}

// Pool is a Service as understood. It is immutable.
type Pool struct {
	Ref
	UID     string
	Created time.Time
	// Stream is the zero Key where the labels name none.
	Stream stream.Key
	// Accepted, Reason and Message are the condition of that name: Reason is Accepted, IncompleteLabels, InvalidLabels,
	// UnsupportedType, NotPermitted, InvalidAnnotations (accepted, the default is used), MembersNotPermitted or Conflict (accepted,
	// but members are withheld). Message is a sentence that says what to change.
	Accepted   bool
	Reason     string
	Message    string
	Assignment Assignment
	KeepDrain  bool
	// PanicThreshold in percent, 0 is off.
	PanicThreshold int
	Panic          bool
	HasSelector    bool
	Ports          []Port
	Counts         Counts
	// Problems are what was not understood, each naming its object: annotations, then a few of what was refused in the slices
	// and how many more there are.
	Problems []string
}

// Counts are the members of a pool by what they count as. Withheld members are in Members and Withheld, nowhere else.
type Counts struct{ Members, Ready, Draining, Active, Assigned, Withheld int }

// PoolMember is one member as one pool sees it; other pools of the stream may give a stronger answer.
type PoolMember struct {
	Key       MemberKey
	Name      string
	Condition Condition
	State     State
	Assigned  bool
	Withheld  bool
	// Target is whether it is an ExternalTarget rather than a pod.
	Target bool
	// Component is what it is part of, across clusters; zero where this cluster has no name.
	Component Component
}

// Assignment is the policy that decides which members hold the stream.
type Assignment string

// The assignment policies.
const (
	// ByMembership assigns a stream to every member, ready or not: a pod may need its stream to become ready, and a flap must
	// not tear interfaces down.
	ByMembership Assignment = "membership"
	// ByReadiness assigns it to Ready members only, which is the letter of the proposal.
	ByReadiness Assignment = "ready"
)

// The reasons of a Pool.
const (
	ReasonAccepted           = "Accepted"
	ReasonIncompleteLabels   = "IncompleteLabels"
	ReasonInvalidLabels      = "InvalidLabels"
	ReasonInvalidAnnotations = "InvalidAnnotations"
	ReasonUnsupportedType    = "UnsupportedType"
	ReasonNotPermitted       = "NotPermitted"
	ReasonConflict           = "Conflict"
	// ReasonMembersNotPermitted is accepted, but members are not proven to run as a ServiceAccount that is permitted.
	ReasonMembersNotPermitted = "MembersNotPermitted"
)

// The reasons of an Answer.
const (
	ReasonReady              = "Ready"
	ReasonNotReady           = "NotReady"
	ReasonTerminating        = "Terminating"
	ReasonDraining           = "Draining"
	ReasonPanic              = "Panic"
	ReasonServingTerminating = "ServingTerminating"
)

// Delta says what a Flush changed.
type Delta struct {
	// Members holds the new value of every member that changed; nil means that it is gone.
	Members map[MemberKey]*Member
	// Pools likewise.
	Pools map[Ref]*Pool
}
