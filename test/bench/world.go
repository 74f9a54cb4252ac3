package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nordix/meridio-nsp/test/chart"
	"github.com/nordix/meridio-nsp/test/cluster"
	"github.com/nordix/meridio-nsp/test/play"
)

const (
	trench  = "trench-a"
	conduit = "conduit-a"
)

func streamName(s int) string { return fmt.Sprintf("stream-%03d", s) }

// world is what the suites share: a control plane, the program under test, and where results go.
type world struct {
	options
	cluster   *cluster.Cluster
	dir       string
	binary    string
	authority *authority
	report    *report
	farms     map[int]*farm
	started   time.Time
	count     int
}

func newWorld(ctx context.Context, o options) (*world, error) {
	w := &world{options: o, report: newReport(), farms: make(map[int]*farm), started: time.Now()}
	for _, step := range []func(context.Context) error{w.prepare, w.build, w.startCluster} {
		if err := step(ctx); err != nil {
			w.close()
			return nil, err
		}
	}
	return w, nil
}

func (w *world) prepare(context.Context) (err error) {
	if w.dir, err = os.MkdirTemp("", "nsp-bench-"); err != nil {
		return fmt.Errorf("making a work directory: %w", err)
	}
	w.authority, err = newAuthority(w.dir)
	return err
}

func (w *world) build(ctx context.Context) (err error) {
	w.say("building nsp")
	w.binary, err = play.Build(ctx)
	if err == nil {
		w.report.Version = versionOf(ctx, w.binary)
	}
	return err
}

func (w *world) startCluster(ctx context.Context) (err error) {
	w.say("starting a control plane")
	w.cluster, err = cluster.Start(ctx, cluster.Config{})
	return err
}

func (w *world) close() {
	for _, f := range w.farms {
		f.stop()
	}
	if w.cluster != nil {
		w.cluster.Stop()
	}
	_ = os.RemoveAll(w.dir)
}

// say tells what is going on.
func (w *world) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%4.0fs  load %-5s %s\n",
		time.Since(w.started).Seconds(), strconv.FormatFloat(loadAverage(), 'f', 1, 64), fmt.Sprintf(format, args...))
}

// pick is the full size, or the short one.
func pick[T any](w *world, full, short T) T {
	if w.short {
		return short
	}
	return full
}

// namespace makes a namespace with the chart in it and a configured trench, and returns a kubeconfig of the chart's account.
func (w *world) namespace(ctx context.Context, name string, streams, maxTargets int) (kubeconfig string, err error) {
	if err := w.cluster.EnsureNamespace(ctx, name); err != nil {
		return "", err
	}
	if err := chart.Install(ctx, w.cluster, name, nil); err != nil {
		return "", err
	}
	limits := make(map[string]int, streams)
	for s := range streams {
		limits[streamName(s)] = maxTargets
	}
	if err := play.Configure(ctx, w.cluster.Client(), name, trench, conduit, limits); err != nil {
		return "", err
	}
	return w.cluster.ServiceAccountKubeconfig(ctx, name, chart.ServiceAccount)
}

// server is a namespace process under test.
type server struct {
	*play.NSP
	tls  bool
	dial dial
}

// transport names what it speaks.
func (s *server) transport() string {
	if s.tls {
		return "mTLS"
	}
	return "plaintext"
}

// startNSP starts a namespace process with an empty registry.
func (w *world) startNSP(ctx context.Context, namespace, kubeconfig string, tls bool, args ...string) (*server, error) {
	return w.startProcess(ctx, play.NSPConfig{
		Namespace: namespace, Kubeconfig: kubeconfig, Args: append([]string{"--authorisation=none", "--log-level=info"}, args...),
	}, tls)
}

// startRelay starts the process of the trench, which relays to a namespace process, in plaintext.
func (w *world) startRelay(ctx context.Context, namespace, kubeconfig string, to *server) (*server, error) {
	return w.startProcess(ctx, play.NSPConfig{
		Namespace: namespace, Kubeconfig: kubeconfig, Trench: trench,
		Args: []string{"--namespace-nsp=" + to.Address(), "--log-level=info"},
	}, false)
}

func (w *world) startProcess(ctx context.Context, cfg play.NSPConfig, tls bool) (*server, error) {
	w.count++
	cfg.Binary, cfg.Dir = w.binary, filepath.Join(w.dir, "nsp-"+strconv.Itoa(w.count))
	if err := os.Mkdir(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("making a directory for a process of the NSP: %w", err)
	}
	if tls {
		cfg.Args = append(cfg.Args, w.authority.serverArgs()...)
		creds, err := credentialsOf(w.authority.dial(""))
		if err != nil {
			return nil, err
		}
		cfg.Credentials = creds
	}
	n, err := play.StartNSP(ctx, cfg)
	if err != nil {
		return nil, err
	}
	s := &server{NSP: n, tls: tls, dial: dial{Address: n.Address()}}
	if tls {
		s.dial = w.authority.dial(n.Address())
	}
	return s, nil
}

// peers starts client processes; stop ends them.
func (w *world) peers(ctx context.Context, n int) (peers []*peer, stop func(), err error) {
	stop = func() {
		for _, p := range peers {
			p.stop()
		}
	}
	for range n {
		w.count++
		p, err := startPeer(ctx, w.dir, "peer-"+strconv.Itoa(w.count))
		if err != nil {
			stop()
			return nil, nil, err
		}
		peers = append(peers, p)
	}
	return peers, stop, nil
}

// resident is the memory of a process now and at its peak, in MiB.
func resident(pid int) (now, peak float64, err error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, fmt.Errorf("reading the memory of the namespace process: %w", err)
	}
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		kib, _ := strconv.ParseFloat(fields[1], 64)
		switch fields[0] {
		case "VmRSS:":
			now = kib / 1024
		case "VmHWM:":
			peak = kib / 1024
		}
	}
	return now, peak, nil
}

// processorTime is what a process has used so far, of all processors together. Unlike times, it says little of who else was
// running.
func processorTime(pid int) (time.Duration, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("reading the processor time of the namespace process: %w", err)
	}
	// The second field is the name in parentheses; user and system time are the fields 14 and 15, in ticks of 10 ms.
	_, rest, _ := strings.Cut(string(data), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, fmt.Errorf("reading the processor time of the namespace process: unexpected %q", rest)
	}
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond, nil
}

// using returns what the process under test uses of a processor while something is done.
func (s *server) using(do func() error) (time.Duration, error) {
	before, err := processorTime(s.PID())
	if err != nil {
		return 0, err
	}
	if err := do(); err != nil {
		return 0, err
	}
	after, err := processorTime(s.PID())
	return after - before, err
}
