package main

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nordix/meridio-nsp/pkg/cli"
	"github.com/nordix/meridio-nsp/pkg/nsp"
	"github.com/nordix/meridio-nsp/pkg/registry"
	"github.com/nordix/meridio-nsp/pkg/registry/meridio1x"
)

// defaultDatasource is where Meridio's operator mounts the volume of an NSP.
const defaultDatasource = "/run/nsp/data/registry.db"

func newImport() *cobra.Command {
	var cfg nsp.ImportConfig
	cmd := &cobra.Command{
		Use:   "import --from file",
		Short: "Take over a registry of Meridio 1.x",
		Long: "Take over the registrations in a registry file of Meridio 1.x, while no NSP runs on the datasource.\n" +
			"A process whose datasource is such a file does so by itself; this is for files from elsewhere, and for looking first.\n" +
			"The file is only read. It is taken over once, and again after it has changed.",
		Example: "  nsp import --from /backup/registry.db --namespace red --dry-run",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cfg.Validate(); err != nil {
				return cli.Usage(err)
			}
			report, into, err := nsp.Import(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			return printImport(cmd.OutOrStdout(), cfg, report, into)
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.From, "from", "", "registry file of Meridio 1.x (required)")
	f.StringVar(&cfg.Datasource, "datasource", defaultDatasource, "datasource of the process that shall have the registrations")
	f.StringVar(&cfg.Namespace, "namespace", "", "namespace of that process (required)")
	f.BoolVar(&cfg.DryRun, "dry-run", false, "only say what would be taken over")
	return cmd
}

func printImport(w io.Writer, cfg nsp.ImportConfig, r nsp.TakeoverReport, into string) error {
	if len(r.Targets) > 0 {
		if err := registrationTable(r.Targets).print(w); err != nil {
			return err
		}
		fmt.Fprintln(w)
	}
	printProblems(w, r.Problems)
	if r.Known {
		fmt.Fprintf(w, "%s was taken over into %s on %s and has not changed since: nothing to do.\n", cfg.From, into, r.Before.Format(time.RFC3339))
		return nil
	}
	done := "Taken over"
	if cfg.DryRun {
		done = "Would be taken over"
	}
	fmt.Fprintf(w, "%s from %s into %s: %s (%d added, %d changed, %d unchanged), %d removed.\n",
		done, cfg.From, into, counted(len(r.Targets), "registration"), r.Added, r.Changed, r.Unchanged, r.Removed)
	if r.Blocked > 0 {
		fmt.Fprintf(w, "%s for an identifier that another one holds.\n", counted(r.Blocked, "enabled registration waits", "enabled registrations wait"))
	}
	return nil
}

// counted is a number with its noun, whose plural takes an s where none is given.
func counted(n int, one string, many ...string) string {
	switch {
	case n == 1:
		return "1 " + one
	case len(many) > 0:
		return strconv.Itoa(n) + " " + many[0]
	}
	return strconv.Itoa(n) + " " + one + "s"
}

func printProblems(w io.Writer, problems []meridio1x.Problem) {
	if len(problems) == 0 {
		return
	}
	fmt.Fprintf(w, "Left out, %s:\n", counted(len(problems), "entry", "entries"))
	for _, p := range problems {
		fmt.Fprintf(w, "  %s\n", p)
	}
	fmt.Fprintln(w)
}

func registrationTable(targets []registry.Target) *table {
	t := &table{}
	t.add("TYPE", "STREAM", "ADDRESSES", "IDENTIFIER", "STATUS")
	for _, r := range targets {
		st := strings.Trim(strings.Join([]string{r.Stream.Trench, r.Stream.Conduit, r.Stream.Name}, "/"), "/")
		t.add(typeName(r.Type), orDash(st), strings.Join(r.IPs, ","), orDash(r.Context["identifier"]), statusName(r.Status))
	}
	return t
}

func typeName(t registry.Type) string {
	names := map[registry.Type]string{registry.Default: "DEFAULT", registry.Frontend: "FRONTEND"}
	return cmp.Or(names[t], strconv.Itoa(int(t)))
}

func statusName(s registry.Status) string {
	names := map[registry.Status]string{registry.Enabled: "ENABLED", registry.Disabled: "DISABLED", registry.Any: "ANY"}
	return cmp.Or(names[s], strconv.Itoa(int(s)))
}
