package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"golang.org/x/term"
)

// colour is an escape sequence; all have the same length, so that columns of painted cells stay aligned.
type colour string

const (
	plain  colour = "\x1b[39m"
	green  colour = "\x1b[32m"
	yellow colour = "\x1b[33m"
	red    colour = "\x1b[31m"
	reset         = "\x1b[0m"
)

// brush paints where that is wanted. In a painted column every cell must be painted, the heading too.
type brush bool

// brushFor paints on terminals only, and nowhere with NO_COLOR (https://no-color.org).
func brushFor(w io.Writer) brush {
	f, ok := w.(*os.File)
	return brush(ok && os.Getenv("NO_COLOR") == "" && term.IsTerminal(int(f.Fd())))
}

func (b brush) paint(c colour, s string) string {
	if !b {
		return s
	}
	return string(c) + s + reset
}

// heading is the name of a painted column.
func (b brush) heading(s string) string { return b.paint(plain, s) }

// state paints the state of a target or member.
func (b brush) state(s string) string {
	switch s {
	case "ACTIVE":
		return b.paint(green, s)
	case "DRAINING":
		return b.paint(yellow, s)
	case "INACTIVE":
		return b.paint(red, s)
	}
	return b.paint(plain, s)
}

// good paints a yes or no of which yes is the good one.
func (b brush) good(yes bool) string {
	if yes {
		return b.paint(green, "yes")
	}
	return b.paint(red, "no")
}

func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

// orDash shows that there is nothing to show.
func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// table is for people: columns, each as wide as its widest cell.
type table struct{ rows [][]string }

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

func (t *table) print(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range t.rows {
		fmt.Fprintln(tw, strings.Join(row, "\t"))
	}
	return tw.Flush()
}
