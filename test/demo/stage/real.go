package stage

import (
	"context"
	"fmt"
	"os"
	"slices"
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
			what: p.what, why: p.why, do: func(ctx context.Context, w *world) error { return w.underLoad(ctx, p) },
			expect: []expectation{takenBy(p.takers...)},
		})
	}
	return scenes
}

func phases() []phase {
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
		{
			what: "The nsp is killed, and started again", short: "the nsp is killed",
			why: "Load balancer and sidecars keep what they have.",
			do: func(ctx context.Context, f *fabric) error {
				return killed(nspProcess, "lb-1", "lb-2")(ctx, f.side)
			},
			takers: []int{14, 15, 16},
		},
		{
			what: "The load balancer is killed, and started again a second later", short: "the LB is killed",
			why: "The kernel goes on forwarding; the new process takes over what is there.",
			do:  func(ctx context.Context, f *fabric) error { return f.restartBalancer(ctx) }, takers: []int{14, 15, 16},
		},
		dies(15, "To see that the new processes do their work.", 14, 16),
	}
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
	var pods []string
	for _, n := range numbers {
		pods = append(pods, fmt.Sprintf("real-%d", n))
	}
	says := fmt.Sprintf("all packets are taken, by %s, in both namespaces", names(pods))
	if len(pods) == 0 {
		says = "no packet comes to any pod, in both namespaces"
	}
	return expectation{says: says, holds: func(_ context.Context, w *world) bool {
		return w.red.fabric.settled(numbers) && w.blue.fabric.settled(numbers)
	}}
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
		s.background(traffic.Load{
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
	defer live.end()
	err := live.until(ctx, done)
	if err != nil {
		return err
	}
	holds := takenBy(p.takers...).holds
	for !holds(ctx, w) && ctx.Err() == nil { // what is wrong is said by the expectation
		live.tick(ctx)
	}
	settled := time.Now()
	for time.Since(settled) < afterwards && ctx.Err() == nil {
		live.tick(ctx)
	}
	w.phases = append(w.phases, phaseResult{p, began, time.Now().Add(-traffic.Grace)})
	return nil
}

// display shows the load now, on a terminal in place.
type display struct {
	world *world
	began time.Time
	shown time.Time
	lines int
	last  []string
}

// until shows until something is done.
func (d *display) until(ctx context.Context, done <-chan error) error {
	for {
		select {
		case err := <-done:
			return err
		default:
			d.tick(ctx)
		}
	}
}

// tick waits a little, and shows what is new every half second.
func (d *display) tick(ctx context.Context) {
	pause(ctx, 20*time.Millisecond)
	if time.Since(d.shown) >= 500*time.Millisecond {
		d.shown = time.Now()
		d.draw()
	}
}

func (d *display) draw() {
	var lines []string
	for _, s := range []*side{d.world.red, d.world.blue} {
		text := s.fabric.says(d.began)
		for i, l := range wrap(text, width-11) {
			lead := ""
			if i == 0 {
				lead = s.name
			}
			lines = append(lines, fmt.Sprintf("     %-5s %s", lead, l))
		}
	}
	screen := d.world.screen
	switch {
	case screen.colour: // a terminal
		if d.lines > 0 {
			fmt.Fprintf(screen.out, "\x1b[%dA\x1b[J", d.lines)
		}
		d.lines = len(lines)
	case len(d.last) == len(lines) && time.Since(d.began) > time.Second && time.Since(d.began)%time.Second > 500*time.Millisecond:
		return // once a second is enough where lines stay
	}
	d.last = lines
	for _, l := range lines {
		screen.line(l)
	}
}

func (d *display) end() { d.draw() }

// says is what happens to packets now, and what was lost since a time.
func (f *fabric) says(since time.Time) string {
	now := time.Now()
	to := now.Add(-traffic.Grace)
	lost := f.udp.Count(since, to)
	failed := f.tcp.Count(since, now.Add(-time.Second)).LostAll()
	text := fmt.Sprintf("lost %d UDP", lost.LostAll())
	for _, target := range sortedKeys(lost.Lost) {
		where := "on the way"
		if target != traffic.Nowhere {
			where = fmt.Sprintf("at real-%d", target)
		}
		text += fmt.Sprintf(" (%d %s)", lost.Lost[target], where)
	}
	text += fmt.Sprintf(", %d TCP; packets/s:", failed)
	c := f.now()
	for _, target := range sortedKeys(c.Took) {
		text += fmt.Sprintf(" %d:%d", target, c.Took[target]*int(time.Second/time.Millisecond)/int(watched/time.Millisecond))
	}
	if len(c.Took) == 0 {
		text += " none"
	}
	return text
}

func sortedKeys(m map[int]int) []int {
	keys := make([]int, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func appendTo(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening a log: %w", err)
	}
	return file, nil
}
