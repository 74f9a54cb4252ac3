package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nordix/meridio-nsp/pkg/cli"
	"github.com/nordix/meridio-nsp/pkg/explain"
)

// explainFlags are those of the command alone.
type explainFlags struct {
	check bool
}

func newExplain(how reach) *cobra.Command {
	var conn *connection
	var cluster *clusterAccess
	var out *output
	var flags explainFlags
	cmd := &cobra.Command{
		Use:   "explain {pod/NAME | service/NAME | externaltarget/NAME | targetpool/NAME | streampolicy/NAME | target/IP}",
		Short: "Follow a target from the label on its Service to the load balancer",
		Long: "Follow a target from the label on its Service to the load balancer: every step with a tick or a cross, and what to do about\n" +
			"the first cross. It asks a running NSP and the API server, and says where the two do not agree. A pod is asked for by its\n" +
			"name, as are a Service, an ExternalTarget, a TargetPool and a StreamPolicy; a registered target by an address of the\n" +
			"secondary network.",
		Example: how.example("explain pod/web-0 -n red", "explain service/web -n red -o json | jq -r .verdict", "explain target/172.16.0.7",
			"explain externaltarget/vm-1 -n apps"),
		Args: func(_ *cobra.Command, args []string) error {
			_, err := parseSubject(args)
			return err
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := errors.Join(out.validate(), conn.validate()); err != nil {
				return err
			}
			subject, err := parseSubject(args)
			if err != nil {
				return err
			}
			e, err := explainSubject(cmd.Context(), conn, cluster, subject)
			if err != nil {
				return err
			}
			if err := printExplanation(cmd.OutOrStdout(), out, e); err != nil {
				return err
			}
			if flags.check && !e.Works {
				return fmt.Errorf("%s: %s", e.Subject, e.Verdict)
			}
			return nil
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
			return conn.completeSubjects(cmd, cluster, args, word)
		},
	}
	conn, cluster = addReach(cmd, how)
	out = addOutput(cmd)
	cmd.Flags().BoolVar(&flags.check, "check", false, "fail unless the target takes traffic")
	return cmd
}

// kinds are the kinds of subjects, with the short forms that kubectl has.
var kinds = map[string]explain.Kind{
	"pod": explain.Pod, "pods": explain.Pod, "po": explain.Pod,
	"service": explain.Service, "services": explain.Service, "svc": explain.Service,
	"target": explain.Target, "targets": explain.Target,
	"externaltarget": explain.ExternalTarget, "externaltargets": explain.ExternalTarget, "extt": explain.ExternalTarget, "et": explain.ExternalTarget,
	"targetpool": explain.TargetPool, "targetpools": explain.TargetPool, "tpool": explain.TargetPool,
	"streampolicy": explain.StreamPolicy, "streampolicies": explain.StreamPolicy, "spol": explain.StreamPolicy,
}

func parseSubject(args []string) (explain.Subject, error) {
	const how = "write pod/NAME, service/NAME, externaltarget/NAME, targetpool/NAME, streampolicy/NAME or target/IP"
	if len(args) == 2 && !strings.Contains(args[0], "/") { // kubectl's other form
		args = []string{args[0] + "/" + args[1]}
	}
	if len(args) != 1 {
		return explain.Subject{}, cli.Usage(errors.New("name one thing to explain: " + how))
	}
	kind, name, _ := strings.Cut(args[0], "/")
	s := explain.Subject{Kind: kinds[kind], Name: name}
	switch {
	case s.Kind == "" || name == "" || strings.Contains(name, "/") && s.Kind != explain.Target:
		return s, cli.Usage(fmt.Errorf("%q cannot be explained: %s", args[0], how))
	case s.Kind == explain.Target:
		name, _, _ = strings.Cut(name, "/") // a prefix length is welcome
		addr, err := netip.ParseAddr(name)
		if err != nil {
			return s, cli.Usage(fmt.Errorf("%q is no IP address: %s", name, how))
		}
		s.Name, s.Addr = "", addr.Unmap()
	}
	return s, nil
}

// explainSubject gathers the facts. What cannot be asked is told as such; only when nobody answers there is nothing to explain.
func explainSubject(ctx context.Context, conn *connection, cluster *clusterAccess, s explain.Subject) (*explain.Explanation, error) {
	facts := explain.Facts{Now: time.Now()}
	api, err := cluster.open()
	if err != nil {
		facts.Cluster.Err = err.Error()
	}
	s.Namespace = cluster.currentNamespace()
	processErr := conn.processFacts(ctx, &s, &facts.Process)
	if processErr != nil {
		facts.Process.Err = processErr.Error()
	}
	if api != nil {
		ctx, cancel := context.WithTimeout(ctx, conn.timeout)
		defer cancel()
		if err := api.facts(ctx, s.Namespace, &facts.Cluster); err != nil {
			facts.Cluster = explain.ClusterFacts{Err: err.Error()}
		}
	}
	if processErr != nil && facts.Cluster.Err != "" {
		return nil, errors.Join(processErr, errors.New(facts.Cluster.Err))
	}
	return explain.Explain(s, facts), nil
}

// signs are the statuses for people.
var signs = map[explain.Status]string{
	explain.Pass: "✓", explain.Fail: "✗", explain.Warn: "!", explain.Unknown: "?", explain.Skip: "-",
}

var colours = map[explain.Status]colour{
	explain.Pass: green, explain.Fail: red, explain.Warn: yellow, explain.Unknown: yellow, explain.Skip: plain,
}

func printExplanation(w io.Writer, out *output, e *explain.Explanation) error {
	if out.forMachines() {
		return out.value(w, e)
	}
	p := &explanationPrinter{w: w, b: brushFor(w), wide: out.wide()}
	p.print(e)
	return p.err
}

// explanationPrinter prints for people; the first error ends it.
type explanationPrinter struct {
	w    io.Writer
	b    brush
	wide bool
	err  error
}

func (p *explanationPrinter) line(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format+"\n", args...)
	}
}

func (p *explanationPrinter) print(e *explain.Explanation) {
	for i, path := range e.Paths {
		if i > 0 {
			p.line("")
		}
		p.line("%s", path.Title)
		p.steps(path, e)
		if i == 0 {
			p.counts(e)
		}
	}
	if len(e.Differences) > 0 {
		p.line("\nThe NSP and the cluster differ:")
		for _, d := range e.Differences {
			p.line("  %s", d)
		}
	}
	p.line("\n%s: %s", e.Subject, e.Verdict)
	if e.Advice != "" {
		p.line("%s", e.Advice)
	}
}

// steps prints one way. What means nothing after a cross is left out, unless it is wide.
func (p *explanationPrinter) steps(path explain.Path, e *explain.Explanation) {
	width := 0
	for _, s := range path.Steps {
		width = max(width, len(s.Title))
	}
	advised := false
	for _, s := range path.Steps {
		if s.Status == explain.Skip && !p.wide {
			continue
		}
		p.line("  %s %-*s  %s", p.b.paint(colours[s.Status], signs[s.Status]), width, s.Title, s.Detail)
		first := s.Status == explain.Fail && !advised
		advised = advised || first
		if s.Advice != "" && (first || p.wide || s.Status == explain.Warn) && !(first && s.Advice == e.Advice && len(e.Paths) == 1) {
			p.line("      -> %s", s.Advice)
		}
	}
}

func (p *explanationPrinter) counts(e *explain.Explanation) {
	if len(e.Counts) == 0 {
		return
	}
	p.line("\nmembers: %d", e.Members)
	width := 0
	for _, c := range e.Counts {
		width = max(width, len(c.Title))
	}
	for _, c := range e.Counts {
		sign := explain.Pass
		switch {
		case len(c.Failed) > 0:
			sign = explain.Fail
		case c.Passed < e.Members:
			sign = explain.Skip
		}
		text := fmt.Sprintf("%d", c.Passed)
		if len(c.Failed) > 0 {
			text += " not " + strings.Join(c.Failed[:min(3, len(c.Failed))], ", ")
			if more := len(c.Failed) - 3; more > 0 {
				text += fmt.Sprintf(" and %d more", more)
			}
		}
		p.line("  %s %-*s  %s", p.b.paint(colours[sign], signs[sign]), width, c.Title, text)
	}
}

// subjects are what of some names begins a word, for the shell.
func subjects(kind explain.Kind, names []string) []string {
	out := make([]string, 0, len(names))
	for _, n := range names {
		out = append(out, string(kind)+"/"+n)
	}
	slices.Sort(out)
	return slices.Compact(out)
}
