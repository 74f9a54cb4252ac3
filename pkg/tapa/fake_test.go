package tapa

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/nordix/meridio-nsp/pkg/stream"
)

// manner is how one call of a fake connector goes.
type manner int

const (
	works    manner = iota
	refuses         // fails without effect
	deceives        // has its effect, and fails
	slow            // works after a second
	late            // works at once, and says so after a second
	hangs           // until the caller gives up, and has its effect 3 s after that
)

var (
	errRefused = errors.New("refused")
	errOther   = errors.New("another trench is connected")
	errGone    = errors.New("it ended")
)

// fake is a connector that behaves as a TAPA does: anybody's close closes, one trench at a time, it forgets at a restart.
type fake struct {
	mu      sync.Mutex
	open    map[stream.Key]Status
	busy    map[stream.Key]bool
	manners []manner
	calls   []string
	watch   func(map[stream.Key]Status)
	down    bool
	ended   chan struct{}
	// onClose is told of each close as it is called.
	onClose func(stream.Key)
	overlap bool
}

func newFake(manners ...manner) *fake {
	return &fake{open: map[stream.Key]Status{}, busy: map[stream.Key]bool{}, manners: manners}
}

// Open implements Connector.
func (f *fake) Open(ctx context.Context, k stream.Key) error {
	return f.call(ctx, "open", k, func() error {
		for other := range f.open {
			if other.Trench != k.Trench {
				return errOther
			}
		}
		if _, is := f.open[k]; !is {
			f.open[k] = Open
			f.tell()
		}
		return nil
	})
}

// Close implements Connector.
func (f *fake) Close(ctx context.Context, k stream.Key) error {
	if f.onClose != nil {
		f.onClose(k)
	}
	return f.call(ctx, "close", k, func() error {
		if _, is := f.open[k]; is {
			delete(f.open, k)
			f.tell()
		}
		return nil
	})
}

func (f *fake) call(ctx context.Context, what string, k stream.Key, effect func() error) error {
	f.mu.Lock()
	f.calls = append(f.calls, what+" "+k.Name)
	f.overlap = f.overlap || f.busy[k]
	f.busy[k] = true
	m := works
	if len(f.manners) > 0 {
		m, f.manners = f.manners[0], f.manners[1:]
	}
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.busy[k] = false
	}()
	locked := func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.down {
			return errGone
		}
		return effect()
	}
	switch m {
	case refuses:
		return errRefused
	case deceives:
		return errors.Join(locked(), errRefused)
	case late:
		err := locked()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
			return err
		}
	case slow:
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	case hangs:
		<-ctx.Done()
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			time.AfterFunc(3*time.Second, func() { _ = locked() })
		}
		return ctx.Err()
	}
	return locked()
}

// Watch implements Connector.
func (f *fake) Watch(ctx context.Context, tell func(map[stream.Key]Status)) error {
	f.mu.Lock()
	if f.down {
		f.mu.Unlock()
		return errGone
	}
	f.watch = tell
	if f.ended == nil {
		f.ended = make(chan struct{}) // Of the present bubble.
	}
	ended := f.ended
	f.tell()
	f.mu.Unlock()
	select {
	case <-ctx.Done():
	case <-ended:
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.watch = nil
	return errGone
}

func (f *fake) tell() {
	if f.watch != nil {
		f.watch(maps.Clone(f.open))
	}
}

// restart forgets everything, as a TAPA does.
func (f *fake) restart() {
	f.stop()
	f.start()
}

func (f *fake) stop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return
	}
	f.down, f.watch, f.open = true, nil, map[stream.Key]Status{}
	if f.ended != nil {
		close(f.ended)
	}
}

func (f *fake) start() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		f.down, f.ended = false, nil
	}
}

// set changes what is open from outside.
func (f *fake) set(k stream.Key, status Status) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open[k] = status
	f.tell()
}

func (f *fake) drop(k stream.Key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.open, k)
	f.tell()
}

// calm has all calls work from now on.
func (f *fake) calm() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.manners = nil
}

func (f *fake) said() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	said := f.calls
	f.calls = nil
	return said
}

func (f *fake) opened() map[stream.Key]bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := map[stream.Key]bool{}
	for k := range f.open {
		out[k] = true
	}
	return out
}

// memory is a store that can fail.
type memory struct {
	mu    sync.Mutex
	state State
	err   error
}

// Save implements Store.
func (m *memory) Save(s State) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err == nil {
		m.state = s
	}
	return m.err
}

func (m *memory) saved() State {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state
}

func (m *memory) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = err
}

func key(trench, name string) stream.Key {
	return stream.Key{Namespace: "red", Trench: trench, Conduit: "conduit-a", Name: name}
}

func keys(all ...stream.Key) map[stream.Key]bool {
	out := map[stream.Key]bool{}
	for _, k := range all {
		out[k] = true
	}
	return out
}
