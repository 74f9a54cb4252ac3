package engine

import (
	"context"

	"github.com/nordix/meridio-nsp/pkg/stream"
)

// Usage is how many identifiers of a stream are held.
type Usage struct {
	Stream stream.Key
	// Held are enabled or reserved, Limit is max-targets.
	Held  int
	Limit uint32
}

// Usages are those of all streams that a configuration names, in no order. Streams that only clients name are left out: anybody
// may make them up.
func (e *Engine) Usages(ctx context.Context) ([]Usage, error) {
	return ask(ctx, e, e.state.usages)
}

func (s *state) usages() []Usage {
	var all []Usage
	for trench, limits := range s.maxTargets {
		for k := range s.flows[trench] {
			all = append(all, s.usage(k, limits[k]))
		}
		for k, limit := range limits {
			if _, listed := s.flows[trench][k]; !listed {
				all = append(all, s.usage(k, limit))
			}
		}
	}
	return all
}

func (s *state) usage(k stream.Key, limit uint32) Usage {
	u := Usage{Stream: k, Limit: stream.MaxTargets(limit)}
	if st := s.streams[k]; st != nil {
		u.Held = st.held
	}
	return u
}

// held is 1 where a row holds an identifier, so that nobody else can have it.
func held(r *Row) int {
	if r != nil && r.Entry.Holds() {
		return 1
	}
	return 0
}
