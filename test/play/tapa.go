package play

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/targetpool/client"
)

// TAPAConfig says whose sidecar a TAPA is.
type TAPAConfig struct {
	Client *client.Client
	// Conn is its connection to the registry.
	Conn                   grpc.ClientConnInterface
	Namespace, Pod, PodUID string
	// Address is one of the primary network, instead of a pod's name.
	Address string
	// Addresses are those of the secondary network, as CIDRs.
	Addresses []string
	// MaxTargets bounds the identifiers it draws; default 100.
	MaxTargets int
	// Refresh is how often it refreshes; default 10 s.
	Refresh time.Duration
	// ExternalTarget, instead of a pod, is the machine of that name.
	ExternalTarget string
	// OnEvent, if set, is told what it does.
	OnEvent func(TAPAEvent)
}

// TAPAEvent is something that a TAPA heard or did.
type TAPAEvent struct {
	Time time.Time
	Pod  string
	// What is one of the constants, or what went wrong.
	What string
	// Stream is trench/conduit/stream; of Assigned: all of them, separated by blanks.
	Stream string
}

// What a TAPA hears and does.
const (
	Assigned = "assigned" // it got a list, which may be empty
	Opened   = "opened"   // it is registered ENABLED
	Closed   = "closed"   // it is unregistered
	// Undefined is what a TAPA of Meridio 1.x finds a stream to be that it is to open and that is not configured.
	Undefined = "undefined"
)

// TAPA holds the streams that it is assigned, as Meridio's does: it opens each with a DISABLED registration first, refreshes it,
// and unregisters it when the assignment ends.
type TAPA struct {
	cfg           TAPAConfig
	registrations *Registrations
	watch         *client.Assignments
	lists         chan []*targetpoolv1.Stream
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
		cfg: cfg, registrations: NewRegistrations(cfg.Conn, cfg.Addresses, nil), lists: make(chan []*targetpoolv1.Stream, 1),
	}
	watch, err := cfg.Client.WatchAssignments(client.AssignmentsConfig{
		Workload: &targetpoolv1.Workload{
			Namespace: cfg.Namespace, Pod: cfg.Pod, PodUid: cfg.PodUID, Address: cfg.Address, ExternalTarget: cfg.ExternalTarget,
		},
		Handler: t.assigned,
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
	names := make([]string, 0, len(l.Items))
	for _, a := range l.Items {
		streams = append(streams, a.GetStream())
		names = append(names, name(a.GetStream()))
	}
	t.say(l.Received, Assigned, strings.Join(names, " "))
	select {
	case <-t.lists:
	default:
	}
	t.lists <- streams
}

// Run holds streams until ctx ends. Then it leaves without a word, as a killed pod does; Close is for those who part friendly.
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
		var refreshing bool
		select {
		case <-ctx.Done():
			return nil
		case wanted = <-t.lists:
		case <-refresh.C:
			refreshing = true
		case <-retry:
		}
		retry = nil
		if err := t.reconcile(ctx, wanted, refreshing); err != nil && ctx.Err() == nil {
			t.say(time.Now(), "failed: "+err.Error(), "")
			retry = time.After(time.Second)
		}
	}
}

// Open are the streams that it holds, as trench/conduit/stream, sorted.
func (t *TAPA) Open() []string { return t.registrations.Streams() }

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

func (t *TAPA) say(at time.Time, what, stream string) {
	if t.cfg.OnEvent != nil {
		t.cfg.OnEvent(TAPAEvent{Time: at, Pod: t.cfg.Pod, What: what, Stream: stream})
	}
}
