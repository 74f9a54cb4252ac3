package kube

import (
	"context"
	"log/slog"
	"sync"

	"k8s.io/client-go/kubernetes"

	"github.com/nordix/meridio-nsp/pkg/auth"
)

// Authorities watch the ConfigMaps of authorities that vouch for ExternalTargets, each by its name: a Role may name those that can be.
type Authorities struct {
	client  kubernetes.Interface
	changed func(auth.ConfigMap, map[string]string)
	log     *slog.Logger

	mu      sync.Mutex
	watches map[auth.ConfigMap]*authorityWatch
	start   func(auth.ConfigMap, *authorityWatch) // nil unless Run runs
}

type authorityWatch struct {
	ConfigMapWatch
	stop context.CancelFunc // nil until it is started
	// before is the end of an earlier watch of the same ConfigMap: that must not have the last word.
	before <-chan struct{}
	ended  chan struct{}
}

// NewAuthorities makes Authorities that tell changed what a wanted ConfigMap has, or nil where there is none.
func NewAuthorities(client kubernetes.Interface, changed func(auth.ConfigMap, map[string]string), log *slog.Logger) *Authorities {
	return &Authorities{client: client, changed: changed, log: log, watches: make(map[auth.ConfigMap]*authorityWatch)}
}

// Want says which ConfigMaps are wanted. It may be called at any time and does not block.
func (a *Authorities) Want(all map[auth.ConfigMap]bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for c, w := range a.watches {
		switch {
		case all[c]:
		case w.stop != nil:
			w.stop()
			w.stop = nil
		case a.start == nil: // it was never started
			delete(a.watches, c)
		}
	}
	for c := range all {
		old := a.watches[c]
		if old != nil && (old.stop != nil || a.start == nil) {
			continue
		}
		w := &authorityWatch{ended: make(chan struct{}), ConfigMapWatch: ConfigMapWatch{
			Client: a.client, Namespace: c.Namespace, Name: c.Name, Log: a.log,
			Changed: func(data map[string]string, present bool) {
				if !present {
					data = nil
				}
				a.changed(c, data)
			},
		}}
		if old != nil {
			w.before = old.ended
		}
		if a.watches[c] = w; a.start != nil {
			a.start(c, w)
		}
	}
}

// Run watches until ctx ends, and then returns nil.
func (a *Authorities) Run(ctx context.Context) error {
	var running sync.WaitGroup
	a.mu.Lock()
	a.start = func(c auth.ConfigMap, w *authorityWatch) {
		var watching context.Context
		watching, w.stop = context.WithCancel(ctx)
		running.Go(func() {
			defer a.forget(c, w)
			defer close(w.ended)
			if w.before != nil {
				<-w.before
			}
			_ = w.Run(watching)
		})
	}
	for c, w := range a.watches {
		a.start(c, w)
	}
	a.mu.Unlock()
	<-ctx.Done()
	a.mu.Lock()
	a.start = nil
	for _, w := range a.watches {
		if w.stop != nil {
			w.stop()
		}
	}
	a.mu.Unlock()
	running.Wait()
	return nil
}

// forget drops a watch that has ended because nobody wants it.
func (a *Authorities) forget(c auth.ConfigMap, w *authorityWatch) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.watches[c] == w && w.stop == nil {
		delete(a.watches, c)
	}
}
