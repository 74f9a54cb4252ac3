package conformance

import (
	"sync"

	nspv1 "github.com/nordix/meridio-nsp/api/nsp/v1"
)

// History is what clients did and were told. Instants are numbers that grow; each target is written by one client, one write after the other.
type History struct {
	// Writes are by target, in their order; the version of a write is its place, from 1. Version 0 is that there is no target.
	Writes  map[string][]*Write
	Watches []*WatchRecord
}

// Write is one Register or Unregister.
type Write struct {
	Began, Ended int
	// Acked is set where it returned OK. Of another one nobody knows whether it was done, but it is not done after it ended.
	Acked bool
	// Absent is set in an Unregister; Status is what a Register asked for.
	Absent bool
	Status nspv1.Target_Status
}

// WatchRecord is one Watch.
type WatchRecord struct {
	// Status and Stream filter; an empty stream is all.
	Status nspv1.Target_Status
	Stream string
	Opened int
	// Broken is set where it ended before its client wanted that.
	Broken bool
	// Open is set where it was open at the end, when all writes had been acknowledged or given up for good.
	Open  bool
	Views []*View
}

// View is one list.
type View struct {
	Received int
	// Targets has those that are shown.
	Targets map[string]Shown
}

// Shown is how a list shows a target.
type Shown struct {
	Version int
	Status  nspv1.Target_Status
	Stream  string
}

// recorder writes a history.
type recorder struct {
	mu      sync.Mutex
	instant int
	history *History
}

func newRecorder() *recorder {
	return &recorder{history: &History{Writes: make(map[string][]*Write)}}
}

func (r *recorder) now() int {
	r.instant++
	return r.instant
}

// begin notes a write that begins, and returns its version.
func (r *recorder) begin(target string, w *Write) (version int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w.Began = r.now()
	r.history.Writes[target] = append(r.history.Writes[target], w)
	return len(r.history.Writes[target])
}

func (r *recorder) end(w *Write, acked bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w.Ended, w.Acked = r.now(), acked
}

func (r *recorder) open(w *WatchRecord) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w.Opened = r.now()
	r.history.Watches = append(r.history.Watches, w)
}

func (r *recorder) view(w *WatchRecord, targets map[string]Shown) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w.Views = append(w.Views, &View{Received: r.now(), Targets: targets})
}

// change runs f while nothing is recorded.
func (r *recorder) change(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}
