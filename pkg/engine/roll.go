package engine

import (
	"cmp"
	"slices"
	"strings"
)

// maxNamed is how many a message names; it is for people.
const maxNamed = 5

// Names are the first few of a set by name, and how many it has.
type Names struct {
	First []string
	Total int
}

// roll is a set whose elements have names.
type roll[K comparable] struct {
	names map[K]string
	first []string
	stale bool
}

func (r *roll[K]) add(k K, name string) {
	if was, there := r.names[k]; there && was == name {
		return
	}
	if r.names == nil {
		r.names = make(map[K]string)
	}
	r.names[k], r.stale = name, true
}

func (r *roll[K]) remove(k K) {
	if _, there := r.names[k]; there {
		delete(r.names, k)
		r.stale = true
	}
}

// read names the first few; it looks at all of them only after a change.
func (r *roll[K]) read() Names {
	if r.stale {
		r.stale, r.first = false, least(r.names)
	}
	return Names{First: r.first, Total: len(r.names)}
}

func least[K comparable](names map[K]string) []string {
	var first []string
	for _, name := range names {
		i, _ := slices.BinarySearchFunc(first, name, strings.Compare)
		if i < maxNamed {
			first = slices.Insert(first, i, name)
			first = first[:min(maxNamed, len(first))]
		}
	}
	return first
}

// rolls are rolls of which those that are empty are not there.
type rolls[K, E comparable] map[K]*roll[E]

func (r rolls[K, E]) add(k K, e E, name string) {
	found := cmp.Or(r[k], &roll[E]{})
	found.add(e, name)
	r[k] = found
}

func (r rolls[K, E]) remove(k K, e E) {
	if found, ok := r[k]; ok {
		if found.remove(e); len(found.names) == 0 {
			delete(r, k)
		}
	}
}

func (r rolls[K, E]) read(k K) Names {
	if found, ok := r[k]; ok {
		return found.read()
	}
	return Names{}
}
