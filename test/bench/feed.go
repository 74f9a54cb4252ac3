package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// refreshPeriod is how often a TAPA of Meridio 1.x refreshes: half of the entry timeout.
const refreshPeriod = 30 * time.Second

// sharedConnections carry the watches and calls of TAPAs where not each has its own.
const sharedConnections = 25

// scene is a farm with a namespace process, and client processes for the TAPAs and the load balancers.
type scene struct {
	*world
	farm       *farm
	nsp        *server
	fleet, lbs *peer
	balancers  int
	// aside is added to the setup.
	aside string
}

// scene starts what is needed; the load balancers come later.
func (w *world) scene(ctx context.Context, size int, tls bool, args ...string) (s *scene, stop func(), err error) {
	f, err := w.farm(ctx, size)
	if err != nil {
		return nil, nil, err
	}
	nsp, err := w.startNSP(ctx, f.namespace, f.kubeconfig, tls, args...)
	if err != nil {
		return nil, nil, err
	}
	peers, hangUp, err := w.peers(ctx, 2)
	if err != nil {
		nsp.Kill()
		return nil, nil, err
	}
	stop = func() {
		hangUp()
		nsp.Kill()
	}
	return &scene{world: w, farm: f, nsp: nsp, fleet: peers[0], lbs: peers[1]}, stop, nil
}

// setup describes the scene in a row.
func (s *scene) setup() string {
	out := group(fmt.Sprint(s.farm.size)) + " targets, " + s.nsp.transport()
	if s.balancers > 0 {
		out += fmt.Sprintf(", %d LBs", s.balancers)
	}
	return out + s.aside
}

func (s *scene) connectBalancers(ctx context.Context, n int) error {
	s.balancers = n
	_, err := call[time.Duration](ctx, s.lbs, "Balancers.Connect", BalancersArgs{Dial: s.nsp.dial, Count: n})
	return err
}

// feed measures the fast path; with the largest size also what takes long.
func feed(ctx context.Context, w *world, size int, largest bool) error {
	s, stop, err := w.scene(ctx, size, true)
	if err != nil {
		return err
	}
	defer stop()
	if err := s.populate(ctx); err != nil {
		return err
	}
	if !largest {
		return s.fastPath(ctx, 100, pick(w, 100, 20), false)
	}
	for _, step := range []func(context.Context) error{s.idle, s.rates, s.floor} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	for _, n := range []int{1, 10, 100} {
		if err := s.fastPath(ctx, n, pick(w, map[int]int{1: 100, 10: 100, 100: 300}[n], 20), n == 100); err != nil {
			return err
		}
	}
	for _, step := range []func(context.Context) error{s.wakes, s.rates, s.restart} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// populate registers a target for every member. The watches share connections here; the tapas suite gives each its own.
func (s *scene) populate(ctx context.Context) error {
	_, err := call[time.Duration](ctx, s.fleet, "Fleet.Connect", FleetArgs{
		Dial: s.nsp.dial, Namespace: s.farm.namespace, Members: s.farm.size, Connections: sharedConnections,
		Streams: len(s.farm.slices), MaxTargets: 2 * perSlice, Watch: true,
	})
	if err != nil {
		return err
	}
	r, err := call[OpenReply](ctx, s.fleet, "Fleet.Open", OpenArgs{Count: s.farm.size, Parallel: 64})
	if err != nil {
		return err
	}
	if r.Opened < s.farm.size {
		return fmt.Errorf("only %d of %d targets are open: %s", r.Opened, s.farm.size, r.Failure)
	}
	s.say("%s: registered in %s", s.setup(), r.Took.Round(time.Millisecond))
	_, err = call[None](ctx, s.fleet, "Fleet.Refresh", refreshPeriod)
	return err
}

// stages are the samples of many events.
type stages struct{ announced, first, last, answered, all []time.Duration }

// fastPath flips members and measures until the load balancers know.
func (s *scene) fastPath(ctx context.Context, balancers, events int, budget bool) error {
	if err := s.connectBalancers(ctx, balancers); err != nil {
		return err
	}
	if err := s.reset(ctx); err != nil {
		return err
	}
	var st stages
	for range events / 2 {
		i := rand.IntN(s.farm.size)
		for _, ready := range []bool{false, true} {
			if err := s.event(ctx, i, ready, &st); err != nil {
				return err
			}
			wait(ctx, 10*time.Millisecond+rand.N(20*time.Millisecond))
		}
	}
	var first, last bound
	if budget {
		first, last = budgetFirst, budgetLast
	}
	setup := s.setup()
	s.report.times("slice event -> delta at the first LB", setup, st.first, first)
	s.report.times("slice event -> delta at the last LB", setup, st.last, last)
	s.report.times("API call answered -> delta at the last LB", setup, st.answered)
	s.report.times("API call sent -> slice event", setup, st.announced)
	s.report.times("API call sent -> delta at the last LB", setup, st.all)
	return s.traffic(ctx, events)
}

// reset forgets what was counted so far.
func (s *scene) reset(ctx context.Context) error {
	_, err := call[Traffic](ctx, s.lbs, "Balancers.Traffic", None{})
	if err == nil {
		_, err = call[Lists](ctx, s.fleet, "Fleet.Woken", None{})
	}
	if err == nil {
		_, err = call[Refreshed](ctx, s.fleet, "Fleet.Refreshes", None{})
	}
	return err
}

// event flips one member and takes the times. Slice events are seen by a watch of the bench's own: the API server may
// serve the namespace process a little earlier, or later.
func (s *scene) event(ctx context.Context, i int, ready bool, st *stages) error {
	m, err := s.farm.ready(ctx, i, ready)
	if err != nil {
		return err
	}
	announced, err := s.farm.seen.WaitReady(ctx, podName(i), ready)
	if err != nil {
		return err
	}
	at, err := call[[]int64](ctx, s.lbs, "Balancers.Heard", HeardArgs{
		Pod: s.farm.namespace + "/" + podName(i), On: ready, Since: m.sent.UnixNano(),
	})
	if err != nil {
		return err
	}
	first, last := time.Unix(0, slices.Min(at)), time.Unix(0, slices.Max(at))
	st.announced = append(st.announced, announced.Sub(m.sent))
	st.first = append(st.first, first.Sub(announced))
	st.last = append(st.last, last.Sub(announced))
	st.answered = append(st.answered, last.Sub(m.answered))
	st.all = append(st.all, last.Sub(m.sent))
	return nil
}

// traffic reports what the events since reset cost in bytes, and whom they woke.
func (s *scene) traffic(ctx context.Context, events int) error {
	t, err := call[Traffic](ctx, s.lbs, "Balancers.Traffic", None{})
	if err != nil {
		return err
	}
	s.report.figure("bytes to one LB for one change", s.setup(), "bytes", float64(t.Bytes)/float64(max(t.Deltas, 1)),
		fmt.Sprintf("%d deltas for %d changes; %s bytes off the wire for each, TLS and heartbeats included",
			t.Deltas, events, number(float64(t.Wire)/float64(events))), budgetBytes)
	l, err := call[Lists](ctx, s.fleet, "Fleet.Woken", None{})
	if err != nil {
		return err
	}
	s.report.figure("TAPAs woken by one change of readiness", s.setup(), "lists", float64(l.Count)/float64(events), "")
	r, err := call[Refreshed](ctx, s.fleet, "Fleet.Refreshes", None{})
	if err != nil {
		return err
	}
	s.say("%d leases refreshed meanwhile, %d failed %s", r.OK, r.Failed, r.Failure)
	return nil
}

// wakes takes members out of their slices and puts them back: each time the list of one TAPA changes.
func (s *scene) wakes(ctx context.Context) error {
	if err := s.reset(ctx); err != nil {
		return err
	}
	const members = 20
	changed := make(map[int]bool)
	for range members {
		i := rand.IntN(s.farm.size)
		for changed[i] {
			i = rand.IntN(s.farm.size)
		}
		changed[i] = true
		for _, there := range []bool{false, true} {
			edit := s.farm.remove
			if there {
				edit = s.farm.add
			}
			m, err := edit(ctx, i)
			if err != nil {
				return err
			}
			if _, err := call[[]int64](ctx, s.lbs, "Balancers.Heard", HeardArgs{
				Pod: s.farm.namespace + "/" + podName(i), On: there, Since: m.sent.UnixNano(),
			}); err != nil {
				return err
			}
		}
	}
	l, err := call[Lists](ctx, s.fleet, "Fleet.Woken", None{})
	if err != nil {
		return err
	}
	others := 0
	for _, i := range l.Members {
		if !changed[i] {
			others++
		}
	}
	s.report.figure("TAPAs woken by one change of membership", s.setup(), "lists", float64(l.Count)/(2*members),
		fmt.Sprintf("%d of %d TAPAs whose list changed, %d others", len(l.Members)-others, members, others))
	return nil
}

// rates measures Register, durable, and refreshes.
func (s *scene) rates(ctx context.Context) error {
	for _, callers := range []int{8, manyCallers} {
		for _, change := range []bool{true, false} {
			if err := s.rate(ctx, callers, change); err != nil {
				return err
			}
		}
	}
	return nil
}

// manyCallers are as many as the budgets are for.
const manyCallers = 64

// rate measures one of them.
func (s *scene) rate(ctx context.Context, callers int, change bool) error {
	what, against := "refreshes", budgetRefresh
	if change {
		what, against = "registrations, durable", budgetRegister
	}
	if callers < manyCallers {
		against = bound{} // so few wait for each other's answers
	}
	note, r, err := s.nsp.probe(ctx, s.fleet, ProbeArgs{
		Count: s.farm.size, Callers: callers, For: pick(s.world, 4*time.Second, time.Second), Change: change,
	})
	if err != nil {
		return err
	}
	s.report.figure(what, fmt.Sprintf("%s, %d callers", s.setup(), callers), "calls/s", r.perSecond(), note, against)
	return nil
}

// probe has a fleet register, and describes in a note what that took.
func (s *server) probe(ctx context.Context, fleet *peer, a ProbeArgs) (note string, r ProbeReply, err error) {
	used, err := s.using(func() error {
		r, err = call[ProbeReply](ctx, fleet, "Fleet.Probe", a)
		return err
	})
	if err != nil {
		return "", r, err
	}
	if a.Change {
		_, err = call[None](ctx, fleet, "Fleet.Settle", None{})
	}
	return fmt.Sprintf("%s; nsp used %s processors", latency(r), number(used.Seconds()/r.Took.Seconds())), r, err
}

// idle measures what the process uses while leases are refreshed, heartbeats sent, and nothing changes.
func (s *scene) idle(ctx context.Context) error {
	const d = 10 * time.Second
	used, err := s.nsp.using(func() error {
		wait(ctx, pick(s.world, d, d/5))
		return ctx.Err()
	})
	if err != nil {
		return err
	}
	s.report.figure("processors used while nothing changes", s.setup(), "processors", used.Seconds()/pick(s.world, d, d/5).Seconds(),
		"heartbeats to all, each lease refreshed and read back every 30 s")
	return nil
}

// latency describes the time that calls took, in a note.
func latency(r ProbeReply) string {
	if len(r.Each) == 0 {
		return r.Failure
	}
	slices.Sort(r.Each)
	out := fmt.Sprintf("a call takes %s / %s / %s ms", number(ms(quantile(r.Each, 0.5))), number(ms(quantile(r.Each, 0.99))),
		number(ms(r.Each[len(r.Each)-1])))
	if r.Failed > 0 {
		out += fmt.Sprintf("; %d failed: %s", r.Failed, r.Failure)
	}
	return out
}

// restart kills the process and starts it again, while leases are refreshed and load balancers come back.
func (s *scene) restart(ctx context.Context) error {
	s.nsp.Kill()
	killed := time.Now()
	if err := s.nsp.Start(ctx); err != nil {
		return err
	}
	snap, err := call[Snapshots](ctx, s.lbs, "Balancers.Snapshots", killed.UnixNano())
	if err != nil {
		return err
	}
	note := fmt.Sprintf("its first snapshot has %s targets, %s of them active", group(fmt.Sprint(snap.Size[0])), group(fmt.Sprint(snap.Active[0])))
	if snap.Stale {
		note += ", stale"
	}
	s.report.figure("killed and started again: first complete snapshot at an LB", s.setup(), "s",
		time.Unix(0, snap.At[0]).Sub(killed).Seconds(), note, budgetRestart)
	s.report.figure("killed and started again: at the last LB", s.setup(), "s",
		time.Unix(0, slices.Max(snap.At)).Sub(killed).Seconds(),
		fmt.Sprintf("the smallest first snapshot has %s active targets", group(fmt.Sprint(slices.Min(snap.Active)))))
	return nil
}
