package engine

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nordix/meridio-nsp/pkg/feed"
	"github.com/nordix/meridio-nsp/pkg/pool"
	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// ErrStopped is returned to callers whose question came when the engine had ended.
var ErrStopped = errors.New("the engine has stopped")

// Config is what an engine needs. The functions are called from the engine's goroutine, WantConfig from New too, and must not
// block.
type Config struct {
	// Namespace is the NSP's own, Cluster the name of its cluster, see pool.Config.
	Namespace, Cluster string
	// Namespaces are those whose state must be read, or found unavailable, before anything is answered.
	Namespaces []string
	// Assignment is the policy where a Service names none.
	Assignment pool.Assignment
	// Grants say what other namespaces may do, see pool.Config. With GrantsPending nothing is answered before the first
	// GrantsChanged: what is missing in them would be an order to close.
	Grants        *pool.Grants
	GrantsPending bool
	// AccessPending says that load balancers are told nothing before the first AccessChanged: whoever hears of no limit takes a stream
	// for open to all.
	AccessPending bool
	// ReadinessOff leaves it to the TAPA to take a target out of traffic, as Meridio 1.x does: load balancers are not told of
	// readiness, only of registrations.
	ReadinessOff bool

	// Rebuilding says that stored registrations were lost and come back with their refreshes: load balancers are told nothing
	// before Rebuilt, for what is missing would be an order to drop.
	Rebuilding bool

	// WantConfig asks for the configuration of a trench, once; the answer is a TrenchConfigured. DropConfig takes the question
	// back: many trenches are known, and in this one there is nothing.
	WantConfig, DropConfig func(trench string)
	// Limits is told max-targets of the streams of a trench when they were read or changed; absent or 0 is 100. Prefer is told
	// who of those that wait for an identifier is Ready, and who is not.
	Limits func(trench string, limits map[stream.Key]uint32)
	Prefer func(map[registry.Key]bool)
	// Remember keeps conclusions beside the registrations, by their ID, for after a restart.
	Remember func(map[uint64]registry.Memory)
	// Pools is told of pools that changed; nil is one that is gone.
	Pools func(map[pool.Ref]*PoolStatus)
	// Listed is told when a pod comes to be in some slice that counts, and when it leaves the last one. Optional.
	Listed func(podUID string, listed bool)
	// Committed is told of every commit.
	Committed func(Commit)
}

// Commit is what one turn of the engine did.
type Commit struct {
	// Waited is how long the oldest input waited, Took how long the turn took.
	Waited, Took time.Duration
	// Inputs were taken in, Rows changed.
	Inputs, Rows int
	// Refused is how often the configuration of a trench was not asked for since the last turn: too many are known.
	Refused int
	// Events are when the EndpointSlice events that were taken in had arrived, oldest first, where they changed rows at all.
	Events []time.Time
	// Causes are when the cluster saw what changed the state of a target, for each one whose cause it dated.
	Causes []time.Time
}

// Engine joins pools and registrations. See the package comment.
type Engine struct {
	state   *state
	out     outputs
	watches atomic.Uint64
	stale   atomic.Bool
	grants  atomic.Pointer[pool.Grants]

	mu      sync.Mutex
	inbox   []input
	stopped bool
	wake    chan struct{}
}

// input is one thing for the owner to do. Questions are asked after the commit of the turn in which they arrive.
type input struct {
	at       time.Time
	events   []Event
	changes  []registry.Change
	question func()
	done     chan struct{}
}

// New makes an engine over the registrations that were stored.
func New(cfg Config, entries []*registry.Entry) *Engine {
	e := &Engine{state: newState(&cfg), wake: make(chan struct{}, 1)}
	e.out = newOutputs(e.state)
	e.grants.Store(cfg.Grants)
	e.state.load(entries)
	return e
}

// Run owns the state until ctx ends.
func (e *Engine) Run(ctx context.Context) error {
	defer e.stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-e.wake:
			e.turn(e.take())
		}
	}
}

// Post takes events in. It does not block; events of one caller are applied in order.
func (e *Engine) Post(events ...Event) {
	e.put(input{events: events})
}

// Registered takes changes of the registry in and returns when watchers can see them.
func (e *Engine) Registered(ctx context.Context, changes []registry.Change) {
	done := make(chan struct{})
	if !e.put(input{changes: changes, done: done}) {
		return
	}
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// Stale tells whether some namespace counts by what was stored before a restart.
func (e *Engine) Stale() bool { return e.stale.Load() }

// Permitted tells whether pods of a namespace that run as a ServiceAccount may join a stream. Names that the key leaves empty stand
// for any. It answers from a snapshot and may be called from anywhere.
func (e *Engine) Permitted(namespace, account string, k stream.Key) bool {
	return namespace == e.state.cfg.Namespace || e.grants.Load().Permission(namespace, k).Account(account)
}

// PermittedTarget tells whether an ExternalTarget of a namespace may join a stream. Names that the key leaves empty stand for any. It
// may be called from anywhere.
func (e *Engine) PermittedTarget(namespace, name string, k stream.Key) bool {
	return e.grants.Load().Permission(namespace, k).Target(name)
}

// Identify says that the pod which the workload names is proven to run as a ServiceAccount of its namespace, and returns when what
// follows has been published. Where the UID is not named, nor any one pod found, it says nothing. Call it before Assignments,
// whose answer may depend on it.
func (e *Engine) Identify(ctx context.Context, w Workload, namespace, account string) error {
	if account == "" || w.Namespace != "" && w.Namespace != namespace {
		return nil
	}
	e.Post(identified{workload: w, namespace: namespace, account: account})
	return e.Heard(ctx)
}

// Heard returns when all that was put in before has been taken in.
func (e *Engine) Heard(ctx context.Context) error {
	_, err := ask(ctx, e, func() struct{} { return struct{}{} })
	return err
}

// Feed is the topic of a conduit.
func (e *Engine) Feed(ctx context.Context, c stream.Conduit) (*Topic, error) {
	return ask(ctx, e, func() *Topic { return e.state.topic(&e.out, c) })
}

// Scope is the topic of all registrations of one trench, of every type.
func (e *Engine) Scope(ctx context.Context, trench string) (*Topic, error) {
	return e.Feed(ctx, scopeTopic(e.state.cfg.Namespace, trench))
}

// List watches the registrations that a filter selects. The first value reflects every registration acknowledged before. The
// watcher must be closed.
func (e *Engine) List(ctx context.Context, f Filter) (*feed.Watcher[Filter, *List], error) {
	return ask(ctx, e, func() *feed.Watcher[Filter, *List] { return e.state.watchList(&e.out, f) })
}

// Assignments watches the streams of a workload. The watcher must be closed.
func (e *Engine) Assignments(ctx context.Context, w Workload) (*feed.Watcher[Workload, *Assigned], error) {
	return ask(ctx, e, func() *feed.Watcher[Workload, *Assigned] {
		r := e.out.assignments.Watch(w)
		e.state.publishAssignment(&e.out, w)
		return r
	})
}

// Reporter takes the reports of one sidecar's watch in.
func (e *Engine) Reporter(w Workload) *Reporter {
	return &Reporter{engine: e, id: e.watches.Add(1), workload: w}
}

// Misdirected says that a watch was refused: the sidecar of the workload, which called from peer, is configured for the NSP of
// another namespace.
func (e *Engine) Misdirected(w Workload, peer netip.Addr, namespace string) {
	e.Post(misdirected{workload: w, peer: peer, namespace: namespace})
}

// Reporter is one sidecar's voice. A report replaces the one before; Close says that the watch is over. It is safe for
// concurrent use.
type Reporter struct {
	engine   *Engine
	id       uint64
	workload Workload

	mu             sync.Mutex
	proven, closed bool
}

// Prove says that whoever watches is the workload: from then on somebody watches for it.
func (r *Reporter) Prove() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.proven && !r.closed {
		r.proven = true
		r.engine.Post(watching{workload: r.workload, by: +1})
	}
}

// Report takes a report in. One that is not proven, or comes after Close, says nothing.
func (r *Reporter) Report(rep Report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if rep.Proven && !r.closed {
		r.engine.Post(reported{id: r.id, workload: r.workload, report: &rep})
	}
}

// Close ends the watch.
func (r *Reporter) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.closed = true
		r.engine.Post(reported{id: r.id, workload: r.workload})
		if r.proven {
			r.engine.Post(watching{workload: r.workload, by: -1})
		}
	}
}

// ask has a question answered on the owner's goroutine, after all that was put in before it. A question whose caller gave up is
// not asked, so that no watcher is left that nobody closes.
func ask[T any](ctx context.Context, e *Engine, question func() T) (T, error) {
	var (
		answer, none T
		taken        atomic.Bool
	)
	err := ErrStopped
	done := make(chan struct{})
	asked := e.put(input{done: done, question: func() {
		if taken.CompareAndSwap(false, true) {
			answer, err = question(), nil
		}
	}})
	if !asked {
		return none, ErrStopped
	}
	select {
	case <-done:
	case <-ctx.Done():
		if taken.CompareAndSwap(false, true) {
			return none, fmt.Errorf("asking the engine: %w", ctx.Err())
		}
		<-done
	}
	return answer, err
}

func (e *Engine) put(in input) bool {
	in.at = time.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stopped {
		return false
	}
	e.inbox = append(e.inbox, in)
	select {
	case e.wake <- struct{}{}:
	default:
	}
	return true
}

// Backlog is how many inputs wait to be taken in.
func (e *Engine) Backlog() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.inbox)
}

func (e *Engine) take() []input {
	e.mu.Lock()
	defer e.mu.Unlock()
	batch := e.inbox
	e.inbox = nil
	return batch
}

// turn takes inputs in, commits once, and answers.
func (e *Engine) turn(batch []input) {
	if len(batch) == 0 {
		return
	}
	start := time.Now()
	done := Commit{Waited: start.Sub(batch[0].at), Inputs: len(batch)}
	stirred, events := e.apply(batch)
	if stirred || !e.state.loaded {
		e.state.loaded = true
		// Nothing stale is told before it is known to be.
		e.stale.Store(e.Stale() || e.state.stale())
		st := e.state.commit(&e.out)
		e.stale.Store(e.state.stale())
		if done.Rows = st.rows; st.rows > 0 && len(events) > 0 {
			done.Events, done.Causes = events, st.causes
		}
	}
	for _, in := range batch {
		if in.question != nil {
			in.question()
		}
		if in.done != nil {
			close(in.done)
		}
	}
	if e.state.cfg.Committed != nil {
		done.Took, done.Refused = time.Since(start), e.state.refused
		e.state.cfg.Committed(done)
		e.state.refused = 0
	}
}

// apply takes inputs in. It tells whether there was anything but questions, and when the events of EndpointSlices had arrived.
func (e *Engine) apply(batch []input) (stirred bool, slices []time.Time) {
	for _, in := range batch {
		for _, ev := range in.events {
			switch ev := ev.(type) {
			case GrantsChanged:
				e.grants.Store(ev.Grants)
			case SliceSet, SliceGone:
				slices = append(slices, in.at)
			}
			e.state.apply(ev)
		}
		for _, c := range in.changes {
			e.state.changed(c)
		}
		stirred = stirred || len(in.events)+len(in.changes) > 0
	}
	return stirred, slices
}

// stop answers whoever still waits.
func (e *Engine) stop() {
	e.mu.Lock()
	e.stopped = true
	e.mu.Unlock()
	for _, in := range e.take() {
		if in.done != nil {
			close(in.done)
		}
	}
}

// Pools are all pools with their members, sorted.
func (e *Engine) Pools(ctx context.Context, namespace string) ([]PoolDetail, error) {
	return ask(ctx, e, func() []PoolDetail { return e.state.poolDetails(&e.out, namespace) })
}

// Targets are all registrations that a filter covers, whatever their type and status, in the order in which they were first
// stored.
func (e *Engine) Targets(ctx context.Context, f Filter) ([]*Row, error) {
	return ask(ctx, e, func() []*Row { return e.out.lists.Targets(f) })
}
