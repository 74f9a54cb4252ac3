package registry

import "errors"

var (
	// ErrInvalid is wrapped where a target cannot be registered as it stands; the message says what to change.
	ErrInvalid = errors.New("invalid target")
	// ErrStore is wrapped where the store failed; the operation had no effect.
	ErrStore = errors.New("registry store failed")
	// ErrStopped is returned once the registry has ended; the operation had no effect.
	ErrStopped = errors.New("registry has stopped")
	// ErrLost is wrapped by a store that had to start from nothing: the registry writes all it knows once more.
	ErrLost = errors.New("stored registrations lost")
)
