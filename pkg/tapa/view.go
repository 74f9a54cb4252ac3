package tapa

import (
	"maps"
	"slices"

	"github.com/nordix/meridio-nsp/pkg/stream"
)

// View is what there is to see at one moment. It is not changed any more.
type View struct {
	// Connected tells whether the connector's watch says what there is.
	Connected bool
	// Cause is why it does not; nil where it has not been tried.
	Cause error
	// Trench is the one in use; empty where none is.
	Trench string
	// Rows are sorted by stream.
	Rows []Row

	changed chan struct{}
}

// Row is one stream that somebody wants, that is held, or that the connector lists.
type Row struct {
	Stream stream.Key
	Owners Owners
	Held   bool
	Status Status
	// Err is why the last attempt to open or close failed; nil where it did not.
	Err error
}

// View is the latest one; the channel is closed when there is a newer.
func (r *Reconciler) View() (*View, <-chan struct{}) {
	v := r.view.Load()
	return v, v.changed
}

// unowned are the streams that are held and not wanted.
func (v *View) unowned() []string {
	var keys []string
	for _, row := range v.Rows {
		if row.Held && row.Owners == 0 {
			keys = append(keys, row.Stream.String())
		}
	}
	return keys
}

// publish shows what changed. The lock is held.
func (r *Reconciler) publish() {
	old := r.view.Load()
	v := &View{Connected: r.session != 0, Cause: r.connError, Trench: r.trench, changed: make(chan struct{})}
	for _, k := range slices.SortedFunc(maps.Keys(r.lines), stream.Compare) {
		if l := r.lines[k]; l.owners != 0 || l.held || l.listed {
			v.Rows = append(v.Rows, Row{Stream: k, Owners: l.owners, Held: l.held, Status: r.status(l), Err: l.err})
		}
	}
	if old.same(v) {
		return
	}
	r.tell(old, v)
	r.view.Store(v)
	close(old.changed)
}

func (r *Reconciler) status(l *line) Status {
	switch {
	case r.session == 0:
		return Unavailable
	case l.listed:
		return l.status
	case l.err != nil:
		return Unavailable
	}
	return Pending
}

func (v *View) same(o *View) bool {
	return v.Connected == o.Connected && v.Trench == o.Trench && text(v.Cause) == text(o.Cause) &&
		slices.EqualFunc(v.Rows, o.Rows, func(a, b Row) bool {
			return a.Stream == b.Stream && a.Owners == b.Owners && a.Held == b.Held && a.Status == b.Status && text(a.Err) == text(b.Err)
		})
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// tell logs which streams have another status.
func (r *Reconciler) tell(old, now *View) {
	before := make(map[stream.Key]Status, len(old.Rows))
	for _, row := range old.Rows {
		before[row.Stream] = row.Status
	}
	for _, row := range now.Rows {
		if was, ok := before[row.Stream]; !ok || was != row.Status {
			r.log.Info("stream status", "stream", row.Stream.String(), "status", row.Status.String(), "owners", row.Owners.Names())
		}
		delete(before, row.Stream)
	}
	for k := range before {
		r.log.Info("stream is gone", "stream", k.String())
	}
}
