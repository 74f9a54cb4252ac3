package reference

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Flags describes a program: each command with its flags. Where a flag can be set by an environment variable too, variable
// names it.
func Flags(root *cobra.Command, variable func(*pflag.Flag) string) string {
	var b strings.Builder
	describe(&b, root, variable)
	return b.String()
}

func describe(b *strings.Builder, cmd *cobra.Command, variable func(*pflag.Flag) string) {
	if cmd.Hidden || cmd.Name() == "help" || cmd.Name() == "completion" {
		return
	}
	cmd.InitDefaultHelpFlag()
	fmt.Fprintf(b, "### %s\n\n%s.\n\n", cmd.CommandPath(), strings.TrimSuffix(cmd.Short, "."))
	fmt.Fprintf(b, "    %s\n\n", cmd.UseLine())
	table(b, cmd.NonInheritedFlags(), variable)
	for _, sub := range cmd.Commands() {
		describe(b, sub, variable)
	}
}

func table(b *strings.Builder, flags *pflag.FlagSet, variable func(*pflag.Flag) string) {
	began := false
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" || f.Name == "version" {
			return
		}
		if !began {
			b.WriteString(Head("flag", "default", "variable", "meaning"))
			began = true
		}
		name, usage := pflag.UnquoteUsage(f)
		flag := "--" + f.Name
		if f.Shorthand != "" {
			flag = "-" + f.Shorthand + ", " + flag
		}
		b.WriteString(Row("`"+strings.TrimSpace(flag+" "+name)+"`", code(f.DefValue), code(variable(f)), usage))
	})
	if began {
		b.WriteString("\n")
	}
}

// code is empty for what is empty.
func code(s string) string {
	if s == "" || s == "[]" {
		return ""
	}
	return "`" + s + "`"
}
