package registry

import "errors"

var (
	// ErrInvalid is wrapped where a target cannot be registered as it stands; the message says what to change.
	ErrInvalid = errors.New("invalid target")
	// ErrForeign is wrapped where the entry is another pod's.
	ErrForeign = errors.New("registered by another pod")
	// ErrTooMany is wrapped where the caller has as many entries as it may have.
	ErrTooMany = errors.New("too many registrations")
	// ErrStore is wrapped where the store failed; the operation had no effect.
	ErrStore = errors.New("registry store failed")
	// ErrStopped is returned once the registry has ended; the operation had no effect.
	ErrStopped = errors.New("registry has stopped")
	// ErrFull is wrapped where every identifier of a stream is taken.
	ErrFull = errors.New("no identifier is free")
	// ErrWithdrawn is wrapped where a target was unregistered while it waited for an identifier.
	ErrWithdrawn = errors.New("target was unregistered meanwhile")
	// ErrLost is wrapped by a store that had to start from nothing: the registry writes all it knows once more.
	ErrLost = errors.New("stored registrations lost")
)
