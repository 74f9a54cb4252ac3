package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/pool"
)

func newPools() *cobra.Command {
	var conn *connection
	var out *output
	cmd := &cobra.Command{
		Use:   "pools [namespace/name...]",
		Short: "Show the Services that are pools of targets",
		Long: "Show the Services that are pools of targets, refused ones included, as a running NSP understands them.\n" +
			"With the name of one pool its members are shown.",
		Example: "  kubectl port-forward svc/nsp-service 7778 &\n" +
			"  nsp pools\n" +
			"  nsp pools red/web\n" +
			"  nsp pools -o json | jq '.pools[] | select(.accepted | not) | .message'",
		Args: poolNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.validate(); err != nil {
				return err
			}
			pools, err := conn.pools(cmd.Context(), args)
			if err != nil {
				return err
			}
			return printPools(cmd, out, pools, len(args) == 1)
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			return conn.completePools(cmd, args)
		},
	}
	conn, out = addConnection(cmd), addOutput(cmd)
	return cmd
}

func poolNames(_ *cobra.Command, args []string) error {
	for _, a := range args {
		if namespace, name, ok := strings.Cut(a, "/"); !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
			return usageError{fmt.Errorf("%q is no pool: write namespace/name of its Service", a)}
		}
	}
	return nil
}

// pools are all pools, or those with the names.
func (c *connection) pools(ctx context.Context, names []string) (*targetpoolv1.ListPoolsResponse, error) {
	req := &targetpoolv1.ListPoolsRequest{}
	if len(names) == 1 {
		req.Namespace, _, _ = strings.Cut(names[0], "/")
	}
	var resp *targetpoolv1.ListPoolsResponse
	err := c.inspect(ctx, func(ctx context.Context, client targetpoolv1.InspectorClient) (err error) {
		resp, err = client.ListPools(ctx, req)
		return err
	})
	if err != nil || len(names) == 0 {
		return resp, err
	}
	resp.Pools = slices.DeleteFunc(resp.GetPools(), func(p *targetpoolv1.PoolInfo) bool {
		return !slices.Contains(names, poolName(p))
	})
	return resp, missingPools(resp.GetPools(), names)
}

func poolName(p *targetpoolv1.PoolInfo) string { return p.GetNamespace() + "/" + p.GetName() }

func missingPools(have []*targetpoolv1.PoolInfo, names []string) error {
	var errs []error
	for _, name := range names {
		if !slices.ContainsFunc(have, func(p *targetpoolv1.PoolInfo) bool { return poolName(p) == name }) {
			errs = append(errs, fmt.Errorf("no Service %s is a pool: see 'nsp pools' for those that are; it takes the label %s=%s",
				name, pool.LabelMarker, pool.MarkerValue))
		}
	}
	return errors.Join(errs...)
}

func printPools(cmd *cobra.Command, out *output, resp *targetpoolv1.ListPoolsResponse, members bool) error {
	w := cmd.OutOrStdout()
	b := brushFor(w)
	switch {
	case out.forMachines():
		return out.message(w, resp)
	case len(resp.GetPools()) == 0:
		fmt.Fprintf(cmd.ErrOrStderr(), "No Service is a pool. One that bears the label %s=%s is.\n", pool.LabelMarker, pool.MarkerValue)
		return nil
	}
	if err := poolTable(b, resp.GetPools(), out.wide()).print(w); err != nil || !members {
		return err
	}
	p := resp.GetPools()[0]
	printRemarks(w, p)
	if len(p.GetMembers()) == 0 {
		fmt.Fprintln(w, "\nIt has no members.")
		return nil
	}
	fmt.Fprintln(w)
	return memberTable(b, p.GetMembers(), out.wide()).print(w)
}
