// Command report turns the event stream of "go test -json" into a result for people: a line per package, failures with
// their output, every skipped test with its reason, and a closing count. It exits with 1 when anything failed, when no
// test ran, and, with -no-skips, when a test was skipped: on a machine where everything can run, a skip hides a hole.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime/debug"
)

func main() {
	noSkips := flag.Bool("no-skips", false, "treat a skipped test as a failure")
	flag.Parse()

	r := newReport(os.Stdout, modulePrefix())
	if err := r.read(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "report: read test events:", err)
		os.Exit(1)
	}
	if err := r.close(*noSkips); err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(1)
	}
}

// modulePrefix is what all packages of this module begin with; lines are easier to read without it.
func modulePrefix() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	return info.Main.Path + "/"
}
