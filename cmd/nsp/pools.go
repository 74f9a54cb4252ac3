package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/cli"
	"github.com/nordix/meridio-nsp/pkg/pool"
)

func newPools(how reach) *cobra.Command {
	var conn *connection
	var in *where
	var out *output
	var filter poolFilter
	cmd := &cobra.Command{
		Use:   "pools [namespace/name...]",
		Short: "Show the Services that are pools of targets",
		Long: "Show the Services that are pools of targets, refused ones included, as a running NSP understands them.\n" +
			"With the name of one pool its members are shown. With --namespace a name needs no namespace.",
		Example: how.example("pools", "pools red/web", "pools --accepted=no --sort-by=namespace",
			"pools -o json | jq '.pools[] | select(.accepted | not) | .message'"),
		Args: func(_ *cobra.Command, args []string) error {
			_, err := in.names(args)
			return err
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := errors.Join(out.validate(), filter.validate()); err != nil {
				return err
			}
			names, err := in.names(args)
			if err != nil {
				return err
			}
			pools, err := conn.pools(cmd.Context(), names)
			if err != nil {
				return err
			}
			if filter.namespace = in.namespace(); len(names) > 0 {
				filter.namespace = ""
			}
			if all := len(pools.GetPools()); all > 0 {
				if filter.apply(pools); len(pools.GetPools()) == 0 && !out.forMachines() {
					fmt.Fprintf(cmd.ErrOrStderr(), "None of %d pools is like that.\n", all)
					return nil
				}
			}
			return printPools(cmd, out, pools, len(names) == 1 && len(pools.GetPools()) == 1)
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			return conn.completePools(cmd, args)
		},
	}
	conn, in = addWhere(cmd, how)
	out = addOutput(cmd)
	filter.addTo(conn, cmd)
	return cmd
}

// where is the namespace that a list is confined to.
type where struct {
	// cluster is set in the plugin, whose default is the namespace of the context.
	cluster *clusterAccess
	only    string
	all     bool
}

func addWhere(cmd *cobra.Command, how reach) (*connection, *where) {
	w := &where{}
	if how == byForward {
		var conn *connection
		conn, w.cluster = addReach(cmd, how)
		cmd.Flags().BoolVarP(&w.all, "all-namespaces", "A", false, "those of all namespaces")
		return conn, w
	}
	conn := addConnection(cmd, how)
	// In the NSP's own pod the environment names its namespace, which is no wish to see no other.
	cmd.Flags().StringVarP(&w.only, "namespace", "n", "", "only those of this namespace; not read from the environment")
	cli.NotFromEnvironment(cmd, "namespace")
	return conn, w
}

// namespace is empty for all.
func (w *where) namespace() string {
	switch {
	case w.all:
		return ""
	case w.cluster != nil:
		return w.cluster.currentNamespace()
	}
	return w.only
}

// names completes the names of pools with the namespace.
func (w *where) names(args []string) ([]string, error) {
	names := make([]string, 0, len(args))
	for _, a := range args {
		namespace, name, ok := strings.Cut(a, "/")
		if !ok {
			namespace, name = w.namespace(), a
		}
		if namespace == "" || name == "" || strings.Contains(name, "/") {
			return nil, cli.Usage(fmt.Errorf("%q is no pool: write namespace/name of its Service", a))
		}
		names = append(names, namespace+"/"+name)
	}
	return names, nil
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
