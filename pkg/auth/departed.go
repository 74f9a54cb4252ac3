package auth

import (
	"sync"
	"time"
)

// Departed are the pods that have left their slices in this run, which may have been their end.
type Departed struct {
	mu sync.Mutex
	// pods have the time at which each was last found to be there although it had left; zero where it was not.
	pods map[string]time.Time
	left chan struct{}
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
	if d.pods == nil || len(d.pods) >= maxDeparted {
		d.pods = make(map[string]time.Time)
	}
	if listed {
		delete(d.pods, podUID)
		return
	}
	d.pods[podUID] = time.Time{}
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
	if _, left := d.pods[podUID]; !left {
		return
	}
	d.pods[podUID] = time.Time{}
	if is {
		d.pods[podUID] = time.Now()
	}
}

// Gone tells whether a pod has left its slices and has not shown itself since: then others may have what was its own. It does not
// block.
func (d *Departed) Gone(podUID string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	found, left := d.pods[podUID]
	return left && (found.IsZero() || time.Since(found) > foundLately)
}
