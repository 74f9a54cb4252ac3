package play

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/targetpool/client"
)

// TAPAConfig says whose sidecar a TAPA is.
type TAPAConfig struct {
	Client *client.Client
	// Conn is its connection to the registry.
	Conn                   grpc.ClientConnInterface
	Namespace, Pod, PodUID string
	// Addresses are those of the secondary network, as CIDRs.
	Addresses []string
	// MaxTargets bounds the identifiers it draws; default 100.
	MaxTargets int
	// Refresh is how often it refreshes; default 10 s.
	Refresh time.Duration
	// OnEvent, if set, is told what it does.
	OnEvent func(TAPAEvent)
}

// TAPAEvent is something that a TAPA heard or did.
type TAPAEvent struct {
	Time   time.Time
	Pod    string
	What   string // "assigned", "open", "closed"
	Stream string
}

// TAPA holds the streams that it is assigned, as Meridio's does: it opens each with a DISABLED registration first, refreshes it,
// and unregisters it when the assignment ends.
type TAPA struct {
	cfg      TAPAConfig
	registry nspv1.TargetRegistryClient
	watch    *client.Assignments
	lists    chan []*targetpoolv1.Stream

	mu   sync.Mutex
	open map[string]uint32
}

// NewTAPA makes a TAPA.
func NewTAPA(cfg TAPAConfig) (*TAPA, error) {
	if cfg.MaxTargets == 0 {
		cfg.MaxTargets = 100
	}
	if cfg.Refresh == 0 {
		cfg.Refresh = 10 * time.Second
	}
	t := &TAPA{
		cfg: cfg, registry: nspv1.NewTargetRegistryClient(cfg.Conn),
		lists: make(chan []*targetpoolv1.Stream, 1), open: make(map[string]uint32),
	}
	watch, err := cfg.Client.WatchAssignments(client.AssignmentsConfig{
		Workload: &targetpoolv1.Workload{Namespace: cfg.Namespace, Pod: cfg.Pod, PodUid: cfg.PodUID},
		Handler:  t.assigned,
	})
	if err != nil {
		return nil, fmt.Errorf("making a TAPA: %w", err)
	}
	t.watch = watch
	t.report()
	return t, nil
}

// assigned keeps the latest list for Run.
func (t *TAPA) assigned(l client.AssignmentList) {
	streams := make([]*targetpoolv1.Stream, 0, len(l.Items))
	for _, a := range l.Items {
		streams = append(streams, a.GetStream())
	}
	select {
	case <-t.lists:
	default:
	}
	t.lists <- streams
}

// Run holds streams until ctx ends. Then it leaves without a word, as a killed pod does.
func (t *TAPA) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var watching sync.WaitGroup
	watching.Go(func() { _ = t.watch.Run(ctx) })
	defer watching.Wait()
	defer cancel()
	refresh := time.NewTicker(t.cfg.Refresh)
	defer refresh.Stop()
	var wanted []*targetpoolv1.Stream
	var retry <-chan time.Time
	for {
		var reopen bool
		select {
		case <-ctx.Done():
			return nil
		case wanted = <-t.lists:
		case <-refresh.C:
			reopen = true
		case <-retry:
		}
		retry = nil
		if err := t.reconcile(ctx, wanted, reopen); err != nil && ctx.Err() == nil {
			t.say("failed: "+err.Error(), "")
			retry = time.After(time.Second)
		}
	}
}

// reconcile closes what is no longer wanted, opens what is missing and refreshes the rest.
func (t *TAPA) reconcile(ctx context.Context, wanted []*targetpoolv1.Stream, refresh bool) error {
	keep := make(map[string]bool)
	for _, s := range wanted {
		keep[name(s)] = true
	}
	var errs []error
	for _, s := range t.Open() {
		if !keep[s] {
			errs = append(errs, t.closeStream(ctx, s))
		}
	}
	for _, s := range wanted {
		id := t.identifier(name(s))
		switch {
		case id == 0:
			errs = append(errs, t.openStream(ctx, s))
		case refresh:
			errs = append(errs, t.register(ctx, s, id, nspv1.Target_ENABLED))
		}
	}
	return errors.Join(errs...)
}

// openStream is the sequence that Meridio's TAPA plays: look which identifiers are taken, register DISABLED with a free one, look
// again whether somebody was faster, register ENABLED.
func (t *TAPA) openStream(ctx context.Context, s *targetpoolv1.Stream) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	for {
		taken, err := t.taken(ctx, s)
		if err != nil {
			return err
		}
		id, ok := t.free(taken)
		if !ok {
			return fmt.Errorf("stream %s is full", name(s))
		}
		if err := t.register(ctx, s, id, nspv1.Target_DISABLED); err != nil {
			return err
		}
		taken, err = t.taken(ctx, s)
		if err != nil {
			return err
		}
		if taken[id] {
			continue
		}
		if err := t.register(ctx, s, id, nspv1.Target_ENABLED); err != nil {
			return err
		}
		t.set(name(s), id)
		t.say("open", name(s))
		return nil
	}
}

// taken are the identifiers of the other targets of a stream.
func (t *TAPA) taken(ctx context.Context, s *targetpoolv1.Stream) (map[uint32]bool, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch, err := t.registry.Watch(ctx, &nspv1.Target{Status: nspv1.Target_ANY, Stream: legacyStream(s)})
	if err != nil {
		return nil, fmt.Errorf("reading the targets of %s: %w", name(s), err)
	}
	list, err := watch.Recv()
	if err != nil {
		return nil, fmt.Errorf("reading the targets of %s: %w", name(s), err)
	}
	out := make(map[uint32]bool)
	for _, other := range list.GetTargets() {
		if !slices.Equal(other.GetIps(), t.cfg.Addresses) {
			id, _ := strconv.ParseUint(other.GetContext()["identifier"], 10, 32)
			out[uint32(id)] = true
		}
	}
	return out, nil
}

// free draws an identifier that is not taken.
func (t *TAPA) free(taken map[uint32]bool) (uint32, bool) {
	for _, i := range rand.Perm(t.cfg.MaxTargets) { //nolint:gosec // as Meridio does
		if id := uint32(i + 1); !taken[id] { //nolint:gosec // small
			return id, true
		}
	}
	return 0, false
}

func (t *TAPA) register(ctx context.Context, s *targetpoolv1.Stream, id uint32, st nspv1.Target_Status) error {
	_, err := t.registry.Register(ctx, t.target(legacyStream(s), id, st))
	if err != nil {
		return fmt.Errorf("registering at %s: %w", name(s), err)
	}
	return nil
}

func (t *TAPA) closeStream(ctx context.Context, s string) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	_, err := t.registry.Unregister(ctx, t.target(legacyStream(split(s)), t.identifier(s), nspv1.Target_ENABLED))
	if err != nil {
		return fmt.Errorf("unregistering at %s: %w", s, err)
	}
	t.set(s, 0)
	t.say("closed", s)
	return nil
}

func (t *TAPA) target(s *nspv1.Stream, id uint32, st nspv1.Target_Status) *nspv1.Target {
	return &nspv1.Target{
		Ips: t.cfg.Addresses, Context: map[string]string{"identifier": strconv.FormatUint(uint64(id), 10)}, Status: st, Stream: s,
	}
}

// Open are the streams that it holds, as trench/conduit/stream, sorted.
func (t *TAPA) Open() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]string, 0, len(t.open))
	for s := range t.open {
		out = append(out, s)
	}
	slices.Sort(out)
	return out
}

func (t *TAPA) identifier(s string) uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.open[s]
}

// set notes that a stream is open with an identifier, or closed where that is 0, and reports it.
func (t *TAPA) set(s string, id uint32) {
	t.mu.Lock()
	if id == 0 {
		delete(t.open, s)
	} else {
		t.open[s] = id
	}
	t.mu.Unlock()
	t.report()
}

// report tells the NSP the pod's addresses and that the pool owns what is open.
func (t *TAPA) report() {
	r := &targetpoolv1.Report{Addresses: t.cfg.Addresses, OwnersComplete: true}
	for _, s := range t.Open() {
		r.Owners = append(r.Owners, &targetpoolv1.StreamOwners{
			Stream: split(s), Owners: []targetpoolv1.Owner{targetpoolv1.Owner_OWNER_POOL},
		})
	}
	t.watch.Report(r)
}

func (t *TAPA) say(what, stream string) {
	if t.cfg.OnEvent != nil {
		t.cfg.OnEvent(TAPAEvent{Time: time.Now(), Pod: t.cfg.Pod, What: what, Stream: stream})
	}
}

// name is trench/conduit/stream.
func name(s *targetpoolv1.Stream) string {
	return s.GetTrench() + "/" + s.GetConduit() + "/" + s.GetName()
}

func split(s string) *targetpoolv1.Stream {
	parts := strings.SplitN(s, "/", 3)
	return &targetpoolv1.Stream{Trench: parts[0], Conduit: parts[1], Name: parts[2]}
}

func legacyStream(s *targetpoolv1.Stream) *nspv1.Stream {
	return &nspv1.Stream{
		Name:    s.GetName(),
		Conduit: &nspv1.Conduit{Name: s.GetConduit(), Trench: &nspv1.Trench{Name: s.GetTrench()}},
	}
}
