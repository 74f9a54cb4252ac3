package engine

import (
	"iter"
	"weak"

	"github.com/nordix/meridio-nsp/pkg/feed"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// Topic is the feed of one conduit: registrations by their ID, and the streams whose sources are limited by keys of no registration.
type Topic = feed.Topic[uint64, Item]

// scopeTopic is the place of the topic of a trench's registrations among those of conduits, which have names.
func scopeTopic(namespace, trench string) stream.Conduit {
	return stream.Conduit{Namespace: namespace, Trench: trench}
}

// topics are the feeds of all conduits. One that has items is held. An empty one lives as long as its watchers hold it: anybody
// may ask for a conduit that does not exist.
type topics struct {
	all map[stream.Conduit]*topic
	// limit is the number of topics at which those that are gone are looked for.
	limit int
}

type topic struct {
	held *Topic
	weak weak.Pointer[Topic]
}

// get makes a topic where there is none. It begins at rev: whoever resumes from before may have seen its predecessor, and has
// to begin anew.
func (t *topics) get(c stream.Conduit, rev uint64) *Topic {
	if found, ok := t.all[c]; ok {
		if v := found.weak.Value(); v != nil {
			return v
		}
	}
	t.sweep()
	v := feed.NewTopicAt[uint64, Item](rev, feed.DefaultTombstones)
	t.all[c] = &topic{weak: weak.Make(v)}
	return v
}

// hold keeps a topic while it has items.
func (t *topics) hold(c stream.Conduit, v *Topic) {
	found := t.all[c]
	found.held = nil
	if v.Len() > 0 {
		found.held = v
	}
}

func (t *topics) sweep() {
	if len(t.all) < t.limit {
		return
	}
	for c, found := range t.all {
		if found.weak.Value() == nil {
			delete(t.all, c)
		}
	}
	t.limit = 2*len(t.all) + 16
}

func (t *topics) live() iter.Seq2[stream.Conduit, *Topic] {
	return func(yield func(stream.Conduit, *Topic) bool) {
		for c, found := range t.all {
			if v := found.weak.Value(); v != nil && !yield(c, v) {
				return
			}
		}
	}
}
