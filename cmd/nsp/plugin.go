package main

import (
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/nordix/meridio-nsp/pkg/cli"
	"github.com/nordix/meridio-nsp/pkg/nsp"
)

// The names by which kubectl finds the plugin, and its completion.
const (
	pluginName         = "kubectl-targetpool"
	pluginCompleteName = "kubectl_complete-targetpool"
)

// program is what the name makes of this binary.
func program(args []string) (*cobra.Command, []string) {
	switch filepath.Base(args[0]) {
	case pluginName:
		return newPlugin(), args
	case pluginCompleteName:
		return newPlugin(), append([]string{args[0], cobra.ShellCompRequestCmd}, args[1:]...)
	}
	return newRoot(), args
}

// newPlugin is what people look in with, as a plugin of kubectl: with its flags, and without a port-forward of their own.
func newPlugin() *cobra.Command {
	root := &cobra.Command{
		Use:   pluginName,
		Short: "See what becomes of Services, pods and targets of Meridio",
		Long: "See what becomes of Services, pods and targets of Meridio. The NSP is reached through the API server, as by\n" +
			"kubectl port-forward, unless --nsp-address names it.",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl targetpool"},
		RunE:        func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cli.Program(root, nsp.Version)
	root.AddCommand(newExplain(byForward), newPools(byForward), newTargets(byForward), newWatch(byForward))
	return root
}
