package main

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	targetpoolv1 "github.com/nordix/meridio-nsp/api/targetpool/v1"
	"github.com/nordix/meridio-nsp/pkg/explain"
)

// Describe implements targetpoolv1.InspectorServer.
func (f *fake) Describe(ctx context.Context, _ *targetpoolv1.DescribeRequest) (*targetpoolv1.DescribeResponse, error) {
	return &targetpoolv1.DescribeResponse{Namespace: "red", Answering: true}, f.answer(ctx)
}

// An explanation is for people, with all there is where it is wide, and for machines.
func TestExplanationOutput(t *testing.T) {
	e := &explain.Explanation{
		Subject: "service/web", Verdict: `stopped at "its sidecar watches": none does`, Advice: "start it", Stopped: "Sidecar", Members: 2,
		Counts: []explain.Count{
			{ID: "Listed", Title: "it is a member", Passed: 2},
			{ID: "Sidecar", Title: "its sidecar watches", Failed: []string{"red/a", "red/b", "red/c", "red/d"}},
			{ID: "Told", Title: "its sidecar was told"},
		},
		Differences: []string{"the NSP has version 7 of EndpointSlice web-x, the cluster 8"},
		Paths: []explain.Path{
			{Title: "Service red/web", Steps: []explain.Step{
				{ID: "Exists", Title: "exists", Status: explain.Pass, Detail: "selector app=web"},
				{ID: "Ports", Title: "its ports meet the flows", Status: explain.Warn, Detail: "443/tcp", Advice: "correct the ports"},
			}},
			{Title: "pod red/a", Steps: []explain.Step{
				{ID: "NSP", Title: "this NSP serves the stream", Status: explain.Unknown, Detail: "refused"},
				{ID: "Sidecar", Title: "its sidecar watches", Status: explain.Fail, Detail: "none does", Advice: "start it"},
				{ID: "Told", Title: "its sidecar was told", Status: explain.Skip},
				{ID: "Ready", Title: "it is ready", Status: explain.Fail, Detail: "NotReady", Advice: "see its probe"},
			}},
		},
	}
	for name, format := range map[string]string{"explain.txt": asTable, "explain-wide.txt": asWide, "explain.json": asJSON, "explain.yaml": asYAML} {
		var out strings.Builder
		require.NoError(t, printExplanation(&out, &output{format: format}, e))
		golden(t, name, out.String())
	}
	var painted strings.Builder
	p := &explanationPrinter{w: &painted, b: true}
	p.print(e)
	require.NoError(t, p.err)
	for _, want := range []string{string(green) + "✓" + reset, string(red) + "✗" + reset, string(yellow) + "?" + reset} {
		require.Contains(t, painted.String(), want)
	}
}

func TestParseSubject(t *testing.T) {
	for line, want := range map[string]string{
		"pod/web-0": "pod/web-0", "po/web-0": "pod/web-0", "svc web": "service/web", "services/web": "service/web",
		"et vm-1": "externaltarget/vm-1", "extt/vm-1": "externaltarget/vm-1", "tpool/a": "targetpool/a", "targetpools a": "targetpool/a",
		"target/172.16.0.1/24": "target/172.16.0.1", "target/::ffff:10.0.0.1": "target/10.0.0.1", "target/fd00::1": "target/fd00::1",
	} {
		s, err := parseSubject(strings.Fields(line))
		require.NoError(t, err, line)
		require.Equal(t, want, s.String())
	}
	for _, line := range []string{"", "web", "pod/", "pod/a/b", "node/x", "target/web", "pod/a pod/b c"} {
		_, err := parseSubject(strings.Fields(line))
		require.Error(t, err, line)
	}
}

// Without API server the NSP alone is asked, and the other way round; without both there is nothing to tell.
func TestExplainWithOneSide(t *testing.T) {
	t.Setenv("KUBECONFIG", os.DevNull)
	addr := serve(t, example())
	r := command(t, "explain", "pod/web-0", "-n", "red", "--server", addr, "-o", "json")
	require.Zero(t, r.code, r.stderr)
	var e explain.Explanation
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &e))
	require.False(t, e.Works)
	fails(t, exitFailed, []string{"explain", "pod/web-0", "--server", "127.0.0.1:1"}, "refused", "the API server is not known")
	checked := command(t, "explain", "pod/web-0", "-n", "red", "--server", addr, "--check")
	require.Equal(t, exitFailed, checked.code)
	require.NotEmpty(t, checked.stdout)
}

func TestFilters(t *testing.T) {
	addr := serve(t, example())
	names := func(args ...string) string {
		r := command(t, append(args, "--server", addr, "-o", "json")...)
		require.Zero(t, r.code, r.stderr)
		var all struct {
			Pools   []struct{ Name string }
			Targets []struct{ ID string }
		}
		require.NoError(t, json.Unmarshal([]byte(r.stdout), &all))
		var out []string
		for _, p := range all.Pools {
			out = append(out, p.Name)
		}
		for _, x := range all.Targets {
			out = append(out, x.ID)
		}
		return strings.Join(out, " ")
	}
	for line, want := range map[string]string{
		"pools":                                 "web db odd",
		"pools -n red":                          "web odd",
		"pools web -n red":                      "web",
		"pools --stream sql":                    "db",
		"pools --stream trench-a/lb/http":       "web",
		"pools --trench trench-a --conduit lb":  "web db",
		"pools --accepted no":                   "db odd",
		"pools --accepted yes":                  "web",
		"pools --reason notpermitted":           "db",
		"pools --sort-by name":                  "db odd web",
		"pools --sort-by members":               "web db odd",
		"pools --sort-by accepted":              "odd db web",
		"targets":                               "1 2 3",
		"targets --state active":                "1",
		"targets --state none":                  "3",
		"targets --status blocked":              "2",
		"targets --status disabled":             "2",
		"targets --type frontend":               "3",
		"targets --pod red/web-0":               "1",
		"targets --pod none":                    "2 3",
		"targets --service red/web":             "1",
		"targets --stream http --sort-by state": "1 2",
		"targets --sort-by status":              "2 1 3",
		"targets --sort-by caused":              "1 2 3",
		"targets --sort-by address":             "3 1 2",
	} {
		require.Equal(t, want, names(strings.Fields(line)...), line)
	}
	t.Setenv("NSP_NAMESPACE", "red")
	require.Equal(t, "web db odd", names("pools"), "the NSP's own environment hides nothing")
	for line, says := range map[string]string{
		"pools --accepted maybe": "choose yes or no", "pools --sort-by age": "choose one of", "pools --stream a/b": "trench/conduit/stream",
		"targets --state x": "choose one of", "targets --status x": "choose one of", "targets --service web": "namespace/name",
		"targets --sort-by x": "choose one of", "explain": "pod/NAME", "explain web": "pod/NAME",
	} {
		fails(t, exitUsage, strings.Fields(line), says)
	}
	require.Contains(t, command(t, "pools", "--reason", "x", "--server", addr).stderr, "None of 3 pools is like that.")
}
