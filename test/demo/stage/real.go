package stage

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/nordix/meridio-nsp/test/demo/traffic"
)

// phase is something that happens under load, in both namespaces at once.
type phase struct {
	what, why string
	// short is for the summary.
	short string
	do    func(context.Context, *fabric) error
	// dead are the targets whose applications die.
	dead []int
	// takers are the targets that take all packets in the end; with none all are lost, and that counts for nothing.
	takers []int
	// hitless phases lose no packet; endless ones go on in blue when they are over in red, and are not in the sums.
	hitless, endless bool
}

// phaseResult is when a phase was.
type phaseResult struct {
	phase
	began, ended time.Time
}

// realPackets are played where there are network namespaces.
func realPackets(w *world) []scene {
	if !w.real {
		return nil
	}
	scenes := []scene{{
		what: "Real packets: Service real is the pool of stream-r, with three pods",
		why: "A client, a load balancer and the pods have a network namespace each. Pods run the sidecar with the connector interface, the " +
			"load balancer is stateless-lb, which forwards in the kernel. The client sends " +
			fmt.Sprintf("%d UDP packets a second from %d ports, and makes %d TCP connections. ", packetsPerSecond, flowsOfClient, connectionsPerSecond) +
			"A packet is lost when no application has taken it.",
		do:     func(ctx context.Context, w *world) error { return w.startReal(ctx) },
		expect: []expectation{takenBy(1, 2, 3)},
	}}
	for _, p := range phases() {
		scenes = append(scenes, scene{
			what: p.what, why: p.why, do: func(ctx context.Context, w *world) error { return w.underLoad(ctx, p) }, expect: p.expect(),
		})
	}
	return scenes
}

func phases() []phase { return slices.Concat(deaths(), scalings(), restartsUnderLoad()) }

func deaths() []phase {
	return []phase{
		dies(1, "The application ends, and at the same moment the kubelet reports it: that the kubelet needs a while to notice is not shown. In red "+
			"the load balancer is told at once; in blue the sidecar is told to close the stream first.", 2, 3),
		returns(1, 1, 2, 3),
		dies(2, "Once more.", 1, 3),
		returns(2, 1, 2, 3),
		{
			what: "Pod real-3 is deleted, its application ends at once; real-4 takes its place", short: "real-3 is deleted",
			do: replaced(3, 4), dead: []int{3}, takers: []int{1, 2, 4},
		},
	}
}

func scalings() []phase {
	return []phase{
		{
			what: "real is scaled from 3 to 12", short: "scaled from 3 to 12",
			do: added(between(5, 13)...), takers: append([]int{1, 2}, between(4, 13)...),
		},
		{
			what: "real is scaled to 0: the applications serve on for a second, then all ends", short: "scaled from 12 to 0",
			why: "There is nobody left, so what is sent is lost.",
			do:  removed(append([]int{1, 2}, between(4, 13)...)...),
		},
		{
			what: "real is scaled to 3 again", short: "scaled from 0 to 3", do: added(14, 15, 16), takers: []int{14, 15, 16},
			why: "Packets are lost until the first pod is there.",
		},
	}
}

func restartsUnderLoad() []phase {
	return []phase{
		{
			what: "The nsp is killed, and started again", short: "the nsp is killed",
			why: "Load balancer and sidecars keep what they have.",
			do: func(ctx context.Context, f *fabric) error {
				return killed(nspProcess, "lb-1", "lb-2")(ctx, f.side)
			},
			takers: []int{14, 15, 16}, hitless: true,
		},
		{
			what: "The load balancer is killed, and started again a second later", short: "the LB is killed",
			why: "The kernel goes on forwarding; the new process takes over what is there.",
			do:  func(ctx context.Context, f *fabric) error { return f.restartBalancer(ctx) }, takers: []int{14, 15, 16},
			hitless: true,
		},
		dies(15, "To see that the new processes do their work.", 14, 16),
		{
			what: "The node of real-14 fails: its sidecar dies too", short: "real-14's node fails", dead: []int{14}, takers: []int{16}, endless: true,
			why: "In blue nobody is left to close the stream. The pod takes packets until its registration ends, after 60 s; the demo does not " +
				"wait for that. (How long the cluster takes to notice is not shown here either.)",
			do: func(ctx context.Context, f *fabric) error {
				t := f.target(14)
				t.sink.Die()
				t.room.sidecar.Process().Signal(syscall.SIGKILL)
				return setReady(t.name, false)(ctx, f.side)
			},
		},
	}
}

// expect is what must come of it.
func (p phase) expect() []expectation {
	if p.endless {
		return []expectation{takenInRed(p.takers)}
	}
	all := []expectation{takenBy(p.takers...)}
	if p.hitless {
		all = append(all, expectation{says: "no packet was lost meanwhile, in both namespaces", holds: func(_ context.Context, w *world) bool {
			r := w.phases[len(w.phases)-1]
			return w.red.fabric.udp.Count(r.began, r.ended).LostAll() == 0 && w.blue.fabric.udp.Count(r.began, r.ended).LostAll() == 0
		}})
	}
	return all
}

func dies(number int, why string, takers ...int) phase {
	name := fmt.Sprintf("real-%d", number)
	return phase{
		what: "The application of " + name + " dies, and the pod turns NotReady", why: why, short: name + " dies",
		dead: []int{number}, takers: takers,
		do: func(ctx context.Context, f *fabric) error {
			f.target(number).sink.Die()
			return setReady(name, false)(ctx, f.side)
		},
	}
}

func returns(number int, takers ...int) phase {
	name := fmt.Sprintf("real-%d", number)
	return phase{
		what: "It lives again, and the pod turns Ready", short: name + " comes back", takers: takers,
		do: func(ctx context.Context, f *fabric) error {
			if err := f.target(number).sink.Live(); err != nil {
				return err
			}
			return setReady(name, true)(ctx, f.side)
		},
	}
}

func replaced(old, young int) func(context.Context, *fabric) error {
	return func(ctx context.Context, f *fabric) error {
		f.target(old).sink.Die()
		if err := terminate(f.target(old).name)(ctx, f.side); err != nil {
			return err
		}
		if err := f.addTarget(ctx, young); err != nil {
			return err
		}
		pause(ctx, time.Second)
		return f.removeTarget(ctx, old)
	}
}

func added(numbers ...int) func(context.Context, *fabric) error {
	return func(ctx context.Context, f *fabric) error {
		return each(numbers, func(n int) error { return f.addTarget(ctx, n) })
	}
}

func removed(numbers ...int) func(context.Context, *fabric) error {
	return func(ctx context.Context, f *fabric) error {
		err := each(numbers, func(n int) error { return terminate(f.target(n).name)(ctx, f.side) })
		if err != nil {
			return err
		}
		pause(ctx, time.Second)
		return each(numbers, func(n int) error { return f.removeTarget(ctx, n) })
	}
}

func (f *fabric) restartBalancer(ctx context.Context) error {
	f.balancer.Kill()
	f.side.journal.add(event{at: time.Now(), kind: life, who: "stateless-lb", what: "killed"})
	pause(ctx, time.Second)
	err := f.startBalancer(ctx)
	f.side.journal.add(event{at: time.Now(), kind: life, who: "stateless-lb", what: "started again"})
	return err
}

// takenBy: just these targets take all packets, in both namespaces.
func takenBy(numbers ...int) expectation {
	says := "all packets are taken, by " + podNames(numbers) + ", in both namespaces"
	if len(numbers) == 0 {
		says = "no packet comes to any pod, in both namespaces"
	}
	return expectation{says: says, holds: func(_ context.Context, w *world) bool {
		return w.red.fabric.settled(numbers) && w.blue.fabric.settled(numbers)
	}}
}

func takenInRed(numbers []int) expectation {
	return expectation{
		says:  "all packets are taken, by " + podNames(numbers) + ", in red",
		holds: func(_ context.Context, w *world) bool { return w.red.fabric.settled(numbers) },
	}
}

func podNames(numbers []int) string {
	var pods []string
	for _, n := range numbers {
		pods = append(pods, fmt.Sprintf("real-%d", n))
	}
	return names(pods)
}

// settled tells whether just these targets take all packets now; none is when no packet comes to anybody.
func (f *fabric) settled(numbers []int) bool {
	if len(numbers) > 0 {
		return f.sharedBy(numbers)
	}
	c := f.now()
	return c.Sent > 0 && c.Lost[traffic.Nowhere] == c.Sent
}

// startReal makes the fabrics, three pods in each, and begins to send.
func (w *world) startReal(ctx context.Context) error {
	w.realBegan = time.Now()
	return w.both(func(s *side) error {
		if err := s.openFabric(ctx, w.realBegan); err != nil {
			return err
		}
		f := s.fabric
		if _, err := s.cluster.Service(ctx, realService(s.name)); err != nil {
			return err
		}
		if err := added(1, 2, 3)(ctx, f); err != nil {
			return err
		}
		f.stopLoad = s.background(traffic.Load{
			Space: f.client.space, To: realVIP, Packets: packetsPerSecond, Connections: connectionsPerSecond, Flows: flowsOfClient,
			UDP: f.udp, TCP: f.tcp,
		}.Run)
		return nil
	})
}

// both does something in both namespaces at once.
func (w *world) both(do func(*side) error) error {
	sides := []*side{w.red, w.blue}
	return each([]int{0, 1}, func(i int) error {
		if err := do(sides[i]); err != nil {
			return fmt.Errorf("in %s: %w", sides[i].name, err)
		}
		return nil
	})
}

// afterwards is how long a phase goes on when all is as it should be.
const afterwards = 700 * time.Millisecond

// underLoad has a phase happen, and shows what becomes of the packets meanwhile.
func (w *world) underLoad(ctx context.Context, p phase) error {
	began := time.Now()
	done := make(chan error, 1)
	go func() { done <- w.both(func(s *side) error { return p.do(ctx, s.fabric) }) }()
	live := &display{world: w, began: began}
	defer live.draw()
	if err := live.until(ctx, done); err != nil {
		return err
	}
	settled := p.expect()[0].holds
	for !settled(ctx, w) && ctx.Err() == nil { // what is wrong is said by the expectation
		live.tick(ctx)
	}
	over, more := time.Now(), afterwards
	if p.endless {
		more *= 3
	}
	for time.Since(over) < more && ctx.Err() == nil {
		live.tick(ctx)
	}
	w.phases = append(w.phases, phaseResult{p, began, time.Now().Add(-traffic.Grace)})
	return nil
}
