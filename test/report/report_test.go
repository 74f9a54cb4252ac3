package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// lines are events as "go test -json" of Go 1.26 prints them, without times.
const (
	passes = `{"Action":"start","Package":"m/a"}
{"Action":"run","Package":"m/a","Test":"TestGood"}
{"Action":"output","Package":"m/a","Test":"TestGood","Output":"=== RUN   TestGood\n"}
{"Action":"pass","Package":"m/a","Test":"TestGood","Elapsed":0.1}
{"Action":"output","Package":"m/a","Output":"PASS\n"}
{"Action":"pass","Package":"m/a","Elapsed":0.25}
`
	slow = `{"Action":"run","Package":"m/w","Test":"TestSlow"}
{"Action":"run","Package":"m/w","Test":"TestSlow/case"}
{"Action":"pass","Package":"m/w","Test":"TestSlow/case","Elapsed":40}
{"Action":"pass","Package":"m/w","Test":"TestSlow","Elapsed":41.4}
{"Action":"pass","Package":"m/w","Elapsed":42}
`
	skips = `{"Action":"run","Package":"m/s","Test":"TestRoot"}
{"Action":"output","Package":"m/s","Test":"TestRoot","Output":"=== RUN   TestRoot\n"}
{"Action":"output","Package":"m/s","Test":"TestRoot","Output":"    s_test.go:9: needs root\n"}
{"Action":"output","Package":"m/s","Test":"TestRoot","Output":"--- SKIP: TestRoot (0.00s)\n"}
{"Action":"skip","Package":"m/s","Test":"TestRoot","Elapsed":0}
{"Action":"pass","Package":"m/s","Elapsed":0.01}
`
	fails = `{"Action":"run","Package":"m/f","Test":"TestBad"}
{"Action":"output","Package":"m/f","Test":"TestBad","Output":"    f_test.go:9: want 1\n"}
{"Action":"fail","Package":"m/f","Test":"TestBad","Elapsed":0}
{"Action":"fail","Package":"m/f","Elapsed":0.01}
`
	dies = `{"Action":"run","Package":"m/d","Test":"TestHangs"}
{"Action":"output","Package":"m/d","Test":"TestHangs","Output":"panic: test timed out\n"}
{"Action":"fail","Package":"m/d","Elapsed":60}
`
	cut = `{"Action":"run","Package":"m/c","Test":"TestCut"}
`
	leaks = `{"Action":"run","Package":"m/l","Test":"TestGood"}
{"Action":"pass","Package":"m/l","Test":"TestGood","Elapsed":0.1}
{"Action":"output","Package":"m/l","Output":"goleak: found unexpected goroutines\n"}
{"Action":"fail","Package":"m/l","Elapsed":0.25}
`
	breaks = `{"ImportPath":"m/b [m/b.test]","Action":"build-output","Output":"b.go:1: undefined: x\n"}
{"ImportPath":"m/b [m/b.test]","Action":"build-fail"}
{"Action":"start","Package":"m/b"}
{"Action":"fail","Package":"m/b","Elapsed":0,"FailedBuild":"m/b [m/b.test]"}
`
	empty = `{"Action":"start","Package":"m/n"}
{"Action":"skip","Package":"m/n","Elapsed":0}
`
)

func TestReport(t *testing.T) {
	tests := []struct {
		name    string
		in      string
		noSkips bool
		want    []string // parts of the output
		err     string   // "" is success
	}{
		{"all pass", passes, true, []string{"ok    a ", "250ms", "1 passed, 0 failed, 0 skipped\n"}, ""},
		{"slow tests have lines", slow, true, []string{"ok    w ", "TestSlow  ", "41s\n", "2 passed, 0 failed, 0 skipped\n"}, ""},
		{"package without tests", passes + empty, true, []string{"1 passed, 0 failed, 0 skipped\n"}, ""},
		{"skip is listed", passes + skips, false, []string{"  s: TestRoot: s_test.go:9: needs root\n", "1 passed, 0 failed, 1 skipped\n"}, ""},
		{"skip is forbidden", passes + skips, true, []string{"1 passed, 0 failed, 1 skipped\n"}, "skipped"},
		{"failure", passes + fails, false, []string{"FAIL  f ", "f_test.go:9: want 1\n", "1 passed, 1 failed, 0 skipped\n"}, "failed"},
		{"test without result", passes + dies, false, []string{"panic: test timed out", "1 passed, 1 failed, 0 skipped\n"}, "failed"},
		{"events cut off", passes + cut, false, []string{"FAIL  c ", "1 passed, 1 failed, 0 skipped\n"}, "failed"},
		{"package fails, tests pass", leaks, false, []string{"goleak: found", "1 passed, 1 failed, 0 skipped\n"}, "failed"},
		{"does not build", breaks, false, []string{"b.go:1: undefined: x\n", "0 passed, 1 failed, 0 skipped\n"}, "failed"},
		{"no events", "", false, []string{"0 passed, 0 failed, 0 skipped\n"}, "no test ran"},
		{"no tests", empty, false, []string{"0 passed, 0 failed, 0 skipped\n"}, "no test ran"},
		{"not an event", "go: no such package\n" + passes, false, []string{"go: no such package\n"}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out strings.Builder
			r := newReport(&out, "m/")
			require.NoError(t, r.read(strings.NewReader(tt.in)))
			err := r.close(tt.noSkips)
			for _, want := range tt.want {
				require.Contains(t, out.String(), want)
			}
			if tt.err == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tt.err)
			}
		})
	}
}
