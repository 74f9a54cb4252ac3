package auth

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Target is an ExternalTarget.
type Target struct{ Namespace, Name, UID string }

// String is namespace/name.
func (t Target) String() string { return t.Namespace + "/" + t.Name }

func (t Target) compare(o Target) int {
	return cmp.Or(strings.Compare(t.Namespace, o.Namespace), strings.Compare(t.Name, o.Name), strings.Compare(t.UID, o.UID))
}

// TargetIdentity is what proves somebody to be an ExternalTarget, as its spec.identity says.
type TargetIdentity struct {
	// SPIFFEID is that of its certificate.
	SPIFFEID string
}

// Targets know which identity is that of which ExternalTarget. An identity that two of them claim proves neither, and one that names
// a ServiceAccount of the NSP's own trust domain proves that alone: else whoever may make an ExternalTarget could take the place of
// others. It is safe for concurrent use.
type Targets struct {
	log  *slog.Logger
	save func([]byte)

	mu         sync.Mutex
	namespaces map[string]map[Target]TargetIdentity
	bySPIFFEID map[string][]Target // sorted
	holds      map[*hold]struct{}
	shared     map[string]bool // the identities that two claim, as logged
}

// hold is something that goes on as long as an identity proves a target.
type hold struct {
	identity Identity
	target   Target
	end      context.CancelCauseFunc
}

// NewTargets knows none. What it knows is given to save, where that is set, for Restore after a restart; save must not block.
func NewTargets(log *slog.Logger, save func([]byte)) *Targets {
	return &Targets{
		log: log, save: save, namespaces: make(map[string]map[Target]TargetIdentity), bySPIFFEID: make(map[string][]Target),
		holds: make(map[*hold]struct{}), shared: make(map[string]bool),
	}
}

// Replace says which ExternalTargets of a namespace have an identity; those that are not named have none any more. What went on by an
// identity that proves another target now, or none, ends. It does not block.
func (t *Targets) Replace(namespace string, all map[Target]TargetIdentity) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if maps.Equal(t.namespaces[namespace], all) {
		return
	}
	if t.namespaces[namespace] = maps.Clone(all); len(all) == 0 {
		delete(t.namespaces, namespace)
	}
	t.index()
	t.review()
	if t.save != nil {
		t.save(t.document())
	}
}

// stored is one ExternalTarget in a document.
type stored struct {
	Target   Target
	Identity TargetIdentity
}

func (t *Targets) document() []byte {
	var all []stored
	for _, some := range t.namespaces {
		for target, identity := range some {
			all = append(all, stored{target, identity})
		}
	}
	slices.SortFunc(all, func(a, b stored) int { return a.Target.compare(b.Target) })
	data, err := json.Marshal(all)
	if err != nil {
		panic(err) // strings can be marshalled
	}
	return data
}

// Restore takes up what was saved of some namespaces, of which it counts until they are replaced: after a restart without API server
// they are who they were. The error says that the document is damaged.
func (t *Targets) Restore(document []byte, namespaces []string) error {
	var all []stored
	if err := json.Unmarshal(document, &all); err != nil {
		return fmt.Errorf("reading the stored identities of ExternalTargets: %w", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, one := range all {
		ns := one.Target.Namespace
		if !slices.Contains(namespaces, ns) {
			continue
		}
		if t.namespaces[ns] == nil {
			t.namespaces[ns] = make(map[Target]TargetIdentity)
		}
		t.namespaces[ns][one.Target] = one.Identity
	}
	t.index()
	t.review()
	return nil
}

func (t *Targets) index() {
	clear(t.bySPIFFEID)
	for _, some := range t.namespaces {
		for target, identity := range some {
			if identity.SPIFFEID != "" {
				t.bySPIFFEID[identity.SPIFFEID] = append(t.bySPIFFEID[identity.SPIFFEID], target)
			}
		}
	}
}

// review logs identities that came to be shared, and ends what is proven no more.
func (t *Targets) review() {
	shared := make(map[string]bool)
	for id, claimants := range t.bySPIFFEID {
		slices.SortFunc(claimants, Target.compare)
		if len(claimants) == 1 {
			continue
		}
		if shared[id] = true; !t.shared[id] {
			t.log.Warn("several ExternalTargets claim one identity, so it proves none of them; give each its own",
				"identity", id, "externaltargets", claimants)
		}
	}
	t.shared = shared
	for h := range t.holds {
		if now, err := t.find(h.identity); err != nil {
			h.end(err)
		} else if now != h.target {
			h.end(Unproven(NoIdentity, "%s is not the identity of ExternalTarget %s any more", h.identity.SPIFFEID, h.target))
		}
	}
}

// Find is the ExternalTarget that an identity proves; zero for none. The error is a refusal: several claim it.
func (t *Targets) Find(i Identity) (Target, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.find(i)
}

func (t *Targets) find(i Identity) (Target, error) {
	if i.Account != (ServiceAccount{}) || i.SPIFFEID.IsZero() {
		return Target{}, nil
	}
	switch found := t.bySPIFFEID[i.SPIFFEID.String()]; len(found) {
	case 0:
		return Target{}, nil
	case 1:
		return found[0], nil
	default:
		return Target{}, Deny(SharedIdentity, "ExternalTargets %s and %s both claim the identity %s, so it proves neither",
			found[0], found[1], i.SPIFFEID)
	}
}

// Hold calls end as soon as the identity does not prove the target any more, until what it returns is called.
func (t *Targets) Hold(i Identity, target Target, end context.CancelCauseFunc) (release func()) {
	h := &hold{i, target, end}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.holds[h] = struct{}{}
	if now, err := t.find(i); err != nil || now != target { // it changed since it was asked for
		end(Unproven(NoIdentity, "%s is not the identity of ExternalTarget %s any more", i.SPIFFEID, target))
	}
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.holds, h)
	}
}

// Shared is how many identities several ExternalTargets claim.
func (t *Targets) Shared() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.shared)
}
