package stage

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nordix/meridio-nsp/test/cluster"
	"github.com/nordix/meridio-nsp/test/play"
)

// patience is how long the demo waits for what happens within milliseconds on a machine that is not busy.
const patience = 30 * time.Second

// world is all that the scenes play with.
type world struct {
	screen  *screen
	log     io.Writer
	cluster *cluster.Cluster
	// hostAddress is one that a played pod can call from; invalid on a machine that has none.
	hostAddress netip.Addr
	// real is whether there are network namespaces, so that the real sidecar and real packets can be shown.
	real bool
	// red has the fast path, blue has not.
	red, blue *side
	// green has mTLS and a virtual machine; nil before it is its turn.
	green *greenSide
	// began is when the current scene began.
	began time.Time
	flips []flipResult
	// phases happened under real load, which began at realBegan. results is the directory that keeps what came of them.
	phases    []phaseResult
	realBegan time.Time
	results   string
}

func (w *world) open(ctx context.Context) error {
	w.screen.line(w.screen.paint(bold, "Meridio NSP: a Kubernetes Service drives targets and load balancers"))
	w.screen.line("")
	for _, s := range w.steps(ctx) {
		if err := w.screen.step(s.what, s.do); err != nil {
			return fmt.Errorf("%s: %w", s.what, err)
		}
	}
	w.introduce()
	return nil
}

type step struct {
	what string
	do   func() error
}

func (w *world) steps(ctx context.Context) []step {
	return []step{
		{"building the programs", func() error { _, err := play.Build(ctx); return err }},
		{"starting etcd, API server and controller manager", func() (err error) {
			w.cluster, err = cluster.Start(ctx, cluster.Config{Log: w.log})
			return err
		}},
		{"installing the chart into namespace red, starting its processes", func() (err error) {
			w.red, err = openSide(ctx, w, "red")
			return err
		}},
		{"the same in namespace blue, with the fast path off", func() (err error) {
			w.blue, err = openSide(ctx, w, "blue", "--readiness-push=false", "--assignment=ready")
			return err
		}},
		{"creating six pods with sidecars in each", func() error {
			for _, s := range []*side{w.red, w.blue} {
				if err := firstPods(ctx, s); err != nil {
					return err
				}
			}
			return nil
		}},
	}
}

func (w *world) introduce() {
	w.screen.line("")
	for _, p := range []struct{ who, what string }{
		{"red", "a namespace with a real nsp process, under the permissions that the chart gives"},
		{"blue", "the same without the fast path: a load balancer learns that a pod is not ready only when the pod's sidecar, " +
			"told by the nsp, has closed its stream (--readiness-push=false --assignment=ready)"},
		{"pods", "web-1..4 and api-1..2, with an address of a secondary network; api-2 has an IPv6 address too. " + w.sidecars()},
		{"lb-1 lb-2", "load balancers that watch the feed of the nsp"},
		{"lb-old", "a load balancer of Meridio 1.x, unchanged: it watches nsp.v1 at the process of its trench, which passes on what the " +
			"nsp says, and knows nothing of Services"},
		{"times", "are since the action; control plane, nsp and all clients share this machine, and the demo sees EndpointSlices by a " +
			"watch of its own, which may be a little ahead of or behind the nsp's"},
	} {
		w.screen.text(fmt.Sprintf("  %-10s ", p.who), "", p.what)
	}
}

// sidecars says what the sidecars of the pods are.
func (w *world) sidecars() string {
	if w.real {
		return "Each has a network namespace with the real sidecar in it, which has a TAPA of Meridio 1.x open the streams that the nsp " +
			"tells it to; the TAPA is a stand-in that registers as the original does, but makes no interface"
	}
	return "Each has a stand-in for sidecar and TAPA, which registers for the streams that the nsp tells it to hold; the real sidecar " +
		"needs network namespaces, so run this as root"
}

// play plays a scene: it acts, waits until all that is expected holds, and shows who heard what.
func (w *world) play(ctx context.Context, number string, s scene) error {
	w.screen.line("")
	w.screen.text(fmt.Sprintf("%-6s", number), bold, s.what)
	if s.why != "" {
		w.screen.text("      ", dim, s.why)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %s", patience))
	defer cancel()
	w.began = time.Now()
	if err := s.do(ctx, w); err != nil {
		return fmt.Errorf("scene %s, %s: %w", number, s.what, err)
	}
	for _, e := range s.expect {
		if err := w.await(ctx, e.holds); err != nil {
			return fmt.Errorf("scene %s, %s: expected: %s: %w", number, s.what, e.says, err)
		}
	}
	w.red.journal.settle(ctx, 80*time.Millisecond)
	w.screen.timeline(w.began, w.red.journal.since(w.began))
	for _, e := range s.expect {
		w.screen.text("  ok ", green, e.says)
	}
	if s.flip == nil {
		return nil
	}
	return w.compare(ctx, *s.flip)
}

// await waits until something holds.
func (w *world) await(ctx context.Context, holds func(context.Context, *world) bool) error {
	for !holds(ctx, w) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		pause(ctx, 5*time.Millisecond)
	}
	return nil
}

// explain shows what everybody knows, after a failure.
func (w *world) explain() {
	w.screen.line("")
	if w.green != nil && w.green.nsp != nil {
		w.screen.line("  end of the log of nsp in green:")
		w.screen.line(string(w.green.nsp.LogTail()))
	}
	for _, s := range []*side{w.red, w.blue} {
		w.screen.timeline(w.began, s.journal.since(w.began))
		for _, lb := range slices.Sorted(maps.Keys(s.lbs)) {
			for _, stream := range streams {
				pods := s.journal.receivers(route{lb, stream})
				w.screen.text("     ", "", fmt.Sprintf("%s: %s sends %s to %s", s.name, lb, stream, names(pods)))
			}
		}
		for _, which := range []func(*side) (string, *play.NSP){nspProcess, trenchProcess} {
			name, nsp := which(s)
			w.screen.line("  end of the log of " + name + " in " + s.name + ":")
			w.screen.line(string(nsp.LogTail()))
		}
		if s.fabric != nil {
			log, _ := os.ReadFile(s.fabric.log)
			w.screen.line("  end of the log of stateless-lb in " + s.name + ":")
			w.screen.line(string(log[max(0, len(log)-4096):]))
		}
	}
}

// keep leaves all running, says how to look around, and shows what happens, until ctx ends.
func (w *world) keep(ctx context.Context) {
	kubectl := "kubectl"
	if dir, err := cluster.Binary(ctx, w.log); err == nil && !w.cluster.External() {
		kubectl = filepath.Join(dir, "kubectl")
	}
	nsp, _ := play.Build(ctx) // it was built before
	w.screen.line("")
	w.screen.text("", bold, "Everything stays until Ctrl-C. What the parties in red hear appears here. In another terminal:")
	lines := []string{
		"export KUBECONFIG=" + w.cluster.Kubeconfig(),
		"alias kubectl=" + kubectl + " nsp=" + nsp,
		"export NSP_SERVER=" + w.red.nsp.Address(),
		"",
		"nsp pools",
		"nsp pools red/web",
		"nsp targets",
		"nsp watch feed " + trenchName + "/" + conduit,
		"kubectl -n red get svc,endpointslices,pods",
		"kubectl -n red get svc web -o jsonpath-as-json='{.status.conditions}'",
		"kubectl -n red label svc web --overwrite meridio.nordix.org/stream=stream-a",
		"kubectl -n red delete pod web-5 --wait=false",
		"kubectl -n red patch pod web-6 --subresource=status \\",
		`  -p '{"status":{"conditions":[{"type":"Ready","status":"False"}]}}'`,
	}
	if f := w.red.fabric; f != nil {
		lines = append(lines, fmt.Sprintf("nsenter -t %d -n %s trace \\", f.balancer.PID(), filepath.Join(filepath.Dir(nsp), "stateless-lb")),
			fmt.Sprintf("  --src 10.0.0.2 --sport 40000 --dst %s --dport %d --proto udp", realVIP.Addr(), realVIP.Port()))
	}
	for _, l := range lines {
		w.screen.line("  " + l)
	}
	w.screen.line("")
	for last := time.Now(); ctx.Err() == nil; pause(ctx, 100*time.Millisecond) {
		w.red.journal.settle(ctx, 100*time.Millisecond)
		if events := w.red.journal.since(last); len(events) > 0 {
			w.screen.timeline(events[0].at, events)
			last = events[len(events)-1].at
		}
	}
}

func (w *world) close() {
	if w.green != nil {
		w.green.close()
	}
	for _, s := range []*side{w.blue, w.red} {
		if s != nil {
			s.close()
		}
	}
	if w.cluster != nil {
		w.cluster.Stop()
	}
}

// names lists pods for people.
func names(pods []string) string {
	if len(pods) == 0 {
		return "no pod"
	}
	return strings.Join(pods, ", ")
}
