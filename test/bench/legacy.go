package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// legacyStreams is how many streams there are, as in the anchors.
const legacyStreams = 10

const legacyNamespace = "bench-legacy"

// trial is a namespace process with targets and load balancers of Meridio 1.x.
type trial struct {
	*world
	// nsp is what the clients talk to: the namespace process, or a trench process that relays to it.
	nsp, namespace *server
	fleet, lbs     *peer
	// direct is a load balancer that talks to the namespace process, where the others are behind a relay.
	direct        *peer
	targets, lbsN int
}

func (t *trial) relayed() bool { return t.nsp != t.namespace }

func (t *trial) setup() string {
	through := ""
	if t.relayed() {
		through = ", relayed"
	}
	return fmt.Sprintf("%s targets, %d 1.x LBs, plaintext%s", group(fmt.Sprint(t.targets)), t.lbsN, through)
}

// newTrial starts one. The fleet has its targets open unless they are to be opened at once.
func newTrial(ctx context.Context, w *world, targets, connections int, relayed bool, args ...string) (t *trial, stop func(), err error) {
	t = &trial{world: w, targets: targets}
	var stops []func()
	stop = func() {
		for _, s := range slices.Backward(stops) {
			s()
		}
	}
	defer func() {
		if err != nil {
			stop()
		}
	}()
	kubeconfig, err := w.namespace(ctx, legacyNamespace, legacyStreams, 2000)
	if err != nil {
		return nil, nil, err
	}
	if t.namespace, err = w.startNSP(ctx, legacyNamespace, kubeconfig, false, args...); err != nil {
		return nil, nil, err
	}
	t.nsp, stops = t.namespace, append(stops, t.namespace.Kill)
	if relayed {
		if t.nsp, err = w.startRelay(ctx, legacyNamespace, kubeconfig, t.namespace); err != nil {
			return nil, nil, err
		}
		stops = append(stops, t.nsp.Kill)
	}
	peers, hangUp, err := w.peers(ctx, 3)
	if err != nil {
		return nil, nil, err
	}
	stops = append(stops, hangUp)
	t.fleet, t.lbs, t.direct = peers[0], peers[1], peers[2]
	_, err = call[time.Duration](ctx, t.fleet, "Fleet.Connect", FleetArgs{
		Dial: t.nsp.dial, Namespace: legacyNamespace, Members: targets, Connections: connections,
		Streams: legacyStreams, MaxTargets: max(200, 2*targets/legacyStreams),
	})
	return t, stop, err
}

func (t *trial) connect(ctx context.Context, n int) error {
	t.lbsN = n
	if t.relayed() {
		a := LegacyArgs{Dial: t.namespace.dial, Count: 1, Streams: legacyStreams}
		if _, err := call[time.Duration](ctx, t.direct, "Legacy.Connect", a); err != nil {
			return err
		}
	}
	_, err := call[time.Duration](ctx, t.lbs, "Legacy.Connect", LegacyArgs{Dial: t.nsp.dial, Count: n, Streams: legacyStreams})
	return err
}

// legacy plays a trench of Meridio 1.x: no pools, load balancers that are sent whole lists, plaintext. It is what the anchors
// were measured with, so here the two stand side by side. Relayed, everybody talks to a trench process.
func legacy(ctx context.Context, w *world, targets int, relayed bool) error {
	t, stop, err := newTrial(ctx, w, targets, min(64, targets), relayed)
	if err != nil {
		return err
	}
	defer stop()
	r, err := call[OpenReply](ctx, t.fleet, "Fleet.Open", OpenArgs{Count: targets, Parallel: 64})
	if err != nil {
		return err
	}
	if r.Opened < targets {
		return fmt.Errorf("only %d of %d targets are open: %s", r.Opened, targets, r.Failure)
	}
	if _, err := call[None](ctx, t.fleet, "Fleet.Refresh", refreshPeriod); err != nil {
		return err
	}
	for _, n := range []int{1, 10, 100} {
		if err := t.connect(ctx, n); err != nil {
			return err
		}
		if err := t.rates(ctx); err != nil {
			return err
		}
		if err := t.changes(ctx); err != nil {
			return err
		}
	}
	return nil
}

// rates measures calls per second with as many callers as the anchors have, and with more.
func (t *trial) rates(ctx context.Context) error {
	a := anchorOf(t.targets, t.lbsN)
	for _, callers := range []int{8, 64} {
		for _, change := range []bool{true, false} {
			what, than := "refreshes", a.refresh
			if change {
				what, than = "Register that changes something", a.register
			}
			note, r, err := t.probe(ctx, ProbeArgs{
				Count: t.targets, Callers: callers, For: pick(t.world, time.Second, 500*time.Millisecond), Change: change,
			})
			if err != nil {
				return err
			}
			t.report.figure(what, fmt.Sprintf("%s, %d callers", t.setup(), callers), "calls/s", r.perSecond(), note,
				bound{label: "1.2", p50: than, more: true})
		}
	}
	return nil
}

// probe says in the note what each of the processes used.
func (t *trial) probe(ctx context.Context, a ProbeArgs) (note string, r ProbeReply, err error) {
	behind, err := t.namespace.using(func() error {
		note, r, err = t.nsp.probe(ctx, t.fleet, a)
		return err
	})
	if err == nil && t.relayed() {
		note += ", the namespace process " + number(behind.Seconds()/r.Took.Seconds())
	}
	return note, r, err
}

// changes measures how long a change of status takes to the last load balancer that watches the stream, which is all of them.
func (t *trial) changes(ctx context.Context) error {
	if _, err := call[None](ctx, t.lbs, "Legacy.Quiet", 200*time.Millisecond); err != nil {
		return err
	}
	if _, err := call[Volume](ctx, t.lbs, "Legacy.Volume", None{}); err != nil {
		return err
	}
	events := pick(t.world, 60, 10)
	var last, added []time.Duration
	for range events / 2 {
		number := rand.IntN(t.targets)
		for range 2 {
			c, err := call[Call](ctx, t.fleet, "Fleet.Flip", number)
			if err != nil {
				return err
			}
			list, err := call[ListReply](ctx, t.lbs, "Legacy.List", ListArgs{Stream: number % legacyStreams, Since: c.Sent})
			if err != nil {
				return err
			}
			last = append(last, time.Duration(slices.Max(list.At)-c.Sent))
			if t.relayed() {
				direct, err := call[ListReply](ctx, t.direct, "Legacy.List", ListArgs{Stream: number % legacyStreams, Since: c.Sent})
				if err != nil {
					return err
				}
				added = append(added, time.Duration(slices.Min(list.At)-direct.At[0]))
			}
			wait(ctx, rand.N(20*time.Millisecond))
		}
	}
	v, err := call[Volume](ctx, t.lbs, "Legacy.Volume", None{})
	if err != nil {
		return err
	}
	a := anchorOf(t.targets, t.lbsN)
	t.report.times("status change -> list at the last 1.x LB", t.setup(), last, bound{label: "1.2", p50: a.change[0], p99: a.change[1]})
	if t.relayed() {
		t.report.times("of it, what the relay adds to the first 1.x LB", t.setup(), added)
	}
	perLB := float64(v.Bytes) / float64(events*t.lbsN)
	t.report.figure("bytes to every 1.x LB for one change", t.setup(), "bytes", perLB,
		fmt.Sprintf("%s lists to each LB for one change", number(float64(v.Lists)/float64(events*t.lbsN))),
		bound{label: "1.2", p50: a.bytes})
	return nil
}

// legacyStorms plays the storms of the anchors: a thousand targets, each on a connection of its own, open at once and expire at
// once, with 100 load balancers that are sent whole lists.
func legacyStorms(ctx context.Context, w *world) error {
	const targets, timeout = 1000, 15 * time.Second
	t, stop, err := newTrial(ctx, w, targets, 0, false, "--entry-timeout="+timeout.String())
	if err != nil {
		return err
	}
	defer stop()
	if err := t.connect(ctx, 100); err != nil {
		return err
	}
	r, err := call[OpenReply](ctx, t.fleet, "Fleet.Open", OpenArgs{Count: targets})
	if err != nil {
		return err
	}
	t.stormRow(r, t.setup(), fmt.Sprintf("1.2: %d of 1,000 open after 180 s", anchorOpened))
	// Nobody refreshes from here on, except the callers of the probe, who register 100 of the targets again and again.
	const alive = 100
	_, p, err := t.nsp.probe(ctx, t.fleet, ProbeArgs{
		First: targets - alive, Count: alive, Callers: 8, For: timeout + 5*time.Second, Change: true, Pause: 5 * time.Millisecond,
	})
	if err != nil {
		return err
	}
	t.report.times(fmt.Sprintf("%d expire at once: Register meanwhile", targets-alive), t.setup()+", 8 callers", p.Each)
	t.report.figure(fmt.Sprintf("%d expire at once: longest Register", targets-alive), t.setup()+", 8 callers", "s",
		slices.Max(p.Each).Seconds(), "", bound{label: "1.2", p50: anchorExpiry.Seconds()})
	return nil
}

// stormRow reports how an opening storm went.
func (w *world) stormRow(r OpenReply, setup, note string) {
	if r.Failure != "" {
		note += "; a failed try: " + r.Failure
	}
	w.report.figure("all open at once: until all are open", setup, "s", r.Took.Seconds(),
		fmt.Sprintf("%s open after %s tries; %s", group(fmt.Sprint(r.Opened)), group(fmt.Sprint(r.Tries)), note))
	w.report.times("all open at once: each", setup, r.Each)
}
