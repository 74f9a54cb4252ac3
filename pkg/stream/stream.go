// Package stream names streams: the full name is [namespace]/trench/conduit/stream.
//
// Source: the proposal "Target Registration Standardization", where an empty namespace means "own namespace".
package stream

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// ErrInvalid is wrapped by every error of this package.
var ErrInvalid = errors.New("invalid stream name")

// Key is the full name of a stream. It is comparable; two streams of one name in two conduits are two keys.
type Key struct {
	Namespace, Trench, Conduit, Name string
}

// Conduit is the full name of a conduit, the unit that one set of load balancers watches.
type Conduit struct {
	Namespace, Trench, Name string
}

// DefaultMaxTargets is how many targets a stream may have whose configuration does not say, as in Meridio 1.x.
const DefaultMaxTargets = 100

// MaxTargets is what max-targets of a configuration means, in which 0 says nothing.
func MaxTargets(configured uint32) uint32 { return cmp.Or(configured, DefaultMaxTargets) }

// maxPart and part are the rule for label values, which is what names a stream in a Service:
// https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set
const maxPart = 63

var part = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`)

// Parse reads "namespace/trench/conduit/stream"; without the namespace, or with an empty one, own is taken.
func Parse(s, own string) (Key, error) {
	parts := strings.Split(s, "/")
	if len(parts) == 3 {
		parts = append([]string{""}, parts...)
	}
	if len(parts) != 4 {
		return Key{}, fmt.Errorf("%w %q: want [namespace/]trench/conduit/stream", ErrInvalid, s)
	}
	k := Key{cmp.Or(parts[0], own), parts[1], parts[2], parts[3]}
	return k, k.Validate()
}

// ParseConduit reads "namespace/trench/conduit"; without the namespace, or with an empty one, own is taken.
func ParseConduit(s, own string) (Conduit, error) {
	parts := strings.Split(s, "/")
	if len(parts) == 2 {
		parts = append([]string{""}, parts...)
	}
	if len(parts) != 3 {
		return Conduit{}, fmt.Errorf("%w %q: want [namespace/]trench/conduit", ErrInvalid, s)
	}
	c := Conduit{cmp.Or(parts[0], own), parts[1], parts[2]}
	return c, c.Validate()
}

// Validate reports the first part that is empty or malformed.
func (k Key) Validate() error {
	return validate(
		field{"namespace", k.Namespace}, field{"trench", k.Trench}, field{"conduit", k.Conduit}, field{"stream", k.Name})
}

// Validate reports the first part that is empty or malformed.
func (c Conduit) Validate() error {
	return validate(field{"namespace", c.Namespace}, field{"trench", c.Trench}, field{"conduit", c.Name})
}

// Of is the conduit that the stream belongs to.
func (k Key) Of() Conduit {
	return Conduit{k.Namespace, k.Trench, k.Conduit}
}

// String is the full name.
func (k Key) String() string {
	return strings.Join([]string{k.Namespace, k.Trench, k.Conduit, k.Name}, "/")
}

// String is the full name.
func (c Conduit) String() string {
	return strings.Join([]string{c.Namespace, c.Trench, c.Name}, "/")
}

// Compare orders keys by namespace, trench, conduit and name.
func Compare(a, b Key) int {
	return cmp.Or(
		strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Trench, b.Trench),
		strings.Compare(a.Conduit, b.Conduit), strings.Compare(a.Name, b.Name))
}

// CompareConduits orders conduits by namespace, trench and name.
func CompareConduits(a, b Conduit) int {
	return Compare(Key{a.Namespace, a.Trench, a.Name, ""}, Key{b.Namespace, b.Trench, b.Name, ""})
}

type field struct{ name, value string }

func validate(fields ...field) error {
	for _, f := range fields {
		switch {
		case f.value == "":
			return fmt.Errorf("%w: the %s is empty", ErrInvalid, f.name)
		case len(f.value) > maxPart:
			return fmt.Errorf("%w: the %s %.20q... is longer than %d characters", ErrInvalid, f.name, f.value, maxPart)
		case !part.MatchString(f.value):
			return fmt.Errorf("%w: the %s %q may hold only letters, digits, '-', '_', '.', "+
				"and must begin and end with a letter or digit", ErrInvalid, f.name, f.value)
		}
	}
	return nil
}
