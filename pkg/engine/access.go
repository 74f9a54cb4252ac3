package engine

import (
	"maps"
	"slices"

	"github.com/nordix/meridio-nsp/pkg/feed"
	"github.com/nordix/meridio-nsp/pkg/sources"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// AccessChanged replaces what is known of who may use streams: from where, for each stream that has a policy. Streams without one
// are as configured.
type AccessChanged struct {
	Sources map[stream.Key]*sources.Set
}

func (AccessChanged) isEvent() {}

// Access is from where a stream may be used. It is immutable and shared by all watchers.
type Access struct {
	Stream stream.Key
	// Sources are nil where policies do not limit the stream any more.
	Sources *sources.Set

	// Feed is the wire form, made when it is first needed.
	Feed feed.Encoded
}

// Item is what load balancers are told of: a registration, or from where a stream may be used. The other one is nil.
type Item struct {
	Row    *Row
	Access *Access
}

// access is what load balancers were told of who may use streams.
type access struct {
	// told are the streams that are limited, by the key of their item. Keys are those of no registration: these count from 1.
	told map[stream.Key]toldAccess
	next uint64
	// latest is what was posted since the last commit, nil where that is nothing.
	latest *AccessChanged
	// pending is Config.AccessPending, until they are known.
	pending bool
}

type toldAccess struct {
	id uint64
	*Access
}

// firstAccess is the first key of an item that is no registration.
const firstAccess = 1 << 63

func newAccess(pending bool) access {
	return access{told: make(map[stream.Key]toldAccess), next: firstAccess, pending: pending}
}

// setAccess takes the event in; what was pending for it has to be judged anew.
func (s *state) setAccess(ev AccessChanged) {
	s.access.latest = &ev
	if s.access.pending {
		s.access.pending, s.opening = false, true
		s.everything()
	}
}

// settleAccess notes who has to hear of streams that are limited otherwise than before.
func (s *state) settleAccess(st *step) {
	if s.access.latest == nil {
		return
	}
	now := s.access.latest.Sources
	s.access.latest = nil
	for k, last := range s.access.told {
		if _, limited := now[k]; !limited {
			delete(s.access.told, k)
			s.noteAccess(feed.Change[uint64, Item]{Key: last.id, Value: Item{Access: &Access{Stream: k}}, Gone: true}, st)
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(now), stream.Compare) {
		last, limited := s.access.told[k]
		switch {
		case !limited:
			last.id = s.access.next
			s.access.next++
		case last.Sources.Equal(now[k]):
			continue
		}
		last.Access = &Access{Stream: k, Sources: now[k]}
		s.access.told[k] = last
		s.noteAccess(feed.Change[uint64, Item]{Key: last.id, Value: Item{Access: last.Access}}, st)
	}
}

func (s *state) noteAccess(c feed.Change[uint64, Item], st *step) {
	k := c.Value.Access.Stream
	for _, conduit := range []stream.Conduit{k.Of(), scopeTopic(s.cfg.Namespace, k.Trench)} {
		st.topics[conduit] = append(st.topics[conduit], c)
	}
}

// limited are the streams whose sources are limited, sorted.
func (s *state) limited() []*Access {
	var all []*Access
	for _, k := range slices.SortedFunc(maps.Keys(s.access.told), stream.Compare) {
		all = append(all, s.access.told[k].Access)
	}
	return all
}

func (s *state) limitedIn(c stream.Conduit) (n int) {
	for k := range s.access.told {
		if k.Of() == c {
			n++
		}
	}
	return n
}
