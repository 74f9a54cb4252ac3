package feed

import "sync"

// Encoded is the wire form of an immutable value, made when the first receiver needs it and shared by all of them.
type Encoded struct {
	once sync.Once
	data []byte
}

// Get returns the wire form, which the receiver must not change; encode runs at most once.
func (e *Encoded) Get(encode func() []byte) []byte {
	e.once.Do(func() { e.data = encode() })
	return e.data
}
