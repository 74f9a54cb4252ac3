package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// report is what a run found.
type report struct {
	Machine string `json:"machine"`
	Version string `json:"version"`
	Began   string `json:"began"`
	Took    string `json:"took"`
	Rows    []row  `json:"rows"`

	suite string
	// floors are the latest figures of a server that does nothing, by what they are the floor of.
	floors map[string]floor
}

// floor is a figure of a server that does nothing.
type floor struct{ p50, p99 float64 }

// row is one measurement.
type row struct {
	Suite string `json:"suite"`
	What  string `json:"what"`
	Setup string `json:"setup"`
	Unit  string `json:"unit"`
	// P50 is the figure itself where there is but one.
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99,omitempty"`
	Max float64 `json:"max,omitempty"`
	// N is how many samples there are, 0 for a single figure.
	N int `json:"n,omitempty"`
	// Against is the budget or the anchor, and Ratio how many times better this is: above 1 is better.
	Against  string  `json:"against,omitempty"`
	Ratio    float64 `json:"ratio,omitempty"`
	RatioP99 float64 `json:"ratioP99,omitempty"`
	Missed   bool    `json:"missed,omitempty"`
	// Floor is what a server that does nothing does here, in the same run; Beyond says that it misses the budget too.
	Floor  string `json:"floor,omitempty"`
	Beyond bool   `json:"beyond,omitempty"`
	Note   string `json:"note,omitempty"`
	// Load is the load average of the last minute when the row was made.
	Load float64 `json:"load"`
}

// bound is what a figure is compared with; 0 is no bound.
type bound struct {
	label    string
	p50, p99 float64
	// more says that more is better.
	more bool
	// floor names what a server that does nothing can be asked for too.
	floor string
}

func newReport() *report {
	return &report{
		Machine: fmt.Sprintf("%s, %d cores, %s", cpuModel(), runtime.NumCPU(), runtime.Version()),
		Began:   time.Now().UTC().Format(time.RFC3339),
		floors:  make(map[string]floor),
	}
}

// floorTimes notes durations as a floor.
func (r *report) floorTimes(name string, samples []time.Duration) {
	sorted := slices.Sorted(slices.Values(samples))
	if len(sorted) > 0 {
		r.floors[name] = floor{ms(quantile(sorted, 0.5)), ms(quantile(sorted, 0.99))}
	}
}

func cpuModel() string {
	data, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(data)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

// loadAverage is that of the last minute.
func loadAverage() float64 {
	data, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(data), " ")
	load, _ := strconv.ParseFloat(first, 64)
	return load
}

// times adds a row of durations, in ms.
func (r *report) times(what, setup string, samples []time.Duration, against ...bound) {
	if len(samples) == 0 {
		r.add(row{What: what, Setup: setup, Unit: "ms", Note: "no samples"})
		return
	}
	sorted := slices.Sorted(slices.Values(samples))
	r.compare(row{
		What: what, Setup: setup, Unit: "ms", N: len(sorted),
		P50: ms(quantile(sorted, 0.5)), P99: ms(quantile(sorted, 0.99)), Max: ms(sorted[len(sorted)-1]),
	}, against)
}

// figure adds a row of one number.
func (r *report) figure(what, setup, unit string, value float64, note string, against ...bound) {
	r.compare(row{What: what, Setup: setup, Unit: unit, P50: value, Note: note}, against)
}

// compare adds a row, once for each bound.
func (r *report) compare(line row, against []bound) {
	against = slices.DeleteFunc(against, func(b bound) bool { return b.p50 == 0 })
	if len(against) == 0 {
		r.add(line)
	}
	for _, b := range against {
		line.Against = b.label + " " + number(b.p50)
		line.Ratio = b.ratio(line.P50, b.p50)
		line.RatioP99 = 0
		if b.p99 > 0 {
			line.Against += " / " + number(b.p99)
			line.RatioP99 = b.ratio(line.P99, b.p99)
		}
		line.Missed = b.label == "budget" && (line.Ratio < 1 || b.p99 > 0 && line.RatioP99 < 1)
		if f, ok := r.floors[b.floor]; ok {
			line.Floor = number(f.p50)
			line.Beyond = b.ratio(f.p50, b.p50) < 1
			if b.p99 > 0 {
				line.Floor += " / " + number(f.p99)
				line.Beyond = line.Beyond || b.ratio(f.p99, b.p99) < 1
			}
		}
		r.add(line)
	}
}

func (b bound) ratio(value, limit float64) float64 {
	if !b.more {
		value, limit = limit, value
	}
	return value / max(limit, 1e-9)
}

func (r *report) add(line row) {
	line.Suite, line.Load = r.suite, loadAverage()
	r.Rows = append(r.Rows, line)
	fmt.Fprintln(os.Stderr, "    ", strings.Join(line.cells(), "  "))
}

func quantile(sorted []time.Duration, q float64) time.Duration {
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// number prints three significant digits, and no exponent.
func number(v float64) string {
	switch abs := max(v, -v); {
	case v == 0:
		return "0"
	case abs >= 100:
		return group(strconv.FormatFloat(v, 'f', 0, 64))
	case abs >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	default:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
}

// group puts commas between thousands.
func group(digits string) string {
	sign := strings.TrimRight(digits, "0123456789")
	digits = digits[len(sign):]
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return sign + digits
}

func (r *report) print(w io.Writer, format string) error {
	if format == "json" {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(r)
	}
	fmt.Fprintf(w, "%s\nnsp %s, began %s, took %s\n", r.Machine, r.Version, r.Began, r.Took)
	suite := ""
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, line := range r.Rows {
		if line.Suite != suite {
			suite = line.Suite
			fmt.Fprintf(tw, "\n%s\nWHAT\tSETUP\tP50\tP99\tMAX\tUNIT\tAGAINST\tTIMES BETTER\tLOAD\tNOTE\n", strings.ToUpper(suite))
		}
		fmt.Fprintln(tw, strings.Join(line.cells(), "\t"))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	return r.printBudgets(w)
}

// printBudgets repeats what has a budget, to be quoted.
func (r *report) printBudgets(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(tw, "\nBUDGETS\nWHAT\tSETUP\tSEEN\tBUDGET\tUNIT\tDOES NOTHING\tVERDICT\n")
	for _, line := range r.Rows {
		limit, ok := strings.CutPrefix(line.Against, "budget ")
		if !ok {
			continue
		}
		seen, verdict := number(line.P50), "met"
		if line.RatioP99 > 0 {
			seen += " / " + number(line.P99)
		}
		switch {
		case line.Missed && line.Beyond:
			verdict = "missed, as by a server that does nothing"
		case line.Missed:
			verdict = "missed"
		}
		fmt.Fprintln(tw, strings.Join([]string{line.What, line.Setup, seen, limit, line.Unit, line.Floor, verdict}, "\t"))
	}
	return tw.Flush()
}

func (l row) cells() []string {
	p99, most, ratio := "", "", ""
	if l.N > 0 {
		p99, most = number(l.P99), number(l.Max)
	}
	if l.Against != "" {
		ratio = number(l.Ratio)
		if l.RatioP99 > 0 {
			ratio += " / " + number(l.RatioP99)
		}
		if l.Missed {
			ratio += " MISSED"
		}
	}
	return []string{l.What, l.Setup, number(l.P50), p99, most, l.Unit, l.Against, ratio, number(l.Load), l.Note}
}
