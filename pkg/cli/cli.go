// Package cli is what the programs of this project have in common on the command line: exit codes, flags from the
// environment, the log, and the health probe that each of them is under another name.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
)

// Version is what the build says it is.
var Version = "dev"

// Exit codes, as people and scripts expect them.
const (
	ExitOK = iota
	ExitFailed
	ExitUsage
)

// UsageError is a command line that makes no sense.
type UsageError struct{ Err error }

// Error implements error.
func (e UsageError) Error() string { return e.Err.Error() }

// Unwrap is what makes no sense.
func (e UsageError) Unwrap() error { return e.Err }

// Usage marks errors for which Execute points to --help.
func (e UsageError) Usage() {}

// Usage makes an error a UsageError; nil stays nil.
func Usage(err error) error {
	if err == nil {
		return nil
	}
	return UsageError{err}
}

// Execute runs a program and returns its exit code. The name it is called by may make it the health probe.
func Execute(ctx context.Context, root *cobra.Command, args []string, stdout, stderr io.Writer) int {
	if filepath.Base(args[0]) == ProbeName {
		root = NewProbe() //nolint:contextcheck // cobra hands the context to the command
		args = SingleDashes(args)
	}
	root.SetArgs(args[1:])
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return ExitOK
	}
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintln(stderr, "Error:", strings.TrimSuffix(line, "\n"))
	}
	if _, ok := errors.AsType[interface {
		error
		Usage()
	}](err); ok {
		fmt.Fprintf(stderr, "Run '%s --help' for all there is.\n", cmd.CommandPath())
		return ExitUsage
	}
	return ExitFailed
}

// NoCommand refuses the arguments of a program that does its work without a command: they name commands that it does not have.
func NoCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	text := fmt.Sprintf("unknown command %q", args[0])
	cmd.SuggestionsMinimumDistance = 2 // of cobra's own
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		text += ": did you mean " + strings.Join(near, " or ") + "?"
	}
	return Usage(errors.New(text))
}

// Program makes a command the root of a program: flags come from the environment too, commands that do not exist and flags that make no
// sense are usage errors, and "version" prints the version.
func Program(root *cobra.Command, version string) {
	root.Version, root.SilenceErrors, root.SilenceUsage = version, true, true
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { return FromEnvironment(cmd.Flags()) }
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return Usage(err) })
	root.Args = NoCommand
	root.AddCommand(&cobra.Command{
		Use: "version", Short: "Print the version", Args: NoArgs,
		Run: func(cmd *cobra.Command, _ []string) { fmt.Fprintln(cmd.OutOrStdout(), version) },
	})
}

// NoArgs refuses arguments.
func NoArgs(cmd *cobra.Command, args []string) error { return Usage(cobra.NoArgs(cmd, args)) }

// Complete offers the values of a flag to the shell.
func Complete(cmd *cobra.Command, flag string, values ...string) {
	err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	if err != nil {
		panic(err) // the flag does not exist
	}
}
