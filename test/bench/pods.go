package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nordix/meridio-nsp/test/cluster"
	"github.com/nordix/meridio-nsp/test/play"
)

// realPods is how many pods the pods suite has, and podBalancers how many load balancers.
const (
	realPods     = 20
	podBalancers = 10
)

// pods flips real pods, whose slices the real controller writes, with the fast path and without.
func pods(ctx context.Context, w *world) error {
	const namespace = "bench-pods"
	kubeconfig, err := w.namespace(ctx, namespace, 1, 100)
	if err != nil {
		return err
	}
	_, err = w.cluster.Service(ctx, cluster.ServiceConfig{
		Namespace: namespace, Name: "web", Labels: play.PoolLabels(trench, conduit, streamName(0)),
		Selector: map[string]string{"app": "web"},
	})
	if err != nil {
		return err
	}
	var made []Pod
	for i := range realPods {
		p, err := w.cluster.Pod(ctx, cluster.PodConfig{
			Namespace: namespace, Name: podName(i), Labels: map[string]string{"app": "web"}, Ready: true,
		})
		if err != nil {
			return err
		}
		made = append(made, Pod{Name: p.Name, UID: string(p.UID), Address: secondary(i) + "/24"})
	}
	fast, err := flipPods(ctx, w, namespace, kubeconfig, made, "fast path")
	if err != nil {
		return err
	}
	// As the proposal has it: an unready pod loses its stream, its TAPA unregisters, and only then the load balancer hears.
	slow, err := flipPods(ctx, w, namespace, kubeconfig, made, "fast path off", "--readiness-push=false", "--assignment=ready")
	if err != nil {
		return err
	}
	for i, what := range []string{"not ready", "ready again"} {
		w.report.figure("pod "+what+": slice event -> delta, off : on", fmt.Sprintf("%d pods, mTLS, %d LBs", realPods, podBalancers), "times",
			median(slow[i])/max(median(fast[i]), 1e-9), "p50 without the fast path over p50 with it")
	}
	return nil
}

func median(samples []time.Duration) float64 {
	return ms(quantile(slices.Sorted(slices.Values(samples)), 0.5))
}

// flipPods measures one way of serving them and returns the samples from slice event to the last delta, of pods that became
// unready and of those that became ready.
func flipPods(ctx context.Context, w *world, namespace, kubeconfig string, made []Pod, how string, args ...string) (
	[2][]time.Duration, error,
) {
	var none, last [2][]time.Duration
	nsp, err := w.startNSP(ctx, namespace, kubeconfig, true, args...)
	if err != nil {
		return none, err
	}
	defer nsp.Kill()
	peers, hangUp, err := w.peers(ctx, 2)
	if err != nil {
		return none, err
	}
	defer hangUp()
	if _, err := call[None](ctx, peers[0], "Sidecars.Start", SidecarsArgs{Dial: nsp.dial, Namespace: namespace, Pods: made}); err != nil {
		return none, err
	}
	if _, err := call[None](ctx, peers[0], "Sidecars.Opened", None{}); err != nil {
		return none, err
	}
	if _, err := call[time.Duration](ctx, peers[1], "Balancers.Connect", BalancersArgs{Dial: nsp.dial, Count: podBalancers}); err != nil {
		return none, err
	}
	seen, err := play.WatchSlices(ctx, w.cluster.Client(), namespace)
	if err != nil {
		return none, err
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	go func() { _ = seen.Run(watching) }()
	var announced, all [2][]time.Duration
	for n := range pick(w, 100, 10) {
		for i, ready := range []bool{false, true} {
			pod := made[n%len(made)].Name
			patched, event, heard, err := flipPod(ctx, w, seen, peers[1], namespace, pod, ready)
			if err != nil {
				return none, fmt.Errorf("%s, ready=%v of %s: %w", how, ready, pod, err)
			}
			announced[i] = append(announced[i], event.Sub(patched))
			last[i] = append(last[i], heard.Sub(event))
			all[i] = append(all[i], heard.Sub(patched))
			wait(ctx, 20*time.Millisecond)
		}
	}
	for i, what := range []string{"not ready", "ready again"} {
		setup := fmt.Sprintf("%d pods, mTLS, %d LBs, %s", len(made), podBalancers, how)
		w.report.times("pod "+what+": status patch -> slice event", setup, announced[i])
		w.report.times("pod "+what+": slice event -> delta at the last LB", setup, last[i])
		w.report.times("pod "+what+": status patch -> delta at the last LB", setup, all[i])
	}
	return last, nil
}

// flipPod changes one pod and returns when that was patched, when a slice said so, and when the last load balancer heard.
func flipPod(ctx context.Context, w *world, seen *play.Slices, lbs *peer, namespace, pod string, ready bool) (
	patched, event, heard time.Time, err error,
) {
	if patched, err = w.cluster.SetReady(ctx, namespace, pod, ready); err != nil {
		return patched, event, heard, err
	}
	if event, err = seen.WaitReady(ctx, pod, ready); err != nil {
		return patched, event, heard, err
	}
	at, err := call[[]int64](ctx, lbs, "Balancers.Heard", HeardArgs{Pod: namespace + "/" + pod, On: ready, Since: patched.UnixNano()})
	if err == nil {
		heard = time.Unix(0, slices.Max(at))
	}
	return patched, event, heard, err
}
