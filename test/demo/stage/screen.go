package stage

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"
)

const width = 100

// style is an ANSI colour.
type style string

const (
	bold  style = "1"
	dim   style = "2"
	red   style = "31"
	green style = "32"
	blue  style = "36"
)

// screen writes for people: no line is longer than width, as long as its words are not.
type screen struct {
	out    io.Writer
	colour bool
}

func (s *screen) paint(c style, text string) string {
	if !s.colour || c == "" {
		return text
	}
	return "\x1b[" + string(c) + "m" + text + "\x1b[0m"
}

func (s *screen) line(text string) { fmt.Fprintln(s.out, text) }

// text writes after a prefix and goes on below its end. Style applies to the text only.
func (s *screen) text(prefix string, c style, text string) {
	indent := utf8.RuneCountInString(prefix)
	for _, l := range wrap(text, width-indent) {
		s.line(prefix + s.paint(c, l))
		prefix = strings.Repeat(" ", indent)
	}
}

// step writes what is being done, and how long it took.
func (s *screen) step(what string, do func() error) error {
	began := time.Now()
	fmt.Fprintf(s.out, "  %s %s ", what, strings.Repeat(".", max(3, 70-len(what))))
	if err := do(); err != nil {
		s.line(s.paint(red, "failed"))
		return err
	}
	s.line(fmt.Sprintf("%5.1f s", time.Since(began).Seconds()))
	return nil
}

// wrap breaks text between words.
func wrap(text string, width int) []string {
	var lines []string
	var line string
	for _, word := range strings.Fields(text) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			lines, line = append(lines, line), ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}
