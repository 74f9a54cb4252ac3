package auth

import (
	"errors"
	"fmt"
)

// Every refusal wraps one of these.
var (
	// ErrDenied: who is calling may not do that.
	ErrDenied = errors.New("permission denied")
	// ErrUnproven: it is not known who is calling.
	ErrUnproven = errors.New("not authenticated")
	// ErrTooMany: there is no room, or somebody tries too often.
	ErrTooMany = errors.New("too many")
)

// Reason is why somebody was refused, in a word. There are few, so that they can be counted one by one.
type Reason string

// The reasons.
const (
	NoToken            Reason = "no-token"            // none was shown
	BadToken           Reason = "bad-token"           // forged, damaged, revoked, or of a deleted pod
	ExpiredCertificate Reason = "expired-certificate" // it was good when the connection was made
	ExpiredToken       Reason = "expired-token"       // it was good once
	WrongAudience      Reason = "wrong-audience"      // it is meant for somebody else
	NoIdentity         Reason = "no-identity"         // the transport proves no ServiceAccount
	OtherDomain        Reason = "other-domain"        // an SVID of a foreign trust domain
	OtherIdentity      Reason = "other-identity"      // token and SVID name different accounts
	OtherPod           Reason = "other-pod"           // it is another pod's
	OtherTarget        Reason = "other-target"        // it is another ExternalTarget's
	SharedIdentity     Reason = "shared-identity"     // several ExternalTargets claim the identity
	Superseded         Reason = "superseded"          // somebody with the same identity came later
	OtherAddress       Reason = "other-address"       // the call comes from elsewhere
	SharedAddress      Reason = "shared-address"      // several pods bear the address
	OtherTrench        Reason = "other-trench"        // it is another trench's
	NoGrant            Reason = "no-grant"            // of a namespace that nobody let in
	NoRole             Reason = "no-role"             // that is for other accounts
	NotLocal           Reason = "not-local"           // that is for callers in the NSP's own pod
	LegacyDenied       Reason = "legacy-denied"       // --legacy-registration
	UnknownMethod      Reason = "unknown-method"      // nobody may call it
	FailsTooOften      Reason = "fails-too-often"     // failed authentications
	TooManyWatches     Reason = "too-many-watches"
	TooManyCalls       Reason = "too-many-connections"
	TooManyTargets     Reason = "too-many-registrations"
)

// Reasons are all of them, so that a counter can show the zeros too.
var Reasons = []Reason{
	NoToken, BadToken, ExpiredCertificate, ExpiredToken, WrongAudience, NoIdentity, OtherDomain, OtherIdentity, OtherPod, OtherTarget, SharedIdentity, Superseded, OtherAddress, SharedAddress,
	OtherTrench, NoGrant, NoRole, NotLocal, LegacyDenied, UnknownMethod, FailsTooOften, TooManyWatches, TooManyCalls,
	TooManyTargets,
}

// Refusal is the error of somebody who was refused.
type Refusal struct {
	Reason Reason
	kind   error
	text   string
}

// Error implements error.
func (r *Refusal) Error() string { return r.kind.Error() + ": " + r.text }

// Unwrap is one of ErrDenied, ErrUnproven and ErrTooMany.
func (r *Refusal) Unwrap() error { return r.kind }

// Deny refuses what a caller may not do.
func Deny(why Reason, format string, args ...any) error {
	return &Refusal{Reason: why, kind: ErrDenied, text: fmt.Sprintf(format, args...)}
}

// Unproven refuses somebody who does not prove who he is.
func Unproven(why Reason, format string, args ...any) error {
	return &Refusal{Reason: why, kind: ErrUnproven, text: fmt.Sprintf(format, args...)}
}

// TooMany refuses what there is no room for.
func TooMany(why Reason, format string, args ...any) error {
	return &Refusal{Reason: why, kind: ErrTooMany, text: fmt.Sprintf(format, args...)}
}
