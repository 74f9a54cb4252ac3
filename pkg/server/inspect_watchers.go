package server

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/pkg/engine"
)

// audience is who watches now, for people who look in. The zero value is nobody.
type audience struct {
	mu        sync.Mutex
	receivers map[*recipient]struct{}
	sidecars  map[*poolWatch]*attendance
}

// recipient is somebody who is told of targets.
type recipient struct {
	kind    targetpoolv1.ReceiverInfo_Kind
	conduit *targetpoolv1.Conduit
	stream  string
	caller  auth.Caller
	since   time.Time
	// sent is the revision of the last message.
	sent atomic.Uint64
}

// attendance is a sidecar's watch, as seen from outside of it.
type attendance struct {
	caller auth.Caller
	since  time.Time
	// told is the last list that was sent.
	told atomic.Pointer[targetpoolv1.Assignments]
}

// receives notes a receiver until what it returns is called.
func (a *audience) receives(r *recipient) (leave func()) {
	r.since = time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.receivers == nil {
		a.receivers = make(map[*recipient]struct{})
	}
	a.receivers[r] = struct{}{}
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.receivers, r)
	}
}

// attends notes the watch of a sidecar, and what it is sent from now on, until what it returns is called.
func (a *audience) attends(w *poolWatch) (leave func()) {
	seen := &attendance{caller: w.caller, since: time.Now()}
	send := w.send
	w.send = func(m any) error {
		if list, ok := m.(*targetpoolv1.TargetPoolWatchResponse); ok && list.GetAssignments() != nil {
			seen.told.Store(list.GetAssignments())
		}
		return send(m)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.sidecars == nil {
		a.sidecars = make(map[*poolWatch]*attendance)
	}
	a.sidecars[w] = seen
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.sidecars, w)
	}
}

// receiverInfos are all receivers, the oldest first.
func (a *audience) receiverInfos() []*targetpoolv1.ReceiverInfo {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []*targetpoolv1.ReceiverInfo
	for r := range a.receivers {
		out = append(out, &targetpoolv1.ReceiverInfo{
			Kind: r.kind, Conduit: r.conduit, Stream: r.stream, Peer: peerName(r.caller), Account: accountName(r.caller),
			Since: timestamppb.New(r.since), Revision: r.sent.Load(),
		})
	}
	slices.SortFunc(out, func(x, y *targetpoolv1.ReceiverInfo) int { return bySince(x.GetSince(), y.GetSince()) })
	return out
}

// sidecarInfos are the watches for a pod or, without its name, for all pods of a namespace; the oldest first. A watch that names
// an address is found by those of the workload.
func (a *audience) sidecarInfos(is func(engine.Workload) bool) []*targetpoolv1.SidecarInfo {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []*targetpoolv1.SidecarInfo
	for w, seen := range a.sidecars {
		if is(w.workload) {
			out = append(out, sidecarInfo(w, seen))
		}
	}
	slices.SortFunc(out, func(x, y *targetpoolv1.SidecarInfo) int { return bySince(x.GetSince(), y.GetSince()) })
	return out
}

func sidecarInfo(w *poolWatch, seen *attendance) *targetpoolv1.SidecarInfo {
	out := &targetpoolv1.SidecarInfo{
		Workload: &targetpoolv1.Workload{Namespace: w.workload.Namespace, Pod: w.workload.Pod, PodUid: w.workload.PodUID},
		Peer:     peerName(seen.caller), Account: accountName(seen.caller), Since: timestamppb.New(seen.since),
	}
	if w.workload.External {
		out.Workload = &targetpoolv1.Workload{Namespace: w.workload.Namespace, ExternalTarget: w.workload.Pod}
	}
	if w.workload.Addr.IsValid() {
		out.Workload.Address = w.workload.Addr.String()
	}
	if list := seen.told.Load(); list != nil {
		out.Told = true
		for _, item := range list.GetItems() {
			out.Streams = append(out.Streams, item.GetStream())
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	out.Proven = w.proven
	if w.report != nil {
		out.Owners = w.report.HasOwners
		for _, addr := range w.report.Addrs {
			out.Addresses = append(out.Addresses, addr.String())
		}
		for _, k := range w.report.Application {
			out.Application = append(out.Application, wireStream(k))
		}
	}
	return out
}

func bySince(a, b *timestamppb.Timestamp) int {
	return cmp.Or(cmp.Compare(a.GetSeconds(), b.GetSeconds()), cmp.Compare(a.GetNanos(), b.GetNanos()))
}

func peerName(c auth.Caller) string {
	if !c.Addr.IsValid() {
		return ""
	}
	return c.Addr.String()
}

func accountName(c auth.Caller) string {
	if c.Account == (auth.ServiceAccount{}) {
		return ""
	}
	return c.Account.String()
}
