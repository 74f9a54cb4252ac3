package relay

import (
	"encoding/json"
	"fmt"
	"maps"

	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/sources"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// LimitsDocument is the name under which the store keeps from where streams may be used. A process that ceases to relay removes it:
// then nobody tells it of policies.
const LimitsDocument = "relay-limits"

// limits are the streams of the trench whose sources are limited. They are immutable.
type limits map[stream.Key]*sources.Set

// limitChange is one change of them: a nil set ends the limit.
type limitChange struct {
	stream stream.Key
	set    *sources.Set
}

// limitOf reads one. A prefix that is not understood lets nobody in.
func limitOf(s *targetpoolv1.StreamSources, trench, namespace string) limitChange {
	change := limitChange{stream: stream.Key{
		Namespace: namespace, Trench: trench, Conduit: s.GetStream().GetConduit(), Name: s.GetStream().GetName(),
	}}
	if !s.GetUnlimited() {
		prefixes, _ := sources.ParseAll(s.GetPrefixes())
		change.set = sources.Of(prefixes...)
	}
	return change
}

// limit takes in what a commit says of the sources of streams; a snapshot says all. It tells whether anything is different.
func (m *mirror) limit(snapshot bool, changes []limitChange) bool {
	next := limits{}
	if !snapshot {
		maps.Copy(next, m.limits)
	}
	for _, c := range changes {
		if c.set == nil {
			delete(next, c.stream)
		} else {
			next[c.stream] = c.set
		}
	}
	if m.limits != nil && maps.EqualFunc(m.limits, next, (*sources.Set).Equal) {
		return false
	}
	m.limits = next
	m.documents[LimitsDocument] = next.document()
	return true
}

// storedLimit is a limit as it is kept.
type storedLimit struct {
	Stream   stream.Key
	Prefixes []string
}

func (l limits) document() []byte {
	stored := []storedLimit{}
	for k, set := range l {
		stored = append(stored, storedLimit{k, set.Strings()})
	}
	document, err := json.Marshal(stored)
	if err != nil {
		panic(fmt.Sprintf("encoding limits: %v", err)) // names and prefixes always can be
	}
	return document
}

// loadLimits takes in what was stored. Without it, or where it is damaged, they are not known.
func (m *mirror) loadLimits(document []byte) error {
	if document == nil {
		return nil
	}
	var stored []storedLimit
	if err := json.Unmarshal(document, &stored); err != nil {
		return fmt.Errorf("reading from where streams may be used: %w", err)
	}
	m.limits = limits{}
	for _, s := range stored {
		prefixes, _ := sources.ParseAll(s.Prefixes)
		m.limits[s.Stream] = sources.Of(prefixes...)
	}
	return nil
}
