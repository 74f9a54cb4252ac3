package nsp

import (
	"cmp"
	"sync"

	"github.com/nordix/meridio-nsp/pkg/config"
	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// ownTrench answers the engine's question for configurations from the one that a trench process has. Registrations may name
// other trenches, as Meridio 1.x accepts them; of those nothing is known, so that the defaults hold.
type ownTrench struct {
	namespace string
	// named is the trench's name where the configuration does not say.
	named string
	post  func(...engine.Event)

	mu     sync.Mutex // held while posting, so that events keep their order
	wanted map[string]bool
	read   bool
	last   *config.Config
}

func newOwnTrench(namespace, named string, post func(...engine.Event)) *ownTrench {
	return &ownTrench{namespace: namespace, named: named, post: post, wanted: make(map[string]bool)}
}

// want is engine.Config.WantConfig.
func (o *ownTrench) want(trench string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.wanted[trench] = true
	if o.read {
		o.tell(trench)
	}
}

// drop is engine.Config.DropConfig.
func (o *ownTrench) drop(trench string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.wanted, trench)
}

// configure takes in what was read; nil where there is no configuration.
func (o *ownTrench) configure(c *config.Config) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.read, o.last = true, c
	for trench := range o.wanted {
		o.tell(trench)
	}
}

// tell tells the engine of one trench. Of streams that were never read well nothing is said.
func (o *ownTrench) tell(trench string) {
	most := map[stream.Key]uint32{}
	if o.last != nil && trench == cmp.Or(o.last.Trench.Name, o.named) {
		if !o.last.IsRead(config.KeyStreams) {
			return
		}
		most = o.last.MaxTargets(o.namespace, trench)
	}
	o.post(engine.TrenchConfigured{Trench: trench, MaxTargets: most})
}
