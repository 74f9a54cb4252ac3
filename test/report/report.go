package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// long is from when on a test is worth a line of its own.
const long = 15 * time.Second

// event is one line of "go test -json", as "go doc test2json" and "go help buildjson" describe it.
type event struct {
	Action      string
	Package     string
	Test        string
	Elapsed     float64 // seconds
	Output      string
	ImportPath  string // of build events, which have no Package
	FailedBuild string // on a package's fail event: the ImportPath whose build failed
}

// run is what is known of one package.
type run struct {
	order  []string // tests, as they began
	result map[string]string
	slow   map[string]time.Duration
	output map[string][]string // by test; "" is the package's own
}

// report collects events and prints each package once, when it has ended: packages run side by side, and their lines
// would mix otherwise.
type report struct {
	out    io.Writer
	prefix string
	runs   map[string]*run
	builds map[string][]string
	skips  []string

	passed, failed int
}

func newReport(out io.Writer, prefix string) *report {
	return &report{out: out, prefix: prefix, runs: map[string]*run{}, builds: map[string][]string{}}
}

// read consumes events until in ends. Lines that are no event are passed on: something went wrong and they say what.
func (r *report) read(in io.Reader) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) == nil {
				r.add(e)
			} else {
				fmt.Fprintf(r.out, "%s\n", strings.TrimRight(string(line), "\n"))
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

func (r *report) add(e event) {
	if e.Package == "" {
		r.builds[e.ImportPath] = append(r.builds[e.ImportPath], e.Output)
		return
	}
	p := r.runs[e.Package]
	if p == nil {
		p = &run{result: map[string]string{}, slow: map[string]time.Duration{}, output: map[string][]string{}}
		r.runs[e.Package] = p
	}
	switch e.Action {
	case "run":
		p.order = append(p.order, e.Test)
	case "output":
		p.output[e.Test] = append(p.output[e.Test], e.Output)
	case "pass", "fail", "skip":
		if e.Test != "" {
			p.result[e.Test] = e.Action
			if took := time.Duration(e.Elapsed * float64(time.Second)); took >= long && !strings.Contains(e.Test, "/") {
				p.slow[e.Test] = took
			}
			return
		}
		r.end(p, e)
		delete(r.runs, e.Package)
	}
}

// end prints a package and counts its tests.
func (r *report) end(p *run, e event) {
	name := strings.TrimPrefix(e.Package, r.prefix)
	var broken []string
	for _, test := range p.order {
		switch p.result[test] {
		case "pass":
			r.passed++
		case "skip":
			r.skips = append(r.skips, name+": "+test+": "+reason(p.output[test]))
		default: // failed, or without result: the process died in it
			r.failed++
			broken = append(broken, test)
		}
	}
	if e.Action != "fail" && len(broken) == 0 {
		if len(p.order) > 0 {
			fmt.Fprintf(r.out, "ok    %-40s %8s %5d tests\n", name, elapsed(p, e), len(p.order))
			r.slowest(p)
		}
		return
	}
	if len(broken) == 0 {
		r.failed++ // the package itself: it did not build, leaked, or its TestMain failed
	}
	fmt.Fprintf(r.out, "FAIL  %-40s %8s %5d tests\n", name, elapsed(p, e), len(p.order))
	r.indent(r.builds[e.FailedBuild])
	for _, test := range broken {
		r.indent(p.output[test])
	}
	r.indent(p.output[""])
}

// slowest names the tests that take most of a package's time.
func (r *report) slowest(p *run) {
	names := slices.SortedFunc(maps.Keys(p.slow), func(a, b string) int { return cmp.Compare(p.slow[b], p.slow[a]) })
	for _, test := range names {
		fmt.Fprintf(r.out, "      %-40s %8s\n", test, p.slow[test].Round(time.Second))
	}
}

// close reports what never ended, the skips and the counts. Its error says why the run as a whole failed.
func (r *report) close(noSkips bool) error {
	for name, p := range r.runs {
		r.end(p, event{Package: name, Action: "fail"})
	}
	if len(r.skips) > 0 {
		fmt.Fprintln(r.out, "skipped:")
		for _, skip := range r.skips {
			fmt.Fprintln(r.out, "  "+skip)
		}
	}
	fmt.Fprintf(r.out, "%d passed, %d failed, %d skipped\n", r.passed, r.failed, len(r.skips))
	switch {
	case r.failed > 0:
		return errors.New("tests failed")
	case r.passed == 0:
		return errors.New("no test ran")
	case noSkips && len(r.skips) > 0:
		return errors.New("tests were skipped, and here none may be")
	}
	return nil
}

func (r *report) indent(lines []string) {
	for _, line := range lines {
		if noise(line) {
			continue
		}
		fmt.Fprintln(r.out, "      "+strings.TrimRight(line, "\n"))
	}
}

// noise are the lines by which the test binary narrates its own course.
func noise(line string) bool {
	return strings.HasPrefix(line, "=== ") || strings.HasPrefix(line, "FAIL") || line == "PASS\n"
}

// reason is what a test said before it was skipped.
func reason(output []string) string {
	said := slices.DeleteFunc(slices.Clone(output), func(line string) bool {
		return noise(line) || strings.HasPrefix(strings.TrimSpace(line), "--- SKIP")
	})
	return strings.Join(strings.Fields(strings.Join(said, " ")), " ")
}

func elapsed(p *run, e event) string {
	if slices.ContainsFunc(p.output[""], func(line string) bool { return strings.Contains(line, "(cached)") }) {
		return "cached"
	}
	return time.Duration(e.Elapsed * float64(time.Second)).Round(10 * time.Millisecond).String()
}
