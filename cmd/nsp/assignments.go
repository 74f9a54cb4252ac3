package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/cli"
	"github.com/nordix/meridio-nsp/pkg/targetpool/client"
)

func newWatchAssignments(how reach) *cobra.Command {
	var conn *connection
	var out *output
	var address string
	cmd := &cobra.Command{
		Use:   "assignments {namespace/pod | --address IP}",
		Short: "See which streams a pod is told to hold",
		Long: "See which streams a pod is told to hold, one line per change: + open, ~ other Services ask for it, - close. Stop it with Ctrl-C.\n" +
			"With --authorisation=peer-address the NSP tells that to the pod itself only; see 'nsp pools namespace/name' for the same from elsewhere.",
		Example: "  nsp watch assignments red/web-0\n" +
			"  nsp watch assignments --address 10.244.1.7 -o json",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return cli.Usage(errors.New("name one pod to watch for: write namespace/pod"))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.validate(); err != nil {
				return err
			}
			workload, err := parseWorkload(args, address)
			if err != nil {
				return err
			}
			p := &assignmentPrinter{w: cmd.OutOrStdout(), out: out, brush: brushFor(cmd.OutOrStdout())}
			return conn.watch(cmd, func(c *client.Client) (watching, error) {
				return c.WatchAssignments(client.AssignmentsConfig{Workload: workload, Handler: p.list})
			})
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			return conn.completePods(cmd, args)
		},
	}
	conn, out = addConnectionTo(cmd, how), addOutput(cmd)
	cmd.Flags().StringVar(&address, "address", "", "address of the pod in the cluster, instead of its name")
	return cmd
}

func parseWorkload(args []string, address string) (*targetpoolv1.Workload, error) {
	switch {
	case address != "" && len(args) > 0:
		return nil, cli.Usage(errors.New("name the pod or its --address, not both"))
	case address != "":
		if _, err := netip.ParseAddr(address); err != nil {
			return nil, cli.Usage(fmt.Errorf("--address is %q: write an IP address, as 10.244.1.7", address))
		}
		return &targetpoolv1.Workload{Address: address}, nil
	}
	namespace, pod, ok := strings.Cut(strings.Join(args, ""), "/")
	if !ok || namespace == "" || pod == "" || strings.Contains(pod, "/") {
		return nil, cli.Usage(errors.New("name one pod to watch for: write namespace/pod, or use --address"))
	}
	return &targetpoolv1.Workload{Namespace: namespace, Pod: pod}, nil
}

// assignmentEvent is a whole list for machines.
type assignmentEvent struct {
	Time        time.Time       `json:"time"`
	Epoch       string          `json:"epoch"`
	Revision    uint64          `json:"revision"`
	Assignments json.RawMessage `json:"assignments"`
}

// assignmentPrinter prints lists, for people as differences.
type assignmentPrinter struct {
	w     io.Writer
	out   *output
	brush brush
	// held are the Services of each stream in the last list.
	held map[string]string
}

// list is the handler of the watch.
func (p *assignmentPrinter) list(l client.AssignmentList) {
	if p.out.forMachines() {
		p.event(l)
		return
	}
	now := make(map[string]string, len(l.Items))
	for _, item := range l.Items {
		s := item.GetStream()
		now[strings.Join([]string{s.GetNamespace(), s.GetTrench(), s.GetConduit(), s.GetName()}, "/")] = strings.Join(item.GetServices(), ",")
	}
	for _, name := range slices.Sorted(maps.Keys(p.held)) {
		if _, still := now[name]; !still {
			p.print(l, p.brush.paint(red, removed.sign()), name, p.held[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(now)) {
		services, had := p.held[name]
		switch {
		case !had:
			p.print(l, p.brush.paint(green, added.sign()), name, now[name])
		case services != now[name]:
			p.print(l, p.brush.paint(yellow, changed.sign()), name, now[name])
		}
	}
	if len(now) == 0 {
		fmt.Fprintln(p.w, l.Received.Format(clock), " ", "no stream")
	}
	p.held = now
}

func (p *assignmentPrinter) print(l client.AssignmentList, sign, name, services string) {
	cells := []string{l.Received.Format(clock), sign, name, orDash(services)}
	if p.out.wide() {
		cells = append(cells, fmt.Sprintf("%s/%d", l.Version.Epoch, l.Version.Revision))
	}
	fmt.Fprintln(p.w, strings.Join(cells, "  "))
}

func (p *assignmentPrinter) event(l client.AssignmentList) {
	items, err := marshal(&targetpoolv1.Assignments{Items: l.Items})
	if err != nil {
		return
	}
	// The list alone, without the message around it.
	var list struct {
		Items json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(items, &list); err != nil {
		return
	}
	_ = p.out.event(p.w, assignmentEvent{
		Time: l.Received, Epoch: l.Version.Epoch, Revision: l.Version.Revision, Assignments: list.Items,
	})
}
