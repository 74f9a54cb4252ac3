package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nordix/meridio-nsp/test/netns"
	"github.com/nordix/meridio-nsp/test/process"
)

// kernelMetrics is where the load balancer of the kernel suite tells its metrics, inside its network namespace.
const kernelMetrics = "127.0.0.1:2223"

// bridgeAddress makes all secondary addresses of a farm neighbours. Nobody answers there: no packet is sent.
const bridgeAddress = "100.127.255.254/10"

// kernel measures from the slice event until the kernel forwards accordingly, with the real load balancer in a network namespace.
func kernel(ctx context.Context, w *world) error {
	if err := netns.Available(); err != nil {
		w.say("kernel: left out: %v", err)
		return nil
	}
	s, stop, err := w.scene(ctx, perSlice, false)
	if err != nil {
		return err
	}
	defer stop()
	if err := s.populate(ctx); err != nil {
		return err
	}
	relay, err := w.startRelay(ctx, s.farm.namespace, s.farm.kubeconfig, s.nsp)
	if err != nil {
		return err
	}
	defer relay.Kill()
	r, err := startRouter(w, relay.Address(), s.nsp.Address())
	if err != nil {
		return err
	}
	defer r.stop()
	if err := until(30*time.Second, "the kernel having all targets", func() bool { return r.has(ctx, s.farm.size) }); err != nil {
		return fmt.Errorf("%w; the load balancer says: %s", err, r.logTail())
	}
	return r.flips(ctx, s)
}

// flips changes the readiness of one member after the other. A pause lets the load balancer clear away what it keeps for a second.
func (r *router) flips(ctx context.Context, s *scene) error {
	const pause = 1200 * time.Millisecond
	commits, err := r.commits()
	if err != nil {
		return err
	}
	defer commits.close()
	var forwards [2][]time.Duration
	before, err := r.metrics(ctx)
	if err != nil {
		return err
	}
	flips := pick(s.world, 25, 5)
	for n := range flips {
		for i, ready := range []bool{false, true} {
			wait(ctx, pause)
			took, err := commits.flip(ctx, s.farm, n%s.farm.size, ready)
			if err != nil {
				return fmt.Errorf("ready=%v of %s: %w; the load balancer says: %s", ready, podName(n), err, r.logTail())
			}
			forwards[i] = append(forwards[i], took)
		}
	}
	after, err := r.metrics(ctx)
	if err != nil {
		return err
	}
	setup := s.setup() + ", the real LB"
	s.report.times("not ready: slice event -> kernel", setup, forwards[0])
	s.report.times("ready again: slice event -> kernel", setup, forwards[1])
	own := (after[updateToKernel+"_sum"] - before[updateToKernel+"_sum"]) / (after[updateToKernel+"_count"] - before[updateToKernel+"_count"])
	s.report.figure("of it from the update to the kernel", setup, "ms", 1000*own, "on average, by the load balancer's own histogram")
	return nil
}

const updateToKernel = "stateless_lb_update_to_kernel_seconds"

// commits tells when transactions of nftables are committed: the kernel announces each to those that listen.
type commits struct {
	conn *netlink.Conn
	at   chan time.Time
}

func (r *router) commits() (*commits, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: r.space.FD()})
	if err != nil {
		return nil, fmt.Errorf("listening to nftables: %w", err)
	}
	if err := conn.JoinGroup(unix.NFNLGRP_NFTABLES); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("listening to nftables: %w", err)
	}
	c := &commits{conn: conn, at: make(chan time.Time, 1)}
	go c.listen()
	return c, nil
}

// listen keeps the time of the first commit that nobody has asked for.
func (c *commits) listen() {
	defer close(c.at)
	for {
		if _, err := c.conn.Receive(); err != nil {
			return
		}
		select {
		case c.at <- time.Now():
		default:
		}
	}
}

func (c *commits) close() {
	_ = c.conn.Close()
	for range c.at { // until listen has ended
	}
}

// flip changes one member and returns how long after the slice event its kernel forwarded accordingly.
func (c *commits) flip(ctx context.Context, f *farm, member int, ready bool) (time.Duration, error) {
	select {
	case <-c.at: // what was cleared away
	default:
	}
	if _, err := f.ready(ctx, member, ready); err != nil {
		return 0, err
	}
	announced, err := f.seen.WaitReady(ctx, podName(member), ready)
	if err != nil {
		return 0, err
	}
	select {
	case at := <-c.at:
		return at.Sub(announced), nil
	case <-time.After(10 * time.Second):
		return 0, errors.New("the kernel was told nothing for 10s")
	case <-ctx.Done():
		return 0, fmt.Errorf("waiting for the kernel: %w", ctx.Err())
	}
}

// router is the load balancer in its network namespace.
type router struct {
	space   *netns.Space
	log     *os.File
	client  *http.Client
	program *process.Process
	undo    []func()
}

// startRouter starts the load balancer, which reaches both processes of the NSP through pipes.
func startRouter(w *world, configuration, feed string) (r *router, err error) {
	r = &router{}
	defer func() {
		if err != nil {
			r.stop()
		}
	}()
	if r.space, err = netns.New("lb"); err != nil {
		return nil, err
	}
	r.undo = append(r.undo, r.space.Close)
	if err := r.space.AddBridge("br0", bridgeAddress); err != nil {
		return nil, err
	}
	var inside [2]string
	for i, outside := range []string{configuration, feed} {
		in, stop, err := r.space.Pipe(outside)
		if err != nil {
			return nil, err
		}
		inside[i], r.undo = in, append(r.undo, stop)
	}
	if r.log, err = os.Create(filepath.Join(w.dir, "lb.log")); err != nil {
		return nil, fmt.Errorf("making the log of the load balancer: %w", err)
	}
	r.undo = append(r.undo, func() { _ = r.log.Close() })
	transport := &http.Transport{DialContext: r.dial}
	r.client = &http.Client{Transport: transport}
	r.undo = append(r.undo, transport.CloseIdleConnections)
	r.program, err = r.space.Start(process.Config{
		Path: filepath.Join(filepath.Dir(w.binary), "stateless-lb"), Output: r.log,
		Args: []string{
			"--trench=" + trench, "--conduit=" + conduit, "--nsp-address=" + inside[0], "--feed-address=" + inside[1],
			"--metrics-address=" + kernelMetrics, "--health-socket=",
		},
	})
	if err == nil {
		r.undo = append(r.undo, r.program.Kill)
	}
	return r, err
}

// stop undoes in the reverse order; what is in the kernel goes with the namespace.
func (r *router) stop() {
	for i := len(r.undo) - 1; i >= 0; i-- {
		r.undo[i]()
	}
}

func (r *router) logTail() string {
	data, _ := os.ReadFile(r.log.Name())
	return string(data[max(0, len(data)-1000):])
}

// dial connects inside the network namespace.
func (r *router) dial(ctx context.Context, network, address string) (c net.Conn, err error) {
	err = r.space.Do(func() error {
		var d net.Dialer
		c, err = d.DialContext(ctx, network, address)
		return err
	})
	return c, err
}

// has is whether the kernel forwards to so many targets.
func (r *router) has(ctx context.Context, targets int) bool {
	m, err := r.metrics(ctx)
	return err == nil && m["stateless_lb_programmed"] == 1 && m["stateless_lb_pending_targets"] == 0 &&
		m["stateless_lb_targets"] == float64(targets)
}

// metrics are those of the load balancer by name, summed over labels.
func (r *router) metrics(ctx context.Context) (map[string]float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+kernelMetrics+"/metrics", http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("asking for metrics: %w", err)
	}
	resp, err := r.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("asking for metrics: %w", err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("reading metrics: %w", err)
	}
	out := make(map[string]float64)
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		at := strings.LastIndexByte(line, ' ')
		if v, err := strconv.ParseFloat(line[at+1:], 64); err == nil && !strings.HasPrefix(line, "#") {
			name, _, _ := strings.Cut(line[:max(at, 0)], "{")
			out[name] += v
		}
	}
	return out, nil
}
