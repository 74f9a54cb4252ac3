package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/nordix/meridio-nsp/pkg/cli"
	"github.com/nordix/meridio-nsp/pkg/tapa/sidecar"
)

func newStatus() *cobra.Command {
	var socket, format string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:     "status",
		Short:   "Show what the sidecar of this pod has open, and for whom",
		Example: "  kubectl exec web-0 -c sidecar -- /bin/tapa status\n  kubectl exec web-0 -c sidecar -- /bin/tapa status -o json",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if format != "table" && format != "json" {
				return cli.Usage(fmt.Errorf("--output is %q: choose table or json", format))
			}
			if socket == "" {
				return cli.Usage(errors.New("--admin-socket is empty: name the one that the sidecar runs with"))
			}
			status, err := sidecar.AskStatus(cmd.Context(), socket, timeout)
			if err != nil {
				return err
			}
			if format == "json" {
				return printJSON(cmd.OutOrStdout(), status)
			}
			return printTable(cmd.OutOrStdout(), status)
		},
	}
	f := cmd.Flags()
	f.StringVar(&socket, "admin-socket", defaultAdminSocket, "unix socket of the sidecar")
	f.DurationVar(&timeout, "timeout", 5*time.Second, "how long to wait for an answer")
	f.StringVarP(&format, "output", "o", "table", "table or json")
	cli.Complete(cmd, "output", "table", "json")
	return cmd
}

func printJSON(w io.Writer, s sidecar.Status) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(s)
}

func printTable(w io.Writer, s sidecar.Status) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, l := range []struct {
		name string
		sidecar.LinkStatus
	}{{"NSP", s.NSP}, {"CONNECTOR", s.Connector}} {
		state := "connected"
		if !l.Connected {
			state = strings.TrimSuffix("away: "+l.Error, ": ")
		}
		fmt.Fprintf(t, "%s\t%s\t%s\n", l.name, l.Address, state)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if len(s.Streams) == 0 {
		_, err := fmt.Fprintln(w, "\nNobody wants a stream.")
		return err
	}
	fmt.Fprintln(t, "\nTRENCH\tCONDUIT\tSTREAM\tSTATUS\tOWNERS\tLAST ERROR")
	for _, r := range s.Streams {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", r.Trench, r.Conduit, r.Name, r.Status, dash(strings.Join(r.Owners, ",")), dash(r.Error))
	}
	return t.Flush()
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
