package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"strconv"
	"syscall"
	"time"
)

// options are the flags.
type options struct {
	run    *regexp.Regexp
	short  bool
	output string
	list   bool
}

// suite is a group of measurements that share what they need.
type suite struct {
	name, about string
	run         func(context.Context, *world) error
}

// suites are all that there are; short ones are smaller.
func suites(short bool) []suite {
	out := []suite{
		{"machine", "what gRPC, TLS and the disk cost here, with a server that does nothing", machine},
		{"pods", "real pods, status patch to slice event to delta, beside the same with the fast path off", pods},
		{"kernel", "slice event to the kernel of the real load balancer, in a network namespace; needs root", kernel},
	}
	sizes, most := []int{100, 1000, 10000}, 10000
	legacySizes, relayedSizes := []int{100, 1000, 5000, 10000}, []int{1000, 5000, 10000}
	if short {
		sizes, most, legacySizes, relayedSizes = []int{100, 1000}, 1000, []int{100, 1000}, []int{1000}
	}
	for _, n := range sizes {
		out = append(out, suite{
			"feed-" + strconv.Itoa(n), group(strconv.Itoa(n)) + " members: slice event to delta, bytes, who is woken",
			func(ctx context.Context, w *world) error { return feed(ctx, w, n, n == most) },
		})
	}
	for _, n := range legacySizes {
		out = append(out, suite{
			"legacy-" + strconv.Itoa(n), group(strconv.Itoa(n)) + " targets of Meridio 1.x: Register, refresh, full lists to each load balancer",
			func(ctx context.Context, w *world) error { return legacy(ctx, w, n, false) },
		})
	}
	for _, n := range relayedSizes {
		out = append(out, suite{
			"relay-" + strconv.Itoa(n), "the same with " + group(strconv.Itoa(n)) + " targets through a trench process that relays, and what that adds",
			func(ctx context.Context, w *world) error { return legacy(ctx, w, n, true) },
		})
	}
	return append(out,
		suite{"flood", "what callers that are refused take from those that are not, 1,000 members", func(ctx context.Context, w *world) error {
			return flood(ctx, w, 1000)
		}},
		suite{"legacy-storms", "1,000 targets of Meridio 1.x open at once and expire at once", legacyStorms},
		suite{"tapas-plaintext", "a connection for each TAPA: memory, all open at once", func(ctx context.Context, w *world) error {
			return tapas(ctx, w, most, false)
		}},
		suite{"tapas-mtls", "the same with mTLS; 1,000 expire at once; restart under load", func(ctx context.Context, w *world) error {
			return tapas(ctx, w, most, true)
		}})
}

func main() {
	if socket := os.Getenv(socketEnv); socket != "" {
		if err := runClient(socket); err != nil {
			fmt.Fprintln(os.Stderr, "bench client:", err)
			os.Exit(1)
		}
		return
	}
	o, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err = bench(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func parse(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	run := f.String("run", "", "run the suites whose name matches this `expression`; default all")
	f.BoolVar(&o.short, "short", false, "smaller sizes, for trying it out")
	f.StringVar(&o.output, "o", "table", "`format` of the result on standard output: table or json")
	f.BoolVar(&o.list, "list", false, "list the suites")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	var err error
	if o.run, err = regexp.Compile(*run); err == nil && o.output != "table" && o.output != "json" {
		err = fmt.Errorf("-o is %q: choose table or json", o.output)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
	}
	return o, err
}

// bench runs the suites that are asked for and prints what they found, also where one failed.
func bench(ctx context.Context, o options) error {
	if o.list {
		for _, s := range suites(o.short) {
			fmt.Printf("%-16s %s\n", s.name, s.about)
		}
		return nil
	}
	if err := raiseFileLimit(); err != nil {
		return err
	}
	began := time.Now()
	w, err := newWorld(ctx, o)
	if err != nil {
		return err
	}
	defer w.close()
	var failed error
	for _, s := range suites(o.short) {
		if !o.run.MatchString(s.name) || ctx.Err() != nil {
			continue
		}
		w.say("%s: %s", s.name, s.about)
		w.report.suite = s.name
		if err := s.run(ctx, w); err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", s.name, err))
			w.say("%s failed: %v", s.name, err)
		}
	}
	w.report.Took = time.Since(began).Round(time.Second).String()
	return errors.Join(failed, w.report.print(os.Stdout, o.output))
}

// raiseFileLimit makes room for ten thousand connections, here and in the processes that are started from here.
func raiseFileLimit() error {
	const enough = 16384
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return fmt.Errorf("reading the limit of open files: %w", err)
	}
	l.Cur, l.Max = max(l.Max, enough), max(l.Max, enough)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return fmt.Errorf("raising the limit of open files to %d (ulimit -Hn): %w", l.Cur, err)
	}
	return nil
}
