// Package auth finds out who is calling and what follows from that.
package auth

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Mode is a way to find out who is calling.
type Mode string

// The modes.
const (
	// ByToken believes a ServiceAccount's token that is bound to a pod.
	ByToken Mode = "token"
	// ByMTLS believes the SPIFFE ID of the client's certificate, which names a ServiceAccount. Many pods may have it, so whoever
	// speaks for a pod shows a token too, or calls from its address.
	ByMTLS Mode = "mtls"
	// PeerAddress believes the source address of a connection: a caller speaks for the pod that bears it. An address that
	// several pods bear, as hostNetwork pods do, proves nothing.
	PeerAddress Mode = "peer-address"
	// Legacy is as in Meridio 1.x: whoever the transport lets in may register and watch. What Meridio 1.x does not have is as
	// under PeerAddress.
	Legacy Mode = "legacy"
	// None believes everybody. It is for development.
	None Mode = "none"
)

// Modes are all of them, for messages and completion.
var Modes = []Mode{ByToken, ByMTLS, PeerAddress, Legacy, None}

// ParseMode reads a mode; the error says what there is.
func ParseMode(s string) (Mode, error) {
	if m := Mode(s); slices.Contains(Modes, m) {
		return m, nil
	}
	return "", fmt.Errorf("unknown authorisation %q: choose one of %v", s, Modes)
}

// Pod is one that a token is bound to.
type Pod struct{ Namespace, Name, UID string }

// String is namespace/name.
func (p Pod) String() string { return p.Namespace + "/" + p.Name }

// Caller is who calls.
type Caller struct {
	Mode Mode
	// Addr is the source address, unmapped; invalid where the transport has none, as a unix socket.
	Addr netip.Addr
	// Identity is what transport and token prove.
	Identity
	// Pod is set where a token proves it.
	Pod Pod
	// Target is set where the identity is that of an ExternalTarget.
	Target Target
	// Expires is when the proof does; zero where it does not.
	Expires time.Time
	// Unproven is why the caller has not proven what the mode asks for; nil where it has.
	Unproven error

	// TrenchProcess is set where the account is one of trench processes: such a caller says for whom it calls. Inspector is set
	// where it may look into everything.
	TrenchProcess, Inspector bool
}

// Local tells whether the call comes from this very host or pod, as through kubectl port-forward.
func (c Caller) Local() bool {
	return !c.Addr.IsValid() || c.Addr.IsLoopback()
}

// Accountable tells whether the mode is one in which every caller has a ServiceAccount, so that what it may do can depend on
// that.
func (c Caller) Accountable() bool { return c.Mode == ByToken || c.Mode == ByMTLS }

// SpeaksForPod checks that the caller is the pod, whose UID may be unknown. Where that takes more than the proof itself, the
// pod's addresses decide: later is set then, and SpeaksFor is to be asked once they are known.
func (c Caller) SpeaksForPod(p Pod) (later bool, err error) {
	switch {
	case c.Mode == None:
		return false, nil
	case c.Pod != (Pod{}):
		if c.Pod.Namespace == p.Namespace && c.Pod.Name == p.Name && (p.UID == "" || p.UID == c.Pod.UID) {
			return false, nil
		}
		return false, Deny(OtherPod, "the token is of pod %s (%s), the call is for pod %s (%s)", c.Pod, c.Pod.UID, p, p.UID)
	case c.Mode == ByToken:
		return false, Deny(OtherPod, "the token of %s is not bound to a pod: use a projected one", c.Account)
	case c.Mode == ByMTLS && c.Account.Namespace != p.Namespace:
		return false, Deny(OtherPod, "%s may not speak for pod %s of another namespace", c.Account, p)
	}
	return true, nil
}

// SpeaksFor checks that the caller is the workload with the given addresses; shared is set where another pod bears one of
// them.
func (c Caller) SpeaksFor(addrs []netip.Addr, shared bool) error {
	switch {
	case c.Mode == None:
		return nil
	case shared:
		return Deny(SharedAddress, "another pod bears the address %s too (hostNetwork?), so it proves nothing", c.Addr)
	case !slices.Contains(addrs, c.Addr):
		return Deny(OtherAddress, "the call comes from %s, which is not an address of that pod", c.Addr)
	}
	return nil
}

// SpeaksForAddress checks that the caller bears the address.
func (c Caller) SpeaksForAddress(a netip.Addr) error {
	return c.SpeaksFor([]netip.Addr{a}, false)
}

type key struct{}

// With puts the caller into the context.
func With(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, key{}, c)
}

// From returns the caller that With put there; without one it is nobody, who may nothing.
func From(ctx context.Context) Caller {
	c, _ := ctx.Value(key{}).(Caller)
	return c
}
