package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"

	"github.com/nordix/meridio-nsp/pkg/cli"
)

func newTargets(how reach) *cobra.Command {
	var conn *connection
	var out *output
	var filter targetFilter
	cmd := &cobra.Command{
		Use:   "targets [trench[/conduit[/stream]]]",
		Short: "Show the registrations and what load balancers are told of them",
		Long: "Show the registrations of a running NSP: what the targets asked for, which pod they belong to, and what load balancers\n" +
			"are told of them, with the reason.",
		Example: how.example("targets", "targets trench-a/load-balancer/stream-1 -o wide", "targets --state=inactive --sort-by=caused",
			"targets --service=red/web", "targets trench-a -o json | jq '.targets[] | select(.state != \"STATE_ACTIVE\")'"),
		Args: func(_ *cobra.Command, args []string) error {
			_, err := parseStream(args)
			return err
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := errors.Join(out.validate(), filter.validate()); err != nil {
				return err
			}
			resp, err := conn.filteredTargets(cmd.Context(), args, &filter)
			if err != nil {
				return err
			}
			return printTargets(cmd, out, resp)
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			return conn.completeStreams(cmd, args)
		},
	}
	conn, out = addConnectionTo(cmd, how), addOutput(cmd)
	filter.addTo(conn, cmd)
	return cmd
}

func (c *connection) filteredTargets(ctx context.Context, args []string, filter *targetFilter) (*targetpoolv1.ListTargetsResponse, error) {
	s, err := parseStream(args)
	if err != nil {
		return nil, err
	}
	var pools []*targetpoolv1.PoolInfo
	if filter.service != "" {
		resp, err := c.pools(ctx, []string{filter.service})
		if err != nil {
			return nil, err
		}
		pools = resp.GetPools()
	}
	resp, err := c.targets(ctx, s)
	if err != nil {
		return nil, err
	}
	filter.apply(resp, pools)
	return resp, nil
}

// parseStream reads the part of a stream's name that is given; none is all.
func parseStream(args []string) (*targetpoolv1.Stream, error) {
	s := &targetpoolv1.Stream{}
	if len(args) == 0 {
		return s, nil
	}
	parts := strings.Split(args[0], "/")
	if len(args) > 1 || len(parts) > 3 || slices.Contains(parts, "") {
		return nil, cli.Usage(fmt.Errorf("%q is no stream: write trench, trench/conduit or trench/conduit/stream", strings.Join(args, " ")))
	}
	for i, field := range []*string{&s.Trench, &s.Conduit, &s.Name}[:len(parts)] {
		*field = parts[i]
	}
	return s, nil
}

func (c *connection) targets(ctx context.Context, s *targetpoolv1.Stream) (resp *targetpoolv1.ListTargetsResponse, err error) {
	err = c.inspect(ctx, func(ctx context.Context, client targetpoolv1.InspectorClient) (err error) {
		resp, err = client.ListTargets(ctx, &targetpoolv1.ListTargetsRequest{Stream: s})
		return err
	})
	return resp, err
}

func printTargets(cmd *cobra.Command, out *output, resp *targetpoolv1.ListTargetsResponse) error {
	w := cmd.OutOrStdout()
	if out.forMachines() {
		return out.message(w, resp)
	}
	if len(resp.GetTargets()) == 0 {
		fmt.Fprintln(cmd.ErrOrStderr(), "Nothing like that is registered.")
		return nil
	}
	return targetTable(brushFor(w), resp.GetTargets(), out.wide()).print(w)
}

func targetTable(b brush, targets []*targetpoolv1.TargetInfo, wide bool) *table {
	t := &table{}
	head := []string{"STREAM", "ID", "IDENTIFIER", "ADDRESSES", "STATUS", b.heading("STATE"), "REASON", "POD", "BINDING"}
	if wide {
		head = append(head, "TYPE", "BLOCKED", "LISTED", "CAUSED", "POD-UID", "COMPONENTS")
	}
	t.add(head...)
	for _, x := range targets {
		row := []string{
			streamName(x.GetStream(), x.GetStream().GetNamespace()), strconv.FormatUint(x.GetId(), 10), orDash(x.GetIdentifier()),
			orDash(strings.Join(x.GetIps(), ",")), x.GetStatus(), b.state(stateName(x.GetState())), orDash(x.GetReason()),
			orDash(x.GetPod()), orDash(x.GetBinding()),
		}
		if wide {
			caused := ""
			if x.GetCaused() != nil {
				caused = x.GetCaused().AsTime().Format(time.RFC3339)
			}
			row = append(row, x.GetType(), yesNo(x.GetBlocked()), yesNo(x.GetListed()), orDash(caused), orDash(x.GetPodUid()),
				orDash(componentNames(x.GetComponents()...)))
		}
		t.add(row...)
	}
	return t
}

// componentNames are cluster/namespace/Service, with commas between.
func componentNames(all ...*targetpoolv1.Component) string {
	var names []string
	for _, c := range all {
		if c != nil {
			names = append(names, c.GetCluster()+"/"+c.GetNamespace()+"/"+c.GetService())
		}
	}
	return strings.Join(names, ",")
}

// stateName is ACTIVE, DRAINING, INACTIVE, or a dash where nothing is told of the target.
func stateName(s targetpoolv1.Target_State) string {
	if s == targetpoolv1.Target_STATE_UNSPECIFIED {
		return "-"
	}
	return strings.TrimPrefix(s.String(), "STATE_")
}
