package controller

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nordix/meridio-nsp/pkg/external"
)

// watches are the sources that run, one for each ExternalTarget.
type watches struct {
	ctx     context.Context
	changed func(types.NamespacedName)
	ended   sync.WaitGroup

	mu      sync.Mutex
	running map[types.NamespacedName]*watched
}

// watched is one source that runs.
type watched struct {
	// resource is what is followed; access is how, such as the version of a Secret. Where only that changes, the last endpoints
	// stay good.
	resource, access string
	stop             context.CancelFunc
	state            *external.State // nil before the first report
}

// wanted is a source that shall run.
type wanted struct {
	resource, access string
	// open makes the source and says how to let go of what it uses.
	open     func() (external.Source, func())
	maxStale time.Duration
	// last and since are what the status remembers of another process.
	last  []external.Endpoint
	since time.Time
}

// newWatches makes watches that end with ctx.
func newWatches(ctx context.Context) *watches {
	return &watches{ctx: ctx, changed: func(types.NamespacedName) {}, running: make(map[types.NamespacedName]*watched)}
}

// set runs the source, unless it runs already.
func (w *watches) set(name types.NamespacedName, want wanted) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.running[name]
	if now != nil && now.resource == want.resource {
		if now.access == want.access {
			return
		}
		if now.state != nil {
			want.last = now.state.Endpoints
		}
	}
	if now != nil {
		now.stop()
	}
	w.running[name] = w.start(name, want)
}

func (w *watches) start(name types.NamespacedName, want wanted) *watched {
	ctx, stop := context.WithCancel(w.ctx)
	started := &watched{resource: want.resource, access: want.access, stop: stop}
	source, release := want.open()
	cfg := external.FollowConfig{Source: source, MaxStale: want.maxStale, Last: want.last, Since: want.since}
	w.ended.Go(func() {
		defer release()
		external.Follow(ctx, cfg, func(s external.State) {
			w.mu.Lock()
			started.state = &s
			w.mu.Unlock()
			w.changed(name)
		})
	})
	return started
}

// drop ends the source.
func (w *watches) drop(name types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now := w.running[name]; now != nil {
		now.stop()
		delete(w.running, name)
	}
}

// state is nil before the first report.
func (w *watches) state(name types.NamespacedName) *external.State {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now := w.running[name]; now != nil {
		return now.state
	}
	return nil
}
