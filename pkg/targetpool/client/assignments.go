package client

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
)

// AssignmentList is the whole list of streams that a workload shall hold. An empty one is an order to close what the pool opened.
type AssignmentList struct {
	// Items are sorted by stream.
	Items   []*targetpoolv1.Assignment
	Version Version
	// Received is when the list came out of the stream.
	Received time.Time
}

// AssignmentsConfig says for whom to watch and whom to tell.
type AssignmentsConfig struct {
	Workload *targetpoolv1.Workload
	// Handler is called for the first list and for every later one that differs from the one before.
	Handler func(AssignmentList)
}

// Assignments keeps the streams of one workload up to date.
type Assignments struct {
	*line
	workload *targetpoolv1.Workload
	handler  func(AssignmentList)

	// Used by Run only.
	began bool
	items []*targetpoolv1.Assignment

	mu       sync.Mutex
	report   *targetpoolv1.Report
	reported chan struct{} // Holds a token when report changed.
}

// WatchAssignments makes an Assignments; its Run does the work.
func (c *Client) WatchAssignments(config AssignmentsConfig) (*Assignments, error) {
	switch {
	case config.Handler == nil:
		return nil, errors.New("assignments: the handler is missing")
	case config.Workload.GetPod() == "" && config.Workload.GetAddress() == "" && config.Workload.GetExternalTarget() == "":
		return nil, errors.New("assignments: the workload has neither pod nor address, and is no ExternalTarget")
	}
	a := &Assignments{workload: config.Workload, handler: config.Handler, reported: make(chan struct{}, 1)}
	a.line = &line{
		client: c,
		log: c.config.Log.With("watch", "assignments", "namespace", config.Workload.GetNamespace(),
			"workload", cmp.Or(config.Workload.GetPod(), config.Workload.GetExternalTarget(), config.Workload.GetAddress())),
		attempt: a.receive,
	}
	return a, nil
}

// Run watches until ctx ends, which is no error, and a running handler returns. After that it can run again. Two runs at a time are an error.
func (a *Assignments) Run(ctx context.Context) error { return a.run(ctx) }

// Report tells the server what the sidecar knows of its pod, complete each time. It never waits: the latest report is sent
// as soon as there is a stream, and again on every new one. It can be called at any time, also before Run and by the handler.
func (a *Assignments) Report(report *targetpoolv1.Report) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.report != nil && proto.Equal(a.report, report) {
		return
	}
	a.report = proto.CloneOf(report)
	select {
	case a.reported <- struct{}{}:
	default:
	}
}

func (a *Assignments) latest() *targetpoolv1.Report {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.report
}

type poolStream = grpc.BidiStreamingClient[targetpoolv1.TargetPoolWatchRequest, targetpoolv1.TargetPoolWatchResponse]

func (a *Assignments) receive(ctx context.Context, conn grpc.ClientConnInterface, p *pulse) error {
	ctx, cancel := context.WithCancel(ctx)
	var sender sync.WaitGroup
	defer sender.Wait()
	defer cancel()
	stream, err := targetpoolv1.NewTargetPoolClient(conn).Watch(ctx)
	if err != nil {
		return err
	}
	sender.Go(func() { a.send(ctx, stream) })
	var last *targetpoolv1.Version
	for {
		m, err := receive(p, stream.Recv)
		if err == nil {
			last, err = a.take(m, last, p)
		}
		if err != nil {
			return err
		}
	}
}

// send opens with the workload and what is to be reported, then sends every later report. A failed Send ends the stream, and
// Recv tells why.
func (a *Assignments) send(ctx context.Context, stream poolStream) {
	sent := a.latest()
	err := stream.Send(&targetpoolv1.TargetPoolWatchRequest{Workload: a.workload, Report: sent})
	for err == nil {
		select {
		case <-ctx.Done():
			return
		case <-a.reported:
		}
		if report := a.latest(); report != sent {
			sent = report
			err = stream.Send(&targetpoolv1.TargetPoolWatchRequest{Report: report})
		}
	}
	if !errors.Is(err, io.EOF) {
		a.log.Debug("report was not sent", "error", err)
	}
}

// take returns the version that the stream reached.
func (a *Assignments) take(m *targetpoolv1.TargetPoolWatchResponse, last *targetpoolv1.Version, p *pulse) (*targetpoolv1.Version, error) {
	if m.GetAssignments() == nil {
		if m.GetVersion() != nil && !proto.Equal(m.GetVersion(), last) {
			return last, lostf("the heartbeat says %v, the last list was %v", versionOf(m.GetVersion()), versionOf(last))
		}
		return last, nil
	}
	received := time.Now()
	p.committed()
	items := sorted(m.GetAssignments().GetItems())
	if a.began && slices.EqualFunc(a.items, items, func(x, y *targetpoolv1.Assignment) bool { return proto.Equal(x, y) }) {
		return m.GetVersion(), nil
	}
	a.began, a.items = true, items
	a.handler(AssignmentList{Items: items, Version: versionOf(m.GetVersion()), Received: received})
	return m.GetVersion(), nil
}

// sorted puts a list into an order that does not depend on the server's.
func sorted(items []*targetpoolv1.Assignment) []*targetpoolv1.Assignment {
	for _, item := range items {
		slices.Sort(item.GetServices())
	}
	return slices.SortedFunc(slices.Values(items), func(x, y *targetpoolv1.Assignment) int {
		a, b := x.GetStream(), y.GetStream()
		return cmp.Or(
			cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetTrench(), b.GetTrench()),
			cmp.Compare(a.GetConduit(), b.GetConduit()), cmp.Compare(a.GetName(), b.GetName()))
	})
}
