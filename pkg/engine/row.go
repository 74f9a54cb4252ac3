package engine

import (
	"maps"
	"slices"
	"time"

	"github.com/nordix/meridio-nsp/pkg/feed"
	"github.com/nordix/meridio-nsp/pkg/pool"
	"github.com/nordix/meridio-nsp/pkg/registry"
)

// State is what load balancers shall do with a target. The numbers are those of targetpool.v1 and are stored.
type State uint8

// The states. Pending is never told to anybody: what it depends on has not been read yet.
const (
	Pending State = iota
	Active
	Draining
	Inactive
)

// The reasons of a state, beside those of pool.Answer.
const (
	ReasonDisabled    = "Disabled"
	ReasonBlocked     = "WaitingForIdentifier"
	ReasonInvalid     = "InvalidIdentifier"
	ReasonLeft        = "LeftPool"
	ReasonApplication = "OpenedByApplication"
	ReasonMember      = "MemberOfPool"
)

// Binding is how the pod behind a registration is known.
type Binding string

// The bindings, strongest first.
const (
	BoundByProof  Binding = "Proof"
	BoundByClaim  Binding = "Claim"
	BoundByPeer   Binding = "PeerAddress"
	BoundByMemory Binding = "Stored"
	Unbound       Binding = ""
)

// Row is a registration with all that was concluded of it. It is immutable and shared by all watchers.
type Row struct {
	Entry  *registry.Entry
	State  State
	Reason string
	// Caused is when the cluster reported the cause of the state, or zero.
	Caused  time.Time
	Binding Binding
	PodUID  string
	// Pod is namespace/name, where it is known.
	Pod    string
	Listed bool
	// Components are what the target is part of while a pool of the stream lists it, see pool.Answer.
	Components []pool.Component

	// Legacy and Feed are the wire forms of the row, made when they are first needed.
	Legacy, Feed feed.Encoded
}

// sameFeed tells whether load balancers on the feed would see no difference.
func (r *Row) sameFeed(o *Row) bool {
	return r.State == o.State && r.Reason == o.Reason && r.Caused.Equal(o.Caused) && r.Pod == o.Pod &&
		r.Entry.Identifier == o.Entry.Identifier && slices.Equal(r.Components, o.Components)
}

// sameLegacy tells whether an nsp.v1 watcher would see no difference.
func (r *Row) sameLegacy(o *Row) bool {
	a, b := r.Entry, o.Entry
	if a == b {
		return true
	}
	return a.Status == b.Status && slices.Equal(a.IPs, b.IPs) && maps.Equal(a.Context, b.Context)
}

// Alike tells whether nobody at all would see a difference.
func (r *Row) Alike(o *Row) bool {
	return r.Entry.ID == o.Entry.ID && r.Entry.Key == o.Entry.Key && r.Entry.Blocked == o.Entry.Blocked &&
		r.Entry.Reserved == o.Entry.Reserved && r.sameLegacy(o) && r.sameFeed(o)
}

func (r *Row) same(o *Row) bool {
	return r.Entry == o.Entry && r.sameFeed(o) && r.Binding == o.Binding && r.PodUID == o.PodUID && r.Listed == o.Listed
}

func stateOf(s pool.State) State {
	switch s {
	case pool.Active:
		return Active
	case pool.DrainingState:
		return Draining
	default:
		return Inactive
	}
}
