package console

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const page = "Text with ``` in it.\n" + `
~~~
` + "```yaml one.yaml\na: 1\n```\n" + "```console\n$ cat one.yaml\na:   1\n$ printf 'x y\\nlast\\n' \\\n    | sort\nlast\n...y\n```\n" +
	"```sh\nnot for the machine\n```\n"

func TestParse(t *testing.T) {
	steps, err := Parse(page)
	require.NoError(t, err)
	require.Equal(t, []Step{
		{Line: 5, File: "one.yaml", Content: "a: 1\n"},
		{Line: 8, Command: "cat one.yaml", Output: []string{"a:   1"}},
		{Line: 10, Command: "printf 'x y\\nlast\\n' \\\n    | sort", Output: []string{"last", "...y"}},
	}, steps)
	for _, bad := range []string{"```console\n$ a\n", "```console\noutput\n```", "```console\n$ a \\\n```"} {
		_, err := Parse(bad)
		require.ErrorContains(t, err, "line")
	}
}

func FuzzParse(f *testing.F) {
	f.Add(page)
	f.Fuzz(func(t *testing.T, page string) {
		steps, err := Parse(page)
		for _, s := range steps {
			require.NoError(t, err)
			require.Positive(t, s.Line)
			require.True(t, s.File == "" || s.Command == "")
		}
	})
}

func TestMatches(t *testing.T) {
	for _, test := range []struct {
		line, pattern string
		want          bool
	}{
		{"a  b", "a b", true}, {"a b c", "a b", false}, {"a b c", "a ...", true}, {"a b c", "... c", true}, {"a b c", "a ... c", true},
		{"a b c d", "a ... b ... d", false}, {"a x b x d", "a ... b ... d", true}, {"a", "...", true}, {"ab", "ab...ab", false},
	} {
		require.Equal(t, test.want, matches(test.line, test.pattern), "%+v", test)
	}
}

func TestRun(t *testing.T) {
	cfg := Config{Root: t.TempDir(), Dir: t.TempDir(), Timeout: time.Minute, Programs: map[string]string{"say": "/bin/echo"}, Env: []string{"WHO=me"}}
	require.NoError(t, Run(t.Context(), cfg, page))
	require.NoError(t, Run(t.Context(), cfg, "```console\n$ say $WHO\nme\n```"))
	require.ErrorContains(t, Run(t.Context(), cfg, "\n```console\n$ true\n$ false\n```"), "line 4: $ false")
	require.ErrorContains(t, Run(t.Context(), cfg, "```console\n$ echo a; echo b\nb\na\n```"), `does not print "a"`)
	cfg.Timeout = time.Millisecond
	require.ErrorContains(t, Run(t.Context(), cfg, "```console\n$ "+strings.Repeat(":;", 10)+"sleep 5\n```"), "not done within 1ms")
}
