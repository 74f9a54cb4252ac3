package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"

	"github.com/nordix/meridio-nsp/pkg/cli"
	"github.com/nordix/meridio-nsp/pkg/explain"
)

// completionTimeout is how long a shell may hang at the tabulator key.
const completionTimeout = time.Second

// ready prepares a connection for a completion; cobra does not run what it runs before a command.
func (c *connection) ready(cmd *cobra.Command) bool {
	err := cli.FromEnvironment(cmd.Flags())
	c.timeout = min(c.timeout, completionTimeout)
	return err == nil
}

// completePools offers the names of pools that are not on the command line yet.
func (c *connection) completePools(cmd *cobra.Command, args []string) ([]string, cobra.ShellCompDirective) {
	if !c.ready(cmd) {
		return nil, cobra.ShellCompDirectiveError
	}
	resp, err := c.pools(cmd.Context(), nil)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []string
	for _, p := range resp.GetPools() {
		if name := poolName(p); !slices.Contains(args, name) {
			names = append(names, name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeStreams offers the streams that pools or targets name.
func (c *connection) completeStreams(cmd *cobra.Command, args []string) ([]string, cobra.ShellCompDirective) {
	return c.completeNames(cmd, args, func(s *targetpoolv1.Stream) string { return streamName(s, s.GetNamespace()) })
}

// completeConduits offers their conduits.
func (c *connection) completeConduits(cmd *cobra.Command, args []string) ([]string, cobra.ShellCompDirective) {
	return c.completeNames(cmd, args, func(s *targetpoolv1.Stream) string { return s.GetTrench() + "/" + s.GetConduit() })
}

func (c *connection) completeNames(
	cmd *cobra.Command, args []string, name func(*targetpoolv1.Stream) string,
) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 || !c.ready(cmd) {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	add := func(s *targetpoolv1.Stream) {
		if s.GetName() != "" {
			names = append(names, name(s))
		}
	}
	if resp, err := c.pools(cmd.Context(), nil); err == nil {
		for _, p := range resp.GetPools() {
			add(p.GetStream())
		}
	}
	if resp, err := c.targets(cmd.Context(), nil); err == nil {
		for _, t := range resp.GetTargets() {
			add(t.GetStream())
		}
	}
	slices.Sort(names)
	return slices.Compact(names), cobra.ShellCompDirectiveNoFileComp
}

// completePods offers the pods that are members of pools.
func (c *connection) completePods(cmd *cobra.Command, args []string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 || !c.ready(cmd) {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	resp, err := c.pools(cmd.Context(), nil)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []string
	for _, p := range resp.GetPools() {
		for _, m := range p.GetMembers() {
			if m.GetPod() != "" && !m.GetExternalTarget() {
				names = append(names, memberName(m))
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), cobra.ShellCompDirectiveNoFileComp
}

// completeSubjects offers what can be explained: objects from the API server, and from the NSP where that does not answer; targets
// from the NSP.
func (c *connection) completeSubjects(
	cmd *cobra.Command, a *clusterAccess, args []string, word string,
) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 || !c.ready(cmd) {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	kind, _, ok := strings.Cut(word, "/")
	if !ok {
		return []string{"externaltarget/", "pod/", "service/", "streampolicy/", "target/", "targetpool/"}, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
	return subjects(kinds[kind], c.subjectNames(cmd, a, kinds[kind])), cobra.ShellCompDirectiveNoFileComp
}

func (c *connection) subjectNames(cmd *cobra.Command, a *clusterAccess, kind explain.Kind) (names []string) {
	ctx, cancel := context.WithTimeout(cmd.Context(), c.timeout)
	defer cancel()
	namespace := a.currentNamespace()
	if kind == explain.Target {
		resp, err := c.targets(ctx, nil)
		if err != nil {
			return nil
		}
		for _, t := range resp.GetTargets() {
			for _, ip := range t.GetIps() {
				ip, _, _ = strings.Cut(ip, "/")
				names = append(names, ip)
			}
		}
		return names
	}
	if api, err := a.open(); err == nil {
		names = api.namesOf(ctx, kind, namespace)
	}
	if len(names) > 0 {
		return names
	}
	resp, err := c.pools(ctx, nil)
	if err != nil {
		return nil
	}
	for _, p := range resp.GetPools() {
		names = append(names, namesIn(p, kind, namespace)...)
	}
	return names
}

// namesIn are the names of a kind that a pool has, in a namespace.
func namesIn(p *targetpoolv1.PoolInfo, kind explain.Kind, namespace string) (names []string) {
	if kind == explain.Service && p.GetNamespace() == namespace {
		return []string{p.GetName()}
	}
	wanted := map[explain.Kind]bool{explain.Pod: false, explain.ExternalTarget: true}
	for _, m := range p.GetMembers() {
		if external, asked := wanted[kind]; asked && m.GetNamespace() == namespace && m.GetPod() != "" && m.GetExternalTarget() == external {
			names = append(names, m.GetPod())
		}
	}
	return names
}

// completeParts offers the parts of the names of all streams for a flag.
func (c *connection) completeParts(cmd *cobra.Command, flag string, part func(*targetpoolv1.Stream) string) {
	c.completeFlag(cmd, flag, func(cmd *cobra.Command, _ []string) ([]string, cobra.ShellCompDirective) {
		return c.completeNames(cmd, nil, part)
	})
}

func (c *connection) completeFlag(
	cmd *cobra.Command, flag string, names func(*cobra.Command, []string) ([]string, cobra.ShellCompDirective),
) {
	err := cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return names(cmd, nil)
	})
	if err != nil {
		panic(err) // the flag does not exist
	}
}
