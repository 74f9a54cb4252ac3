package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/cli"
	"github.com/nordix/meridio-nsp/pkg/targetpool/client"
)

func newWatchFeed(how reach) *cobra.Command {
	var conn *connection
	var out *output
	cmd := &cobra.Command{
		Use:   "feed trench/conduit",
		Short: "See what the load balancers of a conduit are told",
		Long: "See what the load balancers of a conduit are told, one line per change: + a new target, ~ a changed one, - one that left.\n" +
			"The last column is the time from the cause, as the cluster reported it, to the arrival here. Stop it with Ctrl-C.",
		Example: "  nsp watch feed trench-a/load-balancer\n" +
			"  nsp watch feed trench-a/load-balancer -o json | jq -r 'select(.change == \"removed\") | .target.addresses[]'",
		Args: func(_ *cobra.Command, args []string) error {
			_, err := parseConduit(args)
			return err
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.validate(); err != nil {
				return err
			}
			conduit, err := parseConduit(args)
			if err != nil {
				return err
			}
			p := newFeedPrinter(cmd.OutOrStdout(), out)
			return conn.watch(cmd, func(c *client.Client) (watching, error) {
				return c.WatchFeed(client.FeedConfig{Conduit: conduit, Handler: p.update})
			})
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			return conn.completeConduits(cmd, args)
		},
	}
	conn, out = addConnectionTo(cmd, how), addOutput(cmd)
	return cmd
}

func parseConduit(args []string) (*targetpoolv1.Conduit, error) {
	trench, name, ok := strings.Cut(strings.Join(args, " "), "/")
	if len(args) != 1 || !ok || trench == "" || name == "" || strings.Contains(name, "/") {
		return nil, cli.Usage(errors.New("name one conduit to watch: write trench/conduit"))
	}
	return &targetpoolv1.Conduit{Trench: trench, Name: name}, nil
}

// change is what happened to a target.
type change string

const (
	added   change = "added"
	changed change = "changed"
	removed change = "removed"
)

func (c change) sign() string {
	return map[change]string{added: "+", changed: "~", removed: "-"}[c]
}

// feedEvent is one change for machines.
type feedEvent struct {
	Time   time.Time `json:"time"`
	Change change    `json:"change"`
	// Snapshot is set in what was there when the watch began.
	Snapshot bool            `json:"snapshot"`
	Stale    bool            `json:"stale"`
	Epoch    string          `json:"epoch"`
	Revision uint64          `json:"revision"`
	Target   json.RawMessage `json:"target"`
	// LatencySeconds is the time from the cause to here, absent where there is no cause to count from.
	LatencySeconds *float64 `json:"latencySeconds,omitempty"`
}

// feedPrinter prints the changes of a feed.
type feedPrinter struct {
	w     io.Writer
	out   *output
	brush brush
	known map[client.Key]bool
	stale bool
}

func newFeedPrinter(w io.Writer, out *output) *feedPrinter {
	return &feedPrinter{w: w, out: out, brush: brushFor(w), known: map[client.Key]bool{}}
}

// update is the handler of the watch.
func (p *feedPrinter) update(u client.Update) {
	if !p.out.forMachines() {
		p.remark(u)
	}
	for _, t := range u.Removed {
		p.print(u, removed, t)
		delete(p.known, t.Key)
	}
	for _, t := range u.Set {
		what := added
		if p.known[t.Key] {
			what = changed
		}
		p.print(u, what, t)
		p.known[t.Key] = true
	}
}

// remark says what no change says.
func (p *feedPrinter) remark(u client.Update) {
	at := u.Received.Format(clock)
	if u.First && len(u.Set) == 0 {
		fmt.Fprintln(p.w, at, " ", "the conduit has no targets")
	}
	if u.Stale != p.stale {
		p.stale = u.Stale
		remark := "the NSP has heard of the cluster again"
		if u.Stale {
			remark = "the NSP runs on what it stored: the cluster has not answered it yet"
		}
		fmt.Fprintln(p.w, at, " ", remark)
	}
}

// print prints one change. Output that fails has nobody to be told, and a closed pipe ends the process.
func (p *feedPrinter) print(u client.Update, what change, t *client.Target) {
	if p.out.forMachines() {
		_ = p.out.event(p.w, p.event(u, what, t))
		return
	}
	latency := "-"
	if d, ok := latencyOf(u, what, t); ok {
		latency = d.Round(100 * time.Microsecond).String()
	}
	cells := []string{
		u.Received.Format(clock), what.sign(), t.GetStream(), strconv.FormatUint(uint64(t.GetIdentifier()), 10),
		orDash(strings.Join(t.GetAddresses(), ",")), p.brush.state(stateName(t.GetState())), orDash(t.GetReason()), latency,
	}
	if p.out.wide() {
		cells = append(cells, orDash(t.GetPod()), orDash(componentNames(t.GetComponents()...)), fmt.Sprintf("%s/%d", u.Version.Epoch, u.Version.Revision))
	}
	fmt.Fprintln(p.w, strings.Join(cells, "  "))
}

func (p *feedPrinter) event(u client.Update, what change, t *client.Target) feedEvent {
	e := feedEvent{
		Time: u.Received, Change: what, Snapshot: u.First, Stale: u.Stale, Epoch: u.Version.Epoch, Revision: u.Version.Revision,
	}
	if b, err := marshal(t.Target); err == nil {
		e.Target = b
	}
	if d, ok := latencyOf(u, what, t); ok {
		e.LatencySeconds = new(d.Seconds())
	}
	return e
}

// latencyOf is the time from the cause of a change to its arrival. What was there before the watch, and what left, has no cause to
// count from.
func latencyOf(u client.Update, what change, t *client.Target) (time.Duration, bool) {
	if u.First || what == removed || t.GetCaused() == nil {
		return 0, false
	}
	return u.Received.Sub(t.GetCaused().AsTime()), true
}

// clock is the time of day in a timeline.
const clock = "15:04:05.000"
