package e2e

import (
	"bytes"
	"io"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/test/cluster"
	"github.com/nordix/meridio-nsp/test/demo/stage"
)

// The demo checks each thing that it shows; here it is only played, on a cluster of its own.
func TestDemo(t *testing.T) {
	cluster.SkipIfShort(t)
	var out bytes.Buffer
	code := stage.Run(t.Context(), stage.Config{Out: io.MultiWriter(&out, t.Output())})
	require.Zero(t, code)
	for _, says := range []string{
		"Pod web-2 turns NotReady",
		"stream-a no longer goes to web-2 (NotReady)",
		"red   fast path on",
		"blue  fast path off",
		"no load balancer stopped sending to anybody meanwhile",
		"The trench process is killed",
		"EndpointSlice event -> lb-old, by its trench",
		"Medians of 10 flips",
		"The demo went as it should",
	} {
		require.Contains(t, out.String(), says)
	}
	for line := range bytes.Lines(out.Bytes()) {
		require.LessOrEqual(t, utf8.RuneCount(bytes.TrimSuffix(line, []byte("\n"))), 100, "%s", line)
	}
	require.NotContains(t, out.String(), "\x1b", "colours are for terminals")
}
