package kube

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// pauses grow from 0.2 s to 5 s, each longer by up to its half: an API server that comes back is found within seconds,
// and not by everybody at once.
func pauses() *wait.Backoff {
	return &wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Jitter: 0.5, Cap: 5 * time.Second, Steps: 16}
}

// lasting is how long a run takes at least that was no failure: one that is cut at once, however well it began, is tried
// again with growing pauses too.
const lasting = 5 * time.Second

// forever repeats f until ctx ends. The pauses in between start anew after a run that lasted.
func forever(ctx context.Context, f func(context.Context)) {
	pause := pauses()
	for ctx.Err() == nil {
		begin := time.Now()
		f(ctx)
		if time.Since(begin) >= lasting {
			pause = pauses()
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause.Step()):
		}
	}
}
