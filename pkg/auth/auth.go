// Package auth finds out who is calling and what follows from that.
package auth

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// ErrDenied is wrapped by every refusal.
var ErrDenied = errors.New("permission denied")

// Mode is a way to find out who is calling.
type Mode string

// The modes.
const (
	// PeerAddress believes the source address of a connection: a caller speaks for the pod that bears it. An address that
	// several pods bear, as hostNetwork pods do, proves nothing.
	PeerAddress Mode = "peer-address"
	// None believes everybody. It is for development.
	None Mode = "none"
)

// Modes are all of them, for messages and completion.
var Modes = []Mode{PeerAddress, None}

// ParseMode reads a mode; the error says what there is.
func ParseMode(s string) (Mode, error) {
	if m := Mode(s); slices.Contains(Modes, m) {
		return m, nil
	}
	return "", fmt.Errorf("unknown authorisation %q: choose one of %v", s, Modes)
}

// Caller is who calls.
type Caller struct {
	Mode Mode
	// Addr is the source address, unmapped; invalid where the transport has none, as a unix socket.
	Addr netip.Addr
	// TrenchProcess is set where the proven ServiceAccount is one of trench processes: such a caller says for whom it calls.
	TrenchProcess bool
	// Identity is what the transport proves.
	Identity
}

// Local tells whether the call comes from this very host or pod, as through kubectl port-forward.
func (c Caller) Local() bool {
	return !c.Addr.IsValid() || c.Addr.IsLoopback()
}

// SpeaksFor checks that the caller is the workload with the given addresses; shared is set where another pod bears one of
// them.
func (c Caller) SpeaksFor(addrs []netip.Addr, shared bool) error {
	switch {
	case c.Mode == None:
		return nil
	case shared:
		return fmt.Errorf("%w: another pod bears the address %s too (hostNetwork?), so it proves nothing", ErrDenied, c.Addr)
	case !slices.Contains(addrs, c.Addr):
		return fmt.Errorf("%w: the call comes from %s, which is not an address of that pod", ErrDenied, c.Addr)
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
