package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
)

// Book is what was read of one ConfigMap, of each key the last value that was good. It is not safe for concurrent use.
type Book struct {
	// read is set once it is known whether there is such a ConfigMap.
	read bool
	// last is the configuration, good the text to read it from; both are nil as long as there was no ConfigMap.
	last *Config
	good map[string]string
}

// Config is what the ConfigMap says; nil where there never was one. ok is whether that is known.
func (b *Book) Config() (c *Config, ok bool) { return b.last, b.read }

// Read takes in the data of the ConfigMap. It reports whether Document is another one than before, and what is malformed.
func (b *Book) Read(data map[string]string) (news bool, malformed []error) {
	parsed, errs := Parse(data, b.last)
	good := make(map[string]string, len(data))
	maps.Copy(good, data)
	for _, err := range errs {
		bad, ok := errors.AsType[*KeyError](err)
		if !ok || !parsed.IsRead(bad.Key) {
			continue // kept as it is: read again after a restart it is malformed again
		}
		if text, ok := b.good[bad.Key]; ok {
			good[bad.Key] = text
		} else {
			delete(good, bad.Key)
		}
	}
	news = b.last == nil || !maps.Equal(good, b.good)
	b.read, b.last, b.good = true, parsed, good
	return news, errs
}

// Absent takes in that there is no such ConfigMap. Where there was one its configuration stays. It reports whether Document
// is another one than before.
func (b *Book) Absent() (news bool) {
	news = !b.read
	b.read = true
	return news
}

// Document is what to store for Restore.
func (b *Book) Document() []byte {
	document, _ := json.Marshal(b.good) // a map of strings cannot fail; null is a ConfigMap that is known to be absent
	return document
}

// Restore takes in what Document gave. An error says that it is damaged; then nothing is taken in.
func (b *Book) Restore(document []byte) error {
	var data map[string]string
	if err := json.Unmarshal(document, &data); err != nil {
		return fmt.Errorf("reading the stored configuration: %w", err)
	}
	if data == nil {
		b.Absent()
	} else {
		b.Read(data)
	}
	return nil
}
