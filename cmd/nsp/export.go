package main

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/spf13/cobra"

	"github.com/nordix/meridio-nsp/pkg/cli"
	"github.com/nordix/meridio-nsp/pkg/nsp"
)

func newExport() *cobra.Command {
	var cfg nsp.ExportConfig
	cmd := &cobra.Command{
		Use:   "export --to file",
		Short: "Write the registry as one of Meridio 1.x",
		Long: "Write the registrations of a datasource, on which no NSP runs, into a registry file of Meridio 1.x, for a downgrade.\n" +
			"A 1.x NSP that starts with that file has the registrations as they are now, with a full timeout each.",
		Example: "  nsp export --to /run/nsp/data/registry.db --force --trench trench-a",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cfg.Validate(); err != nil {
				return cli.Usage(err)
			}
			report, err := nsp.Export(cmd.Context(), cfg)
			if errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("%w; see --force", err)
			}
			if err != nil {
				return err
			}
			w := cmd.OutOrStdout()
			printProblems(w, report.Problems)
			fmt.Fprintf(w, "Written from %s to %s: %s.\n", report.From, cfg.To, counted(report.Written, "registration"))
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.To, "to", "", "file to write (required)")
	f.BoolVar(&cfg.Force, "force", false, "replace the file where there is one; a registry of this NSP is never replaced")
	f.StringVar(&cfg.Datasource, "datasource", defaultDatasource, "datasource of the process whose registrations are written")
	f.StringVar(&cfg.Trench, "trench", "", "only registrations of this trench, and frontends of none; a 1.x NSP serves one trench")
	return cmd
}
