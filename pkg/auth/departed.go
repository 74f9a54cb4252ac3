package auth

import "sync"

// Departed are the pods that have left their slices in this run, which may have been their end.
type Departed struct {
	mu   sync.Mutex
	pods map[string]struct{}
}

// maxDeparted bounds them; beyond, those so far are forgotten.
const maxDeparted = 100_000

// Listed says that a pod came to be in some slice that counts, or left the last one. It does not block.
func (d *Departed) Listed(podUID string, listed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pods == nil || len(d.pods) >= maxDeparted {
		d.pods = make(map[string]struct{})
	}
	if listed {
		delete(d.pods, podUID)
	} else {
		d.pods[podUID] = struct{}{}
	}
}

// Has tells whether a pod is one of them. It does not block.
func (d *Departed) Has(podUID string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, there := d.pods[podUID]
	return there
}
