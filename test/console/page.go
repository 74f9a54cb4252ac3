package console

import (
	"fmt"
	"strings"
)

// Step is what a page has the reader do: write a file, or run a command.
type Step struct {
	Line int // in the page, from 1

	File, Content string // of a file

	Command string
	Output  []string // lines that it prints
}

// Parse returns the steps of a page in Markdown.
func Parse(page string) ([]Step, error) {
	var steps []Step
	lines := strings.Split(page, "\n")
	for i := 0; i < len(lines); i++ {
		mark, opens := strings.CutPrefix(strings.TrimSpace(lines[i]), "```")
		if !opens {
			continue
		}
		start := i + 1
		end := start
		for end < len(lines) && strings.TrimSpace(lines[end]) != "```" {
			end++
		}
		if end == len(lines) {
			return nil, fmt.Errorf("line %d: the block does not end", i+1)
		}
		kind, file, _ := strings.Cut(mark, " ")
		switch {
		case kind == "console":
			block, err := parseConsole(lines[start:end], start+1)
			if err != nil {
				return nil, err
			}
			steps = append(steps, block...)
		case file != "":
			steps = append(steps, Step{Line: start + 1, File: file, Content: strings.Join(lines[start:end], "\n") + "\n"})
		}
		i = end
	}
	return steps, nil
}

func parseConsole(lines []string, number int) ([]Step, error) {
	var steps []Step
	continued := false
	for i, line := range lines {
		command, is := strings.CutPrefix(line, "$ ")
		switch {
		case continued:
			steps[len(steps)-1].Command += "\n" + line
			continued = strings.HasSuffix(line, "\\")
		case is:
			steps = append(steps, Step{Line: number + i, Command: command})
			continued = strings.HasSuffix(line, "\\")
		case len(steps) == 0:
			return nil, fmt.Errorf("line %d: %q follows no command", number+i, line)
		case strings.TrimSpace(line) != "":
			last := &steps[len(steps)-1]
			last.Output = append(last.Output, line)
		}
	}
	if continued {
		return nil, fmt.Errorf("line %d: the command does not end", number+len(lines)-1)
	}
	return steps, nil
}

// shows tells whether the lines occur in the output, in this order; else it returns the first that does not.
func shows(output string, lines []string) (missing string, ok bool) {
	have := strings.Split(output, "\n")
	for _, line := range lines {
		for len(have) > 0 && !matches(have[0], line) {
			have = have[1:]
		}
		if len(have) == 0 {
			return line, false
		}
		have = have[1:]
	}
	return "", true
}

// matches compares a line with a pattern.
func matches(line, pattern string) bool {
	line, pattern = strings.Join(strings.Fields(line), " "), strings.Join(strings.Fields(pattern), " ")
	parts := strings.Split(pattern, "...")
	line, ok := strings.CutPrefix(line, parts[0])
	if !ok {
		return false
	}
	if len(parts) == 1 {
		return line == ""
	}
	last := parts[len(parts)-1]
	for _, part := range parts[1 : len(parts)-1] {
		_, after, found := strings.Cut(line, part)
		if !found {
			return false
		}
		line = after
	}
	return strings.HasSuffix(line, last)
}
