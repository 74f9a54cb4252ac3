package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/pkg/engine"
	"github.com/nordix/meridio-nsp/pkg/feed"
	"github.com/nordix/meridio-nsp/pkg/stream"
)

// targetPool tells each workload which streams to hold.
type targetPool struct {
	targetpoolv1.UnimplementedTargetPoolServer
	server *Server
}

type poolStream = grpc.BidiStreamingServer[targetpoolv1.TargetPoolWatchRequest, targetpoolv1.TargetPoolWatchResponse]

// Watch implements targetpoolv1.TargetPoolServer.
func (t *targetPool) Watch(ss poolStream) error {
	first, err := ss.Recv()
	if err != nil {
		return fmt.Errorf("reading the first request: %w", err)
	}
	workload, err := workloadOf(first.GetWorkload())
	if err != nil {
		return err
	}
	report, err := t.report(first.GetReport())
	if errors.Is(err, errMismatch) {
		t.server.cfg.Engine.Misdirected(workload, auth.From(ss.Context()).Addr, brief(first.GetReport().GetNspNamespace()))
	}
	if err != nil {
		return fmt.Errorf("watch of %s: %w", workload, err)
	}
	caller := auth.From(ss.Context())
	workload, later, err := speaksFor(caller, workload)
	if err != nil {
		return fmt.Errorf("watch of %s: %w", workload, err)
	}
	ctx, cancel := context.WithCancelCause(ss.Context())
	defer cancel(nil)
	done, err := t.server.beginSession(ctx, cancel)
	if err != nil {
		return fmt.Errorf("watch of %s: %w", workload, err)
	}
	defer done()
	identify := func() error {
		return t.server.cfg.Engine.Identify(ctx, workload, caller.Account.Namespace, caller.Account.Name)
	}
	if !later { // before the first list, which may depend on it
		if err := identify(); err != nil {
			return fmt.Errorf("watch of %s: %w", workload, err)
		}
	}
	assigned, err := t.server.cfg.Engine.Assignments(ctx, workload)
	if err != nil {
		return fmt.Errorf("watch of %s: %w", workload, err)
	}
	defer assigned.Close()
	w := &poolWatch{
		server: t.server, workload: workload, caller: caller, later: later, assigned: assigned, send: ss.SendMsg,
		identify: identify, reporter: t.server.cfg.Engine.Reporter(workload),
	}
	defer w.reporter.Close()
	defer t.server.audience.attends(w)()
	go func() { cancel(t.receive(ss, w.hear)) }()
	err = w.run(ctx, report)
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	if err != nil {
		return fmt.Errorf("watch of %s: %w", workload, err)
	}
	return nil
}

// beginSession has the watch of an ExternalTarget end where a newer one comes.
func (s *Server) beginSession(ctx context.Context, end context.CancelCauseFunc) (done func(), err error) {
	c := auth.From(ctx)
	if c.Target.UID == "" {
		return func() {}, nil
	}
	session, err := sessionOf(ctx)
	if err != nil {
		return nil, err
	}
	return s.sessions.Watch(c.Target, session, end)
}

// receive passes reports on until the stream ends, which it does when the handler returns. A client that says no more may
// still listen, so that is waited for too.
func (t *targetPool) receive(ss poolStream, hear func(*engine.Report)) error {
	for {
		req, err := ss.Recv()
		if errors.Is(err, io.EOF) {
			<-ss.Context().Done()
		}
		if err != nil {
			return context.Canceled
		}
		report, err := t.report(req.GetReport())
		if err != nil {
			return err
		}
		hear(report)
		// A client that says more than can be taken in waits.
		if err := t.server.cfg.Engine.Heard(ss.Context()); err != nil {
			return context.Canceled
		}
	}
}

// workloadOf reads who is watched for: a pod by its name, or an address.
func workloadOf(w *targetpoolv1.Workload) (engine.Workload, error) {
	out := engine.Workload{Namespace: w.GetNamespace(), Pod: w.GetPod(), PodUID: w.GetPodUid()}
	if name := w.GetExternalTarget(); name != "" {
		if w.GetPod() != "" || w.GetPodUid() != "" || w.GetAddress() != "" || w.GetNamespace() == "" || len(name) > maxName {
			return out, invalid("the workload is ExternalTarget %.63q: name its namespace beside, and neither a pod nor an address", name)
		}
		out.Pod, out.External = name, true
	}
	if max(len(out.Namespace), len(out.Pod), len(out.PodUID)) > maxName {
		return engine.Workload{}, invalid("a name of the workload has more than %d characters: no pod is called that", maxName)
	}
	switch {
	case w.GetAddress() != "":
		if out != (engine.Workload{}) {
			return out, invalid("the workload is named as pod %s and as address %s: name one of them", out, w.GetAddress())
		}
		a, err := netip.ParseAddr(w.GetAddress())
		if err != nil {
			return out, invalid("the address %q of the workload is no IP address", w.GetAddress())
		}
		return engine.Workload{Addr: a.Unmap().WithZone("")}, nil
	case out == (engine.Workload{}):
		return out, invalid("the first request must name the workload: namespace and pod, or an address")
	case out.Pod == "" || out.Namespace == "":
		return out, invalid("the workload of namespace %q, pod %q and UID %q is incomplete: namespace and pod are needed, or an address",
			w.GetNamespace(), w.GetPod(), w.GetPodUid())
	}
	return out, nil
}

// maxName bounds names that are kept while a call lasts: Kubernetes has no longer ones.
const maxName = 253

// report reads what a sidecar says; nil where it says nothing.
func (t *targetPool) report(r *targetpoolv1.Report) (*engine.Report, error) {
	if r == nil {
		return nil, nil //nolint:nilnil // no report is no error
	}
	own := t.server.cfg.Namespace
	if ns := r.GetNspNamespace(); ns != "" && ns != own {
		return nil, fmt.Errorf("%w: the sidecar is configured for the NSP of namespace %s, this is that of %s", errMismatch, ns, own)
	}
	if n := max(len(r.GetAddresses()), len(r.GetOwners())); n > maxReported {
		return nil, invalid("the report has %d addresses and %d streams; %d are allowed", len(r.GetAddresses()), len(r.GetOwners()), maxReported)
	}
	addrs, err := addresses(r.GetAddresses())
	if err != nil {
		return nil, err
	}
	out := &engine.Report{Addrs: addrs, HasOwners: r.GetOwnersComplete()}
	for _, o := range r.GetOwners() {
		k := streamKey(o.GetStream(), own)
		if err := k.Validate(); err != nil {
			return nil, fmt.Errorf("the owners of a stream: %w", err)
		}
		for _, owner := range o.GetOwners() {
			if owner == targetpoolv1.Owner_OWNER_APPLICATION {
				out.Application = append(out.Application, k)
			}
		}
	}
	return out, nil
}

// maxReported bounds the addresses and the streams of a report, as much as a registration may have.
const maxReported = 4096

// addresses reads interface addresses, bare or with a prefix length. Those that every pod has say nothing and are left out.
func addresses(in []string) ([]netip.Addr, error) {
	out := make([]netip.Addr, 0, len(in))
	for _, s := range in {
		a, err := netip.ParseAddr(s)
		if err != nil {
			p, perr := netip.ParsePrefix(s)
			if perr != nil {
				return nil, invalid("the reported address %q is neither an IP address nor a CIDR", s)
			}
			a = p.Addr()
		}
		a = a.Unmap().WithZone("")
		if !a.IsLoopback() && !a.IsLinkLocalUnicast() {
			out = append(out, a)
		}
	}
	return out, nil
}

func streamKey(s *targetpoolv1.Stream, own string) stream.Key {
	k := stream.Key{Namespace: s.GetNamespace(), Trench: s.GetTrench(), Conduit: s.GetConduit(), Name: s.GetName()}
	if k.Namespace == "" {
		k.Namespace = own
	}
	return k
}

// poolWatch is one sidecar's watch.
type poolWatch struct {
	server   *Server
	workload engine.Workload
	caller   auth.Caller
	// later is set where the addresses of the workload show whether the caller is it.
	later    bool
	assigned *feed.Watcher[engine.Workload, *engine.Assigned]
	reporter *engine.Reporter
	send     func(any) error

	// last is the list that was sent, rev its revision, and beat the heartbeat that repeats it.
	last *engine.Assigned
	rev  uint64
	beat frame

	// known is set once the pod's addresses were found to be the caller's.
	known bool

	mu sync.Mutex
	// report is the latest one; proven is whether the caller was found to be the workload.
	report *engine.Report
	proven bool
	// identify says as which ServiceAccount the workload runs.
	identify func() error
}

func (w *poolWatch) run(ctx context.Context, first *engine.Report) error {
	if !w.later {
		w.prove()
	}
	w.hear(first)
	return w.server.watch(ctx, w)
}

// hear passes a report on to the engine, with whether the caller's identity stands behind it.
func (w *poolWatch) hear(r *engine.Report) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r != nil {
		w.report = r
		w.say()
	}
}

// prove says that the caller is the workload.
func (w *poolWatch) prove() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.proven {
		w.proven = true
		w.reporter.Prove()
		w.say()
	}
}

func (w *poolWatch) say() {
	if w.report != nil {
		said := *w.report
		said.Proven = w.proven
		w.reporter.Report(said)
	}
}

// next sends the list where it changed. Who the caller is can be told only once the workload is known, and may change while
// the watch lasts.
func (w *poolWatch) next() (bool, <-chan struct{}, error) {
	a, rev, ok, more := w.assigned.Next()
	if !ok {
		return false, more, nil
	}
	a, rev, more, err := w.admit(a, rev, more)
	if err != nil {
		return false, more, err
	}
	if w.last != nil && engine.SameStreams(w.last, a) {
		return false, more, nil
	}
	w.last, w.rev, w.beat = a, rev, nil
	return true, more, w.send(&targetpoolv1.TargetPoolWatchResponse{Version: w.version(), Assignments: assignments(a)})
}

// admit checks a list, and takes a newer one where it was found only now who the caller is.
func (w *poolWatch) admit(
	a *engine.Assigned, rev uint64, more <-chan struct{},
) (*engine.Assigned, uint64, <-chan struct{}, error) {
	before := w.known
	if err := w.check(a); err != nil || w.known == before {
		return a, rev, more, err
	}
	if err := w.identify(); err != nil {
		return a, rev, more, err
	}
	newer, at, ok, later := w.assigned.Next()
	if !ok {
		return a, rev, later, nil
	}
	return newer, at, later, w.check(newer)
}

func (w *poolWatch) check(a *engine.Assigned) error {
	if w.workload.Addr.IsValid() && a.Shared {
		return fmt.Errorf("%w: several pods bear the address %s; name the pod instead", errShared, w.workload.Addr)
	}
	if !a.Known || !w.later {
		return nil
	}
	if err := w.caller.SpeaksFor(a.Addrs, a.Shared); err != nil {
		return err
	}
	w.prove()
	w.known = true
	return nil
}

func (w *poolWatch) heartbeat() error {
	if w.beat == nil {
		beat := &targetpoolv1.TargetPoolWatchResponse{}
		if w.last != nil {
			beat.Version = w.version()
		}
		b, err := proto.Marshal(beat)
		if err != nil {
			return fmt.Errorf("encoding a heartbeat: %w", err)
		}
		w.beat = frame{b}
	}
	return w.send(w.beat)
}

func (w *poolWatch) version() *targetpoolv1.Version {
	return &targetpoolv1.Version{Epoch: w.server.cfg.Epoch, Revision: w.rev}
}

func assignments(a *engine.Assigned) *targetpoolv1.Assignments {
	out := &targetpoolv1.Assignments{}
	for _, s := range a.Streams {
		item := &targetpoolv1.Assignment{Stream: wireStream(s.Stream)}
		for _, ref := range s.Services {
			item.Services = append(item.Services, ref.String())
		}
		out.Items = append(out.Items, item)
	}
	return out
}

func wireStream(k stream.Key) *targetpoolv1.Stream {
	return &targetpoolv1.Stream{Namespace: k.Namespace, Trench: k.Trench, Conduit: k.Conduit, Name: k.Name}
}
