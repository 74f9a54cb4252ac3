package auth

import (
	"sync"
	"time"
)

// Departed are the pods that have left their slices in this run, which may have been their end.
type Departed struct {
	mu   sync.Mutex
	pods map[string]departure
	left chan struct{}
}

// departure is what is known of a pod that has left.
type departure struct {
	// found is when it was last found to be there although it had left; zero where it was not.
	found time.Time
	// over is set where it is known to be no more, whatever is found.
	over bool
}

const (
	// maxDeparted bounds them; beyond, those so far are forgotten.
	maxDeparted = 100_000
	// foundLately is how long a pod counts as there that was found: longer than TAPAs take between two refreshes.
	foundLately = 75 * time.Second
)

// Listed says that a pod came to be in some slice that counts, or left the last one. It does not block.
func (d *Departed) Listed(podUID string, listed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.makeRoom()
	if listed {
		delete(d.pods, podUID)
		return
	}
	d.pods[podUID] = departure{over: d.pods[podUID].over}
	d.tell()
}

// makeRoom is called with the lock held.
func (d *Departed) makeRoom() {
	if d.pods == nil || len(d.pods) >= maxDeparted {
		d.pods = make(map[string]departure)
	}
}

// over says that a pod is no more, whatever the API server may say of its tokens for a while.
func (d *Departed) over(podUID string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.makeRoom()
	d.pods[podUID] = departure{over: true}
	d.tell()
}

// tell is called with the lock held.
func (d *Departed) tell() {
	select {
	case d.signal() <- struct{}{}:
	default:
	}
}

// Left has something whenever pods have left since it was last read. It is for one reader.
func (d *Departed) Left() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.signal()
}

// signal is called with the lock held.
func (d *Departed) signal() chan struct{} {
	if d.left == nil {
		d.left = make(chan struct{}, 1)
	}
	return d.left
}

// Has tells whether a pod is one of them. It does not block.
func (d *Departed) Has(podUID string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, there := d.pods[podUID]
	return there
}

// found says that a pod is there, though it may have left, or, if it has left, that it is not.
func (d *Departed) found(podUID string, is bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, left := d.pods[podUID]
	if !left {
		return
	}
	p.found = time.Time{}
	if is {
		p.found = time.Now()
	}
	d.pods[podUID] = p
}

// Gone tells whether a pod has left its slices and has not shown itself since: then others may have what was its own. It does not
// block.
func (d *Departed) Gone(podUID string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, left := d.pods[podUID]
	return left && (p.over || p.found.IsZero() || time.Since(p.found) > foundLately)
}
