package registry

import (
	"net/netip"
	"time"

	"github.com/nordix/meridio-nsp/pkg/stream"
)

// Type is the kind of a target, with the numbers of nsp.v1. An unknown number is a space of its own.
type Type int32

// The types of nsp.v1.
const (
	Default  Type = 0
	Frontend Type = 1
)

// Status of a target, with the numbers of nsp.v1. An unknown number is stored as it is.
type Status int32

// The statuses of nsp.v1.
const (
	Enabled  Status = 0
	Disabled Status = 1
	Any      Status = 2
)

// Target is a registration as a client states it.
type Target struct {
	// Scope is the trench the registration belongs to; empty for a frontend that no trench process relayed.
	Scope   string
	Type    Type
	Status  Status
	Stream  stream.Key
	IPs     []string
	Context map[string]string
}

// Caller is who registers.
type Caller struct {
	// Peer is the source address of the call, or the one that a trench process passed on; zero if unknown.
	Peer netip.Addr
	// PodUID is set where the caller's pod, or ExternalTarget, is proven.
	PodUID string
	// Sole is set where that has one registration in a stream: one under other addresses goes when it registers. It is not stored.
	Sole bool
}

// Key identifies an entry: scope, type, stream and the set of addresses, parsed, with prefix length.
type Key struct {
	Scope  string
	Type   Type
	Stream stream.Key
	// Addrs is the canonical form of the address set.
	Addrs string
}

// Entry is one registration. It is immutable: a change makes a new one.
type Entry struct {
	Key
	// ID is unique in the registry's lifetime and grows in the order in which keys were first stored.
	ID uint64
	// IPs and Context are echoed as in the latest Register.
	IPs     []string
	Context map[string]string
	// Prefixes are the parsed addresses, sorted; none for types other than Default.
	Prefixes []netip.Prefix
	// Status is what watchers are shown.
	Status Status
	// Blocked is set where Enabled was asked and another entry holds the identifier; Status is Disabled meanwhile.
	Blocked bool
	// Reserved is set where Reserve gave the entry its identifier and it has kept that since: it holds it also while Disabled.
	Reserved bool
	// Identifier is the number in the context, 0 where there is none or it is no number of 1 and above.
	Identifier uint32
	// Caller is that of the latest Register.
	Caller Caller
	// Memory is what the engine wants to know again after a restart.
	Memory Memory
}

// Memory is what the engine concluded of an entry, kept beside it.
type Memory struct {
	// PodUID is the pod that the entry was bound to, and PodName its namespace/name.
	PodUID, PodName string
	// Account is the ServiceAccount that the pod is proven to run as.
	Account string `json:",omitempty"`
	// Listed is set once a pool of the entry's stream listed its member.
	Listed bool
	// State and Reason are the last effective ones; State is 0 where none was concluded.
	State  uint8
	Reason string
	Caused time.Time
}

// Change is what one operation did to one entry. Old is nil for a new entry, New for a removed one.
type Change struct {
	Old, New *Entry
	// Registered is set where a client's Register is the cause, a refresh that changed nothing included.
	Registered bool
	// Restored is set where a Restore is the cause, also where it changed nothing.
	Restored bool
	// Reserved is set where a Reserve is the cause, also where it changed nothing.
	Reserved bool
	// Expired is set where a lease ran out.
	Expired bool
	// Waiting is set where this is about no entry: New, which has neither ID nor identifier, is what a caller of Reserve waits
	// for, and Old alone is what nobody waits for any more.
	Waiting bool
}
