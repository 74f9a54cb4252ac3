package config

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"unicode/utf8"

	"go.yaml.in/yaml/v2" // The dialect of Meridio 1.x: the same text must mean the same.
)

// The keys of the ConfigMap.
const (
	KeyTrench     = "trench"
	KeyConduits   = "conduits"
	KeyStreams    = "streams"
	KeyFlows      = "flows"
	KeyVips       = "vips"
	KeyAttractors = "attractors"
	KeyGateways   = "gateways"
)

// Keys are the keys that are read, in the order in which they are reported.
var Keys = []string{KeyTrench, KeyConduits, KeyStreams, KeyFlows, KeyVips, KeyAttractors, KeyGateways}

// KeyError says that the text of a key is malformed.
type KeyError struct {
	Key string
	Err error
}

// Error names the key.
func (e *KeyError) Error() string { return fmt.Sprintf("key %s: %v", e.Key, e.Err) }

// Unwrap is what the YAML parser said.
func (e *KeyError) Unwrap() error { return e.Err }

// section is one key: read parses text into its field of c, keep takes the field over from last.
type section struct {
	read func(c *Config, text string) error
	keep func(c, last *Config)
}

var sections = map[string]section{
	KeyTrench: {
		read: func(c *Config, text string) error { return decode(text, &c.Trench) },
		keep: func(c, last *Config) { c.Trench = last.Trench },
	},
	KeyConduits:   list(func(c *Config) *[]Conduit { return &c.Conduits }),
	KeyStreams:    list(func(c *Config) *[]Stream { return &c.Streams }),
	KeyFlows:      list(func(c *Config) *[]Flow { return &c.Flows }),
	KeyVips:       list(func(c *Config) *[]Vip { return &c.Vips }),
	KeyAttractors: list(func(c *Config) *[]Attractor { return &c.Attractors }),
	KeyGateways:   list(func(c *Config) *[]Gateway { return &c.Gateways }),
}

func list[T any](field func(*Config) *[]T) section {
	return section{
		read: func(c *Config, text string) error {
			var l struct {
				Items []T `yaml:"items"`
			}
			err := decode(text, &l)
			*field(c) = l.Items
			return err
		},
		keep: func(c, last *Config) { *field(c) = *field(last) },
	}
}

// errText is a string that no message can carry; YAML can spell one as binary data.
var errText = errors.New("a string is not valid UTF-8")

// decode is strict: unknown and repeated fields are errors. It leaves out untouched where it fails half-way.
func decode[T any](text string, out *T) error {
	var v T
	if err := yaml.UnmarshalStrict([]byte(text), &v); err != nil {
		return err
	}
	if !validText(reflect.ValueOf(v)) {
		return errText
	}
	*out = v
	return nil
}

// validText tells whether all strings in a value are valid UTF-8.
func validText(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.String:
		return utf8.ValidString(v.String())
	case reflect.Pointer:
		return v.IsNil() || validText(v.Elem())
	case reflect.Slice:
		for i := range v.Len() {
			if !validText(v.Index(i)) {
				return false
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if !validText(v.Field(i)) {
				return false
			}
		}
	}
	return true
}

// Parse reads the data of the ConfigMap. A malformed key gives a *KeyError, and keeps the value that last has; without
// one it is Unread. A missing or empty key is an empty value. The configuration is never nil.
func Parse(data map[string]string, last *Config) (*Config, []error) {
	c := &Config{}
	var errs []error
	for _, key := range Keys {
		s := sections[key]
		err := s.read(c, data[key])
		if err == nil {
			continue
		}
		errs = append(errs, &KeyError{key, err})
		if last == nil || slices.Contains(last.Unread, key) {
			c.Unread = append(c.Unread, key)
		} else {
			s.keep(c, last)
		}
	}
	return c, errs
}

// IsRead is whether the value of the key was ever read well.
func (c *Config) IsRead(key string) bool { return !slices.Contains(c.Unread, key) }
