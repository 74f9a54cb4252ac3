package play

import (
	"context"
	"sync"
)

// keeper keeps watches going: one that breaks begins again after half a second, as in Meridio.
type keeper struct {
	ctx     context.Context
	running sync.WaitGroup

	mu   sync.Mutex
	kept map[string]context.CancelFunc
}

func newKeeper(ctx context.Context) *keeper {
	return &keeper{ctx: ctx, kept: make(map[string]context.CancelFunc)}
}

// keep keeps a watch going under a name, unless one of that name is.
func (k *keeper) keep(name string, watch func(context.Context) error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.kept[name] != nil {
		return
	}
	ctx, cancel := context.WithCancel(k.ctx)
	k.kept[name] = cancel
	k.running.Go(func() { again(ctx, func() { _ = watch(ctx) }) })
}

// drop ends a watch, if there is one of that name.
func (k *keeper) drop(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if cancel := k.kept[name]; cancel != nil {
		cancel()
		delete(k.kept, name)
	}
}

// only ends all others.
func (k *keeper) only(names map[string]bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for name, cancel := range k.kept {
		if !names[name] {
			cancel()
			delete(k.kept, name)
		}
	}
}

func (k *keeper) dropAll() { k.only(nil) }

func (k *keeper) wait() { k.running.Wait() }
