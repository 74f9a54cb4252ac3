package tapa

import (
	"context"
	"fmt"

	"github.com/nordix/meridio-nsp/pkg/stream"
)

// Connector brings streams up and down. Its methods are called concurrently, but never twice at a time for one stream.
type Connector interface {
	// Open asks for a stream, and does nothing where it is open. It returns when the stream is sure to be in what Watch
	// tells; that it carries traffic is for Watch to say.
	Open(ctx context.Context, s stream.Key) error
	// Close lets a stream go, and does nothing where it is not open. It returns nil when an Open that follows is not
	// affected any more.
	Close(ctx context.Context, s stream.Key) error
	// Watch tells the status of all streams there are, at once and at every change, until ctx or what is watched ends. A new
	// Watch is a new session: what was opened before may be gone.
	Watch(ctx context.Context, tell func(map[stream.Key]Status)) error
}

// Status is how a stream is, in the words and numbers of the TAP API.
type Status int

// The states of a stream.
const (
	// Open streams carry traffic.
	Open Status = iota
	// Pending streams are asked for and not settled yet.
	Pending
	// Unavailable streams cannot be had now: the NSP cannot be reached or has no place, or the connector is away.
	Unavailable
	// Undefined streams are asked for, but not configured in the trench.
	Undefined
)

// Statuses are all of them.
var Statuses = []Status{Open, Pending, Unavailable, Undefined}

// String is the name in the TAP API.
func (s Status) String() string {
	switch s {
	case Open:
		return "OPEN"
	case Pending:
		return "PENDING"
	case Unavailable:
		return "UNAVAILABLE"
	case Undefined:
		return "UNDEFINED"
	}
	return fmt.Sprintf("STATUS_%d", int(s))
}

// MarshalText implements encoding.TextMarshaler.
func (s Status) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Status) UnmarshalText(text []byte) error {
	for _, known := range Statuses {
		if known.String() == string(text) {
			*s = known
			return nil
		}
	}
	return fmt.Errorf("unknown status %q", text)
}

// Owners is who wants a stream, a set.
type Owners uint8

// Who can want a stream.
const (
	Application Owners = 1 << iota
	Pool
)

// Has tells whether one is among them.
func (o Owners) Has(owner Owners) bool { return o&owner != 0 }

// Count is how many there are.
func (o Owners) Count() int { return len(o.Names()) }

// Names are their names.
func (o Owners) Names() []string {
	names := []string{}
	if o.Has(Application) {
		names = append(names, "application")
	}
	if o.Has(Pool) {
		names = append(names, "pool")
	}
	return names
}
