package main

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// crowdTimeout is shorter than the default of a minute, so that an expiry is not waited for that long; refreshes come twice as
// often as by default.
const crowdTimeout = 30 * time.Second

// tapas gives every TAPA a connection of its own and measures memory, then the storms.
func tapas(ctx context.Context, w *world, size int, tls bool) error {
	s, stop, err := w.scene(ctx, size, tls, "--entry-timeout="+crowdTimeout.String())
	if err != nil {
		return err
	}
	defer stop()
	for _, step := range []func(context.Context) error{s.gather, s.stampede} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	if _, err := call[None](ctx, s.fleet, "Fleet.Refresh", crowdTimeout/2); err != nil {
		return err
	}
	wait(ctx, crowdTimeout/2) // one round of refreshes
	if err := s.weigh("registered and refreshing"); err != nil {
		return err
	}
	if !tls {
		return nil
	}
	if err := s.expiry(ctx); err != nil {
		return err
	}
	return s.comeback(ctx)
}

// gather connects everybody.
func (s *scene) gather(ctx context.Context) error {
	took, err := call[time.Duration](ctx, s.fleet, "Fleet.Connect", FleetArgs{
		Dial: s.nsp.dial, Namespace: s.farm.namespace, Members: s.farm.size,
		Streams: len(s.farm.slices), MaxTargets: 2 * perSlice, Watch: true,
	})
	if err != nil {
		return err
	}
	s.report.figure("TAPAs connect, 256 at a time", s.setup(), "s", took.Seconds(), "until each has its list")
	if err := s.connectBalancers(ctx, 100); err != nil {
		return err
	}
	return s.weigh("connected")
}

// weigh reports the memory of the process under test.
func (s *scene) weigh(when string) error {
	now, peak, err := resident(s.nsp.PID())
	if err != nil {
		return err
	}
	budget := budgetPlaintext
	if s.nsp.tls {
		budget = budgetTLS
	}
	live, stacks, err := s.heap()
	if err != nil {
		return err
	}
	s.report.figure("resident memory, "+when, fmt.Sprintf("%s, a connection each", s.setup()), "MiB", now,
		fmt.Sprintf("peak %s; of it heap in use %s, stacks %s", number(peak), number(live), number(stacks)), budget)
	return nil
}

// heap asks the metrics for the heap and the stacks in use, in MiB.
func (s *scene) heap() (inUse, stacks float64, err error) {
	resp, err := http.Get(s.nsp.MetricsURL())
	if err != nil {
		return 0, 0, fmt.Errorf("reading the metrics: %w", err)
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), " ")
		v, _ := strconv.ParseFloat(value, 64)
		switch name {
		case "go_memstats_heap_inuse_bytes":
			inUse = v / (1 << 20)
		case "go_memstats_stack_inuse_bytes":
			stacks = v / (1 << 20)
		}
	}
	return inUse, stacks, nil
}

// stampede has a thousand open at once, and then everybody.
func (s *scene) stampede(ctx context.Context) error {
	for _, count := range []int{1000, s.farm.size} {
		r, err := call[OpenReply](ctx, s.fleet, "Fleet.Open", OpenArgs{Count: count})
		if err != nil {
			return err
		}
		s.stormRow(r, fmt.Sprintf("%s of %s", group(fmt.Sprint(count)), s.setup()), "1.2: 1 of 1,000 open after 180 s")
		if r.Opened < count {
			return fmt.Errorf("%d of %d are open after %s", r.Opened, count, r.Took)
		}
		if count == s.farm.size {
			break
		}
		if _, err := call[None](ctx, s.fleet, "Fleet.Leave", None{}); err != nil {
			return err
		}
	}
	return nil
}

// expiry lets a thousand leases end at once, while others register.
func (s *scene) expiry(ctx context.Context) error {
	count := min(1000, s.farm.size/2)
	if _, err := call[None](ctx, s.lbs, "Balancers.Forget", None{}); err != nil {
		return err
	}
	if _, err := call[None](ctx, s.fleet, "Fleet.Silence", count); err != nil {
		return err
	}
	// A full period passes between the first and the last of their refreshes; one more at the same moment makes them end together.
	if _, err := call[ProbeReply](ctx, s.fleet, "Fleet.Probe", ProbeArgs{Count: count, Callers: 64, For: time.Second}); err != nil {
		return err
	}
	_, p, err := s.nsp.probe(ctx, s.fleet, ProbeArgs{
		First: count, Count: s.farm.size - count, Callers: 8, For: crowdTimeout + 5*time.Second, Change: true, Pause: 5 * time.Millisecond,
	})
	if err != nil {
		return err
	}
	span, err := call[[2]int64](ctx, s.lbs, "Balancers.Removed", RemovedArgs{Count: count, Limit: 30 * time.Second})
	if err != nil {
		return err
	}
	what := group(fmt.Sprint(count)) + " expire at once: "
	s.report.times(what+"Register meanwhile", s.setup()+", 8 callers", p.Each)
	s.report.figure(what+"longest Register", s.setup()+", 8 callers", "s", slices.Max(p.Each).Seconds(),
		fmt.Sprintf("from the first removal at an LB to the last at the last LB: %s", time.Duration(span[1]-span[0]).Round(time.Millisecond)),
		bound{label: "1.2", p50: anchorExpiry.Seconds()})
	return nil
}

// comeback kills the process and starts it again; everybody reconnects and refreshes go on.
func (s *scene) comeback(ctx context.Context) error {
	began := time.Now()
	if err := s.restart(ctx); err != nil {
		return err
	}
	up, err := call[UpReply](ctx, s.fleet, "Fleet.Up", began.UnixNano())
	if err != nil {
		return err
	}
	note := ""
	if up.Missing > 0 {
		note = fmt.Sprintf("%s are not back after %s", group(strconv.Itoa(up.Missing)), gatherLimit)
	}
	s.report.figure("killed and started again: until the last TAPA is back", s.setup(), "s", time.Unix(0, up.Last).Sub(began).Seconds(), note)
	return s.weigh("after the restart")
}
